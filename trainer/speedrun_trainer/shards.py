"""Token shards on disk, in the .bin format of modded-nanogpt's FineWeb files.

A shard is a header of 256 little-endian int32 (magic 20240520, version 1, token count, zeros) and then the tokens as
uint16: 1024 + 2 * count bytes. A folder holds one dataset: `<name>_train_000001.bin`, `..._000002.bin`, ... and
`<name>_val_000000.bin`; every other file is left alone. Documents start with the BOS token, the vocabulary's last id.

Every complaint is a DataError that names the file, what was found and what was expected. What batches are cut from
the shards is data.py's; where shards come from is fetch.py's, text.py's and source.py's.
"""

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAGIC = 20240520
VERSION = 1
HEADER_BYTES = 256 * 4
TOKEN_BYTES = 2
GPT2_VOCABULARY = 50257  # the last id, 50256, is BOS
VOCABULARY_FILE = "vocabulary.json"  # beside the shards; absent where they are GPT-2's, as FineWeb's are
LEFT_BEHIND = 3600.0  # seconds; a file in the making that is older is of a process that was killed
MAKE = "python -m speedrun_trainer data make-synthetic"
SHARD_NAME = re.compile(r"(?P<dataset>[A-Za-z0-9][\w-]*?)_(?P<split>train|val)_(?P<number>\d{6})\.bin")

Tokens = NDArray[np.uint16]


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
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > LEFT_BEHIND:
                left.unlink()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def ensure_file(path: Path, content: bytes) -> None:
    """Write the file if it does not hold the content: what is right may lie in a folder that can only be read."""
    if not path.exists() or path.read_bytes() != content:
        write_file(path, content)


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
            f"but {size - HEADER_BYTES} bytes follow it ({(size - HEADER_BYTES) // TOKEN_BYTES} tokens): "
            "truncated or damaged, fetch or make it again"
        )
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(count,))


def check_ids(path: Path, tokens: Tokens, vocabulary: int) -> None:
    """Raises DataError if a token is not of the vocabulary."""
    largest = int(tokens.max(initial=0))
    if largest >= vocabulary:
        raise DataError(f"{path}: holds token id {largest}, but the vocabulary has {vocabulary} ids")


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


def describe_vocabulary(folder: Path, size: int, name: str) -> None:
    """Leave word for `vocabulary_of`."""
    ensure_file(folder / VOCABULARY_FILE, f"{json.dumps({'vocabulary': size, 'name': name})}\n".encode())


def vocabulary_of(folder: Path) -> int:
    """How many token ids the folder's shards are made of: GPT-2's, unless a file beside them says another number."""
    path = folder / VOCABULARY_FILE
    if not path.exists():
        return GPT2_VOCABULARY
    try:
        size = json.loads(path.read_text())["vocabulary"]
        if type(size) is not int or not 2 <= size <= 2**16:
            raise ValueError(f"vocabulary {size!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: does not say the size of a vocabulary ({error!r}); make the data again") from error
    return size


class TokenStream:
    """Shards read end to end as one sequence of token ids below `vocabulary`."""

    def __init__(self, paths: Sequence[Path], *, vocabulary: int) -> None:
        self.paths = tuple(paths)
        self.vocabulary = vocabulary
        self.shards = [open_shard(path) for path in self.paths]
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)])  # and the end, as the last entry

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def bos(self) -> int:
        """The token that each document starts with."""
        return self.vocabulary - 1

    def __str__(self) -> str:
        first, last = self.paths[0].name, self.paths[-1].name
        return f"{self.paths[0].parent}: {first if first == last else f'{first} to {last}'}"

    def require(self, count: int, purpose: str) -> None:
        """Raises DataError, before the run needs them, if the stream has fewer than `count` tokens."""
        if len(self) < count:
            raise DataError(f"{self}: {purpose} needs {count:,} tokens, but they hold {len(self):,}")

    def read(self, start: int, count: int) -> Tokens:
        """Tokens [start, start + count), across as many shards as they lie in."""
        self.require(start + count, f"reading {count:,} tokens from {start:,} on")
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        pieces = []
        for shard, offset in zip(self.shards[first:], self.starts[first:], strict=False):
            pieces.append(shard[max(start - int(offset), 0) : start + count - int(offset)])
            if start + count <= int(offset) + len(shard):
                break
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def identity(self) -> str:
        """Tells these shards from others of the same sizes, by their sizes and the beginning of each."""
        digest = hashlib.sha256(self.starts.astype("<i8").tobytes())
        for shard in self.shards:
            digest.update(shard[:2048].tobytes())
        return digest.hexdigest()[:16]

    def check(self) -> None:
        """Read everything. Raises DataError if a token is not of the vocabulary."""
        for path, shard in zip(self.paths, self.shards, strict=True):
            check_ids(path, shard, self.vocabulary)
