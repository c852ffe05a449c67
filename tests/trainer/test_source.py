"""The source's entropy is a fixed number, found by three ways that share no step."""

import hashlib
import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest

from speedrun_trainer import source
from speedrun_trainer.shards import DataError
from speedrun_trainer.source import BOS, END_FACES, PROFILE, VOCABULARY, MarkovSource, stationary_pairs

LENGTH = 256  # tokens of a portion of the smoke run's validation
BOUND = 1.960546542404447
TARGET = 2.0105  # what the smoke recipe names


def test_entropy_and_target_of_the_default_source_are_fixed() -> None:
    entropy = MarkovSource().entropy
    assert entropy.of_sequences(LENGTH) == pytest.approx(BOUND, abs=1e-12)
    assert round(entropy.of_sequences(LENGTH) + source.MARGIN, 4) == TARGET
    # What a model that does not look back reaches is far above the target: attention must have been learnt.
    assert entropy.given_one > TARGET + 0.6


@pytest.mark.parametrize("seed", [0, 1, 2, 12345])
def test_entropy_rate_agrees_with_the_closed_form(seed: int) -> None:
    """All dice but the first have the same counts, and BOS is every 65th token: the rate is the same for all seeds."""

    def entropy(counts: list[int]) -> float:
        return -sum(count / 256 * math.log(count / 256) for count in counts)

    share_of_bos = 1 / (1 + 256 / END_FACES)
    rest = entropy([*PROFILE, END_FACES])
    first = entropy([PROFILE[0] + END_FACES, *PROFILE[1:]])
    expected = share_of_bos * first + (1 - share_of_bos) * rest
    assert MarkovSource(seed).entropy.given_two == pytest.approx(expected, abs=1e-12)


def test_bound_agrees_with_the_likelihood_of_a_sample() -> None:
    """What the best predictor pays for 6,400 sequences, cut as validation cuts them, is the bound within its error."""
    chain = MarkovSource()
    tokens = chain.stream("sample", 6400 * LENGTH + 1).astype(np.int64)
    given_two = chain.probabilities
    pairs = np.zeros((VOCABULARY, VOCABULARY))  # counted, not solved for
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    given_one = pairs / pairs.sum(axis=1, keepdims=True)
    cost = np.empty(len(tokens) - 1)
    cost[1:] = -np.log(given_two[tokens[:-2], tokens[1:-1], tokens[2:]])
    cost[::LENGTH] = -np.log(given_one[tokens[:-1:LENGTH], tokens[1::LENGTH]])
    error = cost.std() / math.sqrt(len(cost))
    assert error < 0.002
    assert cost.mean() == pytest.approx(BOUND, abs=4 * error)


def test_stream_looks_like_documents() -> None:
    tokens = MarkovSource().stream("sample", 200_000)
    starts = np.flatnonzero(tokens == BOS)
    assert tokens.dtype == np.uint16 and len(tokens) == 200_000
    assert starts[0] == 0
    assert np.diff(starts).min() >= 2, "a document has at least one token"
    assert np.diff(starts).mean() == pytest.approx(65, rel=0.05)
    assert set(np.unique(tokens)) == set(range(VOCABULARY))


def test_each_die_has_256_faces_and_neighbouring_contexts_differ() -> None:
    dice = MarkovSource().dice
    assert {len(die) for row in dice for die in row} == {256}
    assert len({die for row in dice for die in row}) == BOS * VOCABULARY + 1
    assert all(dice[before][BOS] == dice[0][BOS] for before in range(VOCABULARY)), "BOS forgets what was before it"


def test_same_bytes_on_every_machine() -> None:
    digests = {
        (seed, name): hashlib.sha256(MarkovSource(seed).stream(name, 10_000).astype("<u2").tobytes()).hexdigest()
        for seed, name in itertools.product([1, 2], ["markov_val_000000.bin", "markov_train_000001.bin"])
    }
    assert digests[1, "markov_val_000000.bin"] == "d48006d21d38e2131498f6bc65db702d2291eb2559ecf45e387131c334bf7094"
    assert len(set(digests.values())) == 4


def test_longer_stream_begins_with_the_shorter() -> None:
    chain = MarkovSource()
    assert np.array_equal(chain.stream("sample", 100), chain.stream("sample", 1000)[:100])
    assert list(chain.stream("sample", 1)) == [BOS]


def test_chain_without_a_long_run_is_refused() -> None:
    """Two tokens that alternate for ever: the frequencies never settle."""
    alternating = np.zeros((2, 2, 2))
    alternating[0, 1, 0] = alternating[1, 0, 1] = alternating[0, 0, 1] = alternating[1, 1, 1] = 1
    with pytest.raises(ArithmeticError, match="do not settle"):
        stationary_pairs(alternating)


def test_folder_says_which_source_it_is_of(tmp_path: Path) -> None:
    assert MarkovSource.of_folder(tmp_path) is None
    MarkovSource(7).describe(tmp_path)
    assert MarkovSource.of_folder(tmp_path) == MarkovSource(7)


def test_a_description_that_is_right_is_not_written_again(tmp_path: Path) -> None:
    """Nor could it be in a folder that may only be read."""
    MarkovSource(7).describe(tmp_path)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    MarkovSource(7).describe(tmp_path)
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before and len(before) == 2


def test_what_a_killed_writer_left_is_cleaned(tmp_path: Path) -> None:
    """BR-097: but not what another is writing just now."""
    old, new = (tmp_path / f".{source.DESCRIPTION}.{name}.tmp" for name in ("old", "new"))
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    MarkovSource(7).describe(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": "1"}', '{"seed": -1}', '{"seed": true}', '"seed"', "\x00"])
def test_unreadable_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / source.DESCRIPTION).write_text(text)
    with pytest.raises(DataError, match=r"markov_source\.json: does not name the seed .* make the data again"):
        MarkovSource.of_folder(tmp_path)
