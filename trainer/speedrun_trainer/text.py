"""Shards from any text: `python -m speedrun_trainer data make`.

Each file is a document. The vocabulary is bytes (257 ids), or GPT-2's, from its two files encoder.json and vocab.bpe
(by tiktoken, which encodes 3 MB of text a second and core). Whole files go to validation or to training, by a hash of
their path, so that no document lies in both and more files do not move others; the order is by that hash, too.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedrun_trainer.shards import GPT2_VOCABULARY, DataError, Tokens, describe_vocabulary, ensure_shard

BYTE_VOCABULARY = 257
# How GPT-2 cuts text before it joins pairs: its encoder.py, with the contractions' order that tiktoken uses.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@dataclass(frozen=True)
class Vocabulary:
    """`encode` gives the ids of a document, without BOS, which is the last id."""

    name: str
    size: int
    encode: Callable[[bytes], Sequence[int] | Tokens]


def byte_vocabulary() -> Vocabulary:
    return Vocabulary("bytes", BYTE_VOCABULARY, lambda text: np.frombuffer(text, dtype=np.uint8).astype(np.uint16))


def gpt2_vocabulary(folder: Path) -> Vocabulary:
    """From encoder.json and vocab.bpe in `folder`. Raises DataError."""
    try:
        import tiktoken
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    except ImportError as error:
        raise DataError(
            "GPT-2's vocabulary needs the package tiktoken: pip install 'speedrun-operator[text]'"
        ) from error
    encoder, pairs = folder / "encoder.json", folder / "vocab.bpe"
    for path in (encoder, pairs):
        if not path.is_file():
            raise DataError(f"{path}: is missing; GPT-2's vocabulary is encoder.json and vocab.bpe")
    try:
        ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=str(pairs), encoder_json_file=str(encoder))
    except Exception as error:  # a broken file shows as any of a dozen kinds
        raise DataError(f"{folder}: encoder.json and vocab.bpe do not fit together ({error!r})") from error
    if len(ranks) != GPT2_VOCABULARY - 1:
        raise DataError(f"{folder}: {len(ranks)} tokens, but GPT-2 has {GPT2_VOCABULARY - 1} and BOS")
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return Vocabulary("gpt2", GPT2_VOCABULARY, lambda text: encoding.encode_ordinary(text.decode(errors="replace")))


def find_documents(sources: Sequence[Path]) -> list[tuple[str, Path]]:
    """Files, and the files below folders, each with the digest of its path below its source; in the digests' order."""
    found = {}
    for source in sources:
        if source.is_dir():
            paths = [path for path in source.rglob("*") if path.is_file() and not path.is_symlink()]
        elif source.is_file():
            paths = [source]
        else:
            raise DataError(f"{source}: no such file or folder")
        for path in paths:
            name = path.relative_to(source) if path != source else Path(path.name)
            found[hashlib.sha256(name.as_posix().encode()).hexdigest(), path] = path
    return sorted((digest, path) for (digest, path) in found)


def make(
    folder: Path,
    sources: Sequence[Path],
    vocabulary: Vocabulary,
    *,
    name: str,
    shard_tokens: int,
    val_share: float,
    say: Callable[[str], None],
) -> None:
    """Write shards of `shard_tokens` tokens; about `val_share` of the documents are validation. Raises DataError."""
    documents = [(digest, path) for digest, path in find_documents(sources) if not is_below(path, folder)]
    val = [path for digest, path in documents if int(digest[:8], 16) < val_share * 2**32]
    train = [path for digest, path in documents if int(digest[:8], 16) >= val_share * 2**32]
    if not val or not train:
        raise DataError(
            f"{len(documents)} files are too few to share out: {len(val)} validation, {len(train)} training"
        )
    if not (val_documents := list(encoded(val, vocabulary))):
        raise DataError(f"all {len(val)} files for validation are empty: raise --val-share, or add files")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, name, "val", 0, np.concatenate(val_documents), say)
    number = 0
    for number, tokens in enumerate(cut(encoded(train, vocabulary), shard_tokens), start=1):
        write(folder, name, "train", number, tokens, say)
    left = folder / f"{name}_train_{number + 1:06d}.bin"
    if left.exists():
        raise DataError(f"{left}: is left from an earlier make with more shards; remove it and those after it")
    describe_vocabulary(folder, vocabulary.size, vocabulary.name)
    say(f"{folder}: {len(val)} documents for validation, {len(train)} for training, vocabulary {vocabulary.name}")


def is_below(path: Path, folder: Path) -> bool:
    """Whether it is one of the shards' own folder, which may lie in that of the texts."""
    return path.resolve().is_relative_to(folder.resolve())


def encoded(paths: Sequence[Path], vocabulary: Vocabulary) -> Iterator[Tokens]:
    """Each document's tokens with BOS before them; empty files are left out."""
    for path in paths:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        if text:
            yield np.concatenate(([vocabulary.size - 1], vocabulary.encode(text))).astype(np.uint16)


def cut(documents: Iterator[Tokens], shard_tokens: int) -> Iterator[Tokens]:
    """Shards of just so many tokens, the last one shorter; a document may go on in the next one, as in FineWeb's."""
    pieces: list[Tokens] = []
    waiting = 0
    for document in documents:
        pieces.append(document)
        waiting += len(document)
        while waiting >= shard_tokens:
            together = np.concatenate(pieces)
            yield together[:shard_tokens]
            pieces, waiting = [together[shard_tokens:]], waiting - shard_tokens
    if waiting:
        yield np.concatenate(pieces)


def write(folder: Path, name: str, split: str, number: int, tokens: Tokens, say: Callable[[str], None]) -> None:
    path = folder / f"{name}_{split}_{number:06d}.bin"
    say(f"{path}: {len(tokens):,} tokens, {ensure_shard(path, tokens)}")
