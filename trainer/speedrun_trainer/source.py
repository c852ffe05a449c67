"""A source of tokens whose entropy is known: what the smoke run trains on, so that its target can be worked out.

Real text has no known entropy, so a loss of 2.1 on it proves little. Here each token is drawn by throwing a die of 256
faces that belongs to the two tokens before it (an order-2 Markov chain). The best loss that any model can reach is then
a number that follows from the dice alone, and a loss near it is reached by learning only: the dice of neighbouring
contexts are unrelated, and a model that does not look back beyond the current token stays at the far higher
`Entropy.given_one`.

Documents look as in FineWeb: each starts with a BOS token, the last id of the vocabulary. After BOS one die is thrown
whatever came before, and a document ends by throwing BOS, so document boundaries are events like any other and the
entropy counts them exactly.

All randomness is SHAKE-256 of the seed and all probabilities are whole 256ths, so a seed gives the same bytes
on every machine. A small file beside the shards says which seed they are of. The shards' format is data.py's.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from speedrun_trainer.shards import MAKE, DataError, describe_vocabulary, ensure_file

FACES = 256
END_FACES = 4  # a document ends after each of its tokens with probability 4/256: 64 tokens on average, and BOS
PROFILE = (84, 56, 37, 25, 17, 11, 7, 5, 3, 2, 1, 1, 1, 1, 1)  # faces of a die's likeliest symbol, the second, ...
BOS = len(PROFILE)
VOCABULARY = BOS + 1
DEFAULT_SEED = 1
MARGIN = 0.05  # nats from the entropy to the smoke run's target. Twelve seeds ended 0.0192 above it, sd 0.0015
DESCRIPTION = "markov_source.json"  # lies in the folder of the shards


@dataclass(frozen=True)
class Entropy:
    """What remains unknown of the next token, in nats, on average over the endless stream."""

    given_one: float  # when only the current token is seen: the first position of a sequence, or a bigram model
    given_two: float  # when the one before is seen too: all that can be known, however long the context

    def of_sequences(self, length: int) -> float:
        """The lowest loss that can be expected on sequences of `length` predictions cut anywhere from the stream."""
        return (self.given_one + (length - 1) * self.given_two) / length


@dataclass(frozen=True)
class MarkovSource:
    """The chain of one seed; everything about it follows from that."""

    seed: int = DEFAULT_SEED

    def __str__(self) -> str:
        return f"order-2 Markov source, {VOCABULARY} tokens, seed {self.seed}"

    @classmethod
    def of_folder(cls, folder: Path) -> Self | None:
        """The source that the folder's shards were made from; None if they hold something else."""
        path = folder / DESCRIPTION
        if not path.exists():
            return None
        try:
            seed = json.loads(path.read_text())["seed"]
            if type(seed) is not int or seed < 0:
                raise ValueError(f"seed {seed!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: does not name the seed of a source ({error!r}); make the data again ({MAKE} --data {folder})"
            ) from error
        return cls(seed)

    def describe(self, folder: Path) -> None:
        """Leave word for `of_folder`."""
        describe_vocabulary(folder, VOCABULARY, str(self))
        ensure_file(folder / DESCRIPTION, f"{json.dumps({'source': str(self), 'seed': self.seed})}\n".encode())

    def randomness(self, name: str, count: int) -> bytes:
        """`count` bytes that depend on nothing but the seed and the name."""
        return hashlib.shake_256(f"markov source, seed {self.seed}, {name}".encode()).digest(count)

    def die(self, name: str, *, can_end: bool) -> bytes:
        """256 token ids: the profile's counts, dealt to the symbols in an order of this die's own."""
        keys = self.randomness(f"die {name}", 8 * BOS)
        ranking = sorted(range(BOS), key=lambda symbol: keys[8 * symbol : 8 * symbol + 8])
        faces = [symbol for symbol, count in zip(ranking, PROFILE, strict=True) for _ in range(count)]
        return bytes(faces + [BOS if can_end else ranking[0]] * END_FACES)

    @cached_property
    def dice(self) -> list[list[bytes]]:
        """`dice[before][current]` decides the next token."""
        first = self.die("first", can_end=False)
        return [
            [self.die(f"{before} {current}", can_end=True) for current in range(BOS)] + [first]
            for before in range(VOCABULARY)
        ]

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """The dice as numbers, shape (before, current, next)."""
        faces = [[np.bincount(list(die), minlength=VOCABULARY) for die in row] for row in self.dice]
        return np.array(faces, dtype=np.float64) / FACES

    @cached_property
    def entropy(self) -> Entropy:
        """Worked out from the dice, not from a sample."""
        pairs = stationary_pairs(self.probabilities)
        current = pairs.sum(axis=0)
        given_one = np.einsum("bc,bcn->cn", pairs, self.probabilities) / current[:, None]
        return Entropy(
            given_one=float(current @ nats(given_one)),
            given_two=float((pairs * nats(self.probabilities)).sum()),
        )

    def stream(self, name: str, count: int) -> NDArray[np.uint16]:
        """`count` tokens that begin with a document's start; each name gives an independent stream."""
        tokens = bytearray([BOS])
        before, current, dice = BOS, BOS, self.dice
        for face in self.randomness(f"stream {name}", count - 1):
            before, current = current, dice[before][current][face]
            tokens.append(current)
        return np.frombuffer(tokens, dtype=np.uint8).astype(np.uint16)


def nats(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy along the last axis; an impossible outcome adds nothing."""
    logs = np.log(probabilities, where=probabilities > 0, out=np.zeros_like(probabilities))
    entropy: NDArray[np.float64] = -(probabilities * logs).sum(axis=-1)
    return entropy


def stationary_pairs(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """How often each (current, next) pair occurs in the long run: the fixed point of moving on by one token."""
    pairs = np.full(probabilities.shape[:2], 1 / probabilities.shape[0] ** 2)
    for _ in range(10_000):
        moved: NDArray[np.float64] = np.einsum("bc,bcn->cn", pairs, probabilities)
        if np.abs(moved - pairs).max() < 1e-16:
            return moved
        pairs = moved
    raise ArithmeticError("the source's pair frequencies do not settle: its dice have a part that is never left")
