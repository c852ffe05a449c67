"""Token shards on disk, in the .bin format of modded-nanogpt's FineWeb files, and the batches that are cut from them.

A shard is a header of 256 little-endian int32 (magic 20240520, version 1, token count, zeros) and then the tokens as
uint16: 1024 + 2 * count bytes. A folder holds one dataset: `<name>_train_000001.bin`, `..._000002.bin`, ... and
`<name>_val_000000.bin`; every other file is left alone. The training shards are read as one long stream and a batch
is addressed by its step number, so the tokens of a step are the same whatever the number of processes that share it.

Every complaint is a DataError that names the file, what was found and what was expected. What the tokens are is
not known here: source.py makes some.
"""

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAGIC = 20240520
VERSION = 1
HEADER_BYTES = 256 * 4
TOKEN_BYTES = 2
GPT2_VOCABULARY = 50257
MAKE = "python -m speedrun_trainer data make-synthetic"
SHARD_NAME = re.compile(r"(?P<dataset>[A-Za-z0-9][\w-]*?)_(?P<split>train|val)_(?P<number>\d{6})\.bin")

Tokens = NDArray[np.uint16]
Rows = tuple[NDArray[np.int64], NDArray[np.int64]]  # tokens, and the tokens that follow them


class DataError(Exception):
    """The data cannot be used; the message says which file, why, and what to do."""


# ---------------------------------------------------------------------------
# One shard


def shard_bytes(tokens: Tokens) -> bytes:
    header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    header[:3] = MAGIC, VERSION, len(tokens)
    return header.tobytes() + tokens.astype("<u2").tobytes()


def write_file(path: Path, content: bytes) -> None:
    """Write beside the final name and rename, so that the name never holds a part of the content."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def ensure_shard(path: Path, tokens: Tokens) -> str:
    """Make `path` hold exactly these tokens. Returns what that took: written, kept, or replaced and why."""
    content = shard_bytes(tokens)
    if not path.exists():
        write_file(path, content)
        return "written"
    if path.read_bytes() == content:
        return "kept"
    try:
        open_shard(path)
        reason = "it held other tokens"
    except DataError as error:
        reason = f"it was damaged: {error}"
    write_file(path, content)
    return f"replaced, {reason}"


def open_shard(path: Path) -> Tokens:
    """The tokens of a shard, mapped and not yet read. Raises DataError unless header and size agree."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if size < HEADER_BYTES:
        raise DataError(f"{path}: not a token shard: {size} bytes, but the header alone has {HEADER_BYTES}")
    magic, version, count = (int(number) for number in np.frombuffer(header, dtype="<i4")[:3])
    if magic != MAGIC:
        raise DataError(f"{path}: not a token shard of this format: magic {magic}, expected {MAGIC}")
    if version != VERSION:
        raise DataError(f"{path}: version {version} of the format, expected {VERSION} (uint16 tokens)")
    if count < 1:
        raise DataError(f"{path}: the header claims {count} tokens, expected at least 1")
    if size != HEADER_BYTES + TOKEN_BYTES * count:
        raise DataError(
            f"{path}: the header claims {count} tokens, {TOKEN_BYTES * count} bytes, "
            f"but {size - HEADER_BYTES} bytes follow it: truncated or damaged, fetch or make it again"
        )
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(count,))


# ---------------------------------------------------------------------------
# A folder of shards


@dataclass(frozen=True)
class Dataset:
    """The shards of one folder. Validation is found by its name, never by its place in a listing."""

    train: tuple[Path, ...]
    val: Path


def find_dataset(folder: Path) -> Dataset:
    """Raises DataError if the folder does not hold exactly one dataset without gaps."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name one with --data, or make it ({MAKE} --data {folder})")
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error
    found = [(path, match) for path in paths if (match := SHARD_NAME.fullmatch(path.name))]
    names = sorted({match["dataset"] for _, match in found})
    if not names:
        raise DataError(f"{folder}: holds no file named like fineweb_train_000001.bin")
    if len(names) > 1:
        raise DataError(f"{folder}: holds several datasets ({', '.join(names)}); give each a folder of its own")
    train = {int(match["number"]): path for path, match in found if match["split"] == "train"}
    val = folder / f"{names[0]}_val_000000.bin"
    if not val.exists():
        raise DataError(f"{val}: the validation shard is missing")
    for number in range(1, max(train, default=1) + 1):
        if number not in train:
            raise DataError(f"{folder / f'{names[0]}_train_{number:06d}.bin'}: this training shard is missing")
    return Dataset(train=tuple(train[number] for number in sorted(train)), val=val)


# ---------------------------------------------------------------------------
# A stream of tokens and its batches


class TokenStream:
    """Shards read end to end as one sequence of token ids below `vocabulary`."""

    def __init__(self, paths: Sequence[Path], *, vocabulary: int) -> None:
        self.paths = tuple(paths)
        self.vocabulary = vocabulary
        self.shards = [open_shard(path) for path in self.paths]
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)])  # and the end, as the last entry

    def __len__(self) -> int:
        return int(self.starts[-1])

    def require(self, count: int, purpose: str) -> None:
        """Raises DataError, before the run needs them, if the stream has fewer than `count` tokens."""
        if len(self) < count:
            raise DataError(
                f"{self.paths[0].parent}: {purpose} needs {count:,} tokens, "
                f"but {', '.join(path.name for path in self.paths)} together hold {len(self):,}"
            )

    def read(self, start: int, count: int) -> Tokens:
        """Tokens [start, start + count), across as many shards as they lie in."""
        self.require(start + count, f"reading {count:,} tokens from {start:,} on")
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        pieces = []
        for path, shard, offset in zip(self.paths[first:], self.shards[first:], self.starts[first:], strict=False):
            piece = shard[max(start - int(offset), 0) : start + count - int(offset)]
            largest = int(piece.max(initial=0))
            if largest >= self.vocabulary:
                raise DataError(f"{path}: holds token id {largest}, but the vocabulary has {self.vocabulary} ids")
            pieces.append(piece)
            if start + count <= int(offset) + len(shard):
                break
        return np.concatenate(pieces)


@dataclass(frozen=True)
class BatchShape:
    """A batch of all processes together: `sequences` rows of `length` predictions."""

    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.length


def batch_rows(stream: TokenStream, shape: BatchShape, *, batch: int, rank: int, world: int) -> Rows:
    """This rank's rows of a batch, each of shape (sequences / world, length).

    Ranks take consecutive rows, so stacked in rank order they are the batch of a single process. `world` must
    divide `shape.sequences`.
    """
    rows = shape.sequences // world
    start = batch * shape.tokens + rank * rows * shape.length
    tokens = stream.read(start, rows * shape.length + 1).astype(np.int64)
    return tokens[:-1].reshape(rows, shape.length), tokens[1:].reshape(rows, shape.length)
