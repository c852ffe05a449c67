"""Shards from text: what goes in can be read back, and validation shares no document with training."""

import json
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from speedrun_trainer.__main__ import main
from speedrun_trainer.shards import TokenStream, find_dataset, vocabulary_of
from speedrun_trainer.text import GPT2_VOCABULARY, gpt2_vocabulary


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    for number in range(60):
        path = folder / f"part{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}: " + "näive text. " * (number % 7))
    (folder / "empty.txt").touch()
    return folder


def make(texts: Path, data: Path, *options: str) -> int:
    return main(
        ["data", "make", str(texts), "--data", str(data), "--shard-tokens", "500", "--val-share", "0.2", *options]
    )


def documents(paths: tuple[Path, ...], vocabulary: int) -> list[bytes]:
    stream = TokenStream(paths, vocabulary=vocabulary)
    tokens = np.array(stream.read(0, len(stream)))
    starts = np.flatnonzero(tokens == stream.bos)
    return [part[1:].astype(np.uint8).tobytes() for part in np.split(tokens, starts[1:])]


def test_every_file_is_a_document_of_training_or_of_validation(texts: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert make(texts, data, "--name", "own") == 0
    found = find_dataset(data)
    assert found.val.name == "own_val_000000.bin" and len(found.train) > 2
    assert vocabulary_of(data) == 257
    val, train = documents((found.val,), 257), documents(found.train, 257)
    assert sorted(val + train) == sorted(path.read_bytes() for path in texts.rglob("*.txt") if path.stat().st_size)
    assert 4 <= len(val) <= 24
    sizes = [len(TokenStream([path], vocabulary=257)) for path in found.train]
    assert set(sizes[:-1]) == {500} and sizes[-1] <= 500
    assert main(["data", "check", "--data", str(data)]) == 0


def test_more_files_move_no_other(texts: Path, tmp_path: Path) -> None:
    assert make(texts, tmp_path / "one") == 0
    (texts / "more.txt").write_text("one more")
    assert make(texts, tmp_path / "two") == 0
    one, two = (documents((find_dataset(tmp_path / name).val,), 257) for name in ("one", "two"))
    assert set(one) <= set(two)


def test_made_again_it_is_kept(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(texts, tmp_path / "data") == 0
    capsys.readouterr()
    assert make(texts, tmp_path / "data") == 0
    assert "written" not in capsys.readouterr().out
    assert make(texts, tmp_path / "data", "--shard-tokens", "5000") == 4
    assert "is left from an earlier make with more shards" in capsys.readouterr().err


def test_shards_among_the_texts_are_no_texts(texts: Path) -> None:
    data = texts / "shards"
    assert make(texts, data) == 0
    first = {path.name: path.read_bytes() for path in data.iterdir()}
    assert make(texts, data) == 0
    assert {path.name: path.read_bytes() for path in data.iterdir()} == first


def test_validation_without_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{number}.txt" for number in range(40)]
    for name in names:
        (tmp_path / name).write_text("" if int(sha256(name.encode()).hexdigest()[:8], 16) < 0.2 * 2**32 else "text")
    assert make(tmp_path, tmp_path / "data") == 4
    assert "files for validation are empty: raise --val-share, or add files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--name", "../x"], 2, "'../x' is no name: letters, digits, - and _"),
        (["--val-share", "0"], 4, "too few to share out: 0 validation"),
        (["--vocabulary", "/nowhere"], 4, "/nowhere/encoder.json: is missing; GPT-2's vocabulary is encoder.json and"),
    ],
)
def test_what_cannot_be_made_is_told(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    try:
        got = make(texts, tmp_path / "data", *options)
    except SystemExit as end:
        got = int(end.code or 0)
    assert got == code and message in capsys.readouterr().err


def test_files_that_are_no_vocabulary_are_refused(
    tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 0}))
    (tmp_path / "vocab.bpe").write_text("#version\n")
    assert make(texts, tmp_path / "data", "--vocabulary", str(tmp_path)) == 4
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.skipif("GPT2_VOCABULARY_FOLDER" not in os.environ, reason="GPT2_VOCABULARY_FOLDER names no encoder.json")
def test_gpt2_vocabulary_encodes_as_gpt2() -> None:
    """Known ids, as published with GPT-2 and its tokenizers."""
    vocabulary = gpt2_vocabulary(Path(os.environ["GPT2_VOCABULARY_FOLDER"]))
    assert vocabulary.size == GPT2_VOCABULARY
    assert list(vocabulary.encode(b"Hello, world!")) == [15496, 11, 995, 0]
    assert list(vocabulary.encode(b"I'll  see\n\n")) == [40, 1183, 220, 766, 628]
