"""Shards: what is written can be read, what is damaged is refused by name, and ranks share one stream."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Processes
from speedrun_trainer.__main__ import main
from speedrun_trainer.shards import (
    GPT2_VOCABULARY,
    VOCABULARY_FILE,
    DataError,
    TokenStream,
    describe_vocabulary,
    ensure_shard,
    find_dataset,
    open_shard,
    shard_bytes,
    vocabulary_of,
    write_file,
)

token_lists = st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50)


def tokens(count: int, *, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint16)


def header(*numbers: int) -> bytes:
    return np.array([*numbers, *[0] * (256 - len(numbers))], dtype="<i4").tobytes()


# ---------------------------------------------------------------------------
# The format


def test_bytes_of_a_shard() -> None:
    content = shard_bytes(np.array([50256, 1, 258], dtype=np.uint16))
    assert content[:16] == bytes.fromhex("88d83401 01000000 03000000 00000000")  # 20240520, 1, 3
    assert content[16:1024] == bytes(1008)
    assert content[1024:] == bytes.fromhex("50c4 0100 0201")


@given(token_lists)
def test_what_is_written_is_read(ids: list[int]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x_train_000001.bin"
        assert ensure_shard(path, np.array(ids, dtype=np.uint16)) == "written"
        assert open_shard(path).tolist() == ids
        assert ensure_shard(path, np.array(ids, dtype=np.uint16)) == "kept"
        assert [child.name for child in Path(folder).iterdir()] == [path.name]


DAMAGED = {
    "empty": (b"", "0 bytes, but the header alone has 1024"),
    "inside the header": (header(20240520, 1, 1000)[:1023], "1023 bytes, but the header alone has 1024"),
    "another magic": (header(20240801, 7, 1000) + bytes(4000), "magic 20240801, expected 20240520"),
    "an error page": (b"<!DOCTYPE html>".ljust(2000), r"magic \d+, expected 20240520"),
    "another version": (header(20240520, 2, 1000) + bytes(2000), "version 2 of the format, expected 1"),
    "tokens of 4 bytes": (header(20240520, 1, 1000) + bytes(4000), "1000 tokens, 2000 bytes, but 4000 bytes follow"),
    "truncated": (header(20240520, 1, 100_000) + bytes(120_000), r"claims 100000 tokens, .* \(60000 tokens\)"),
    "a byte short": (header(20240520, 1, 1000) + bytes(1999), "1000 tokens, 2000 bytes, but 1999 bytes"),
    "ten bytes too long": (header(20240520, 1, 1000) + bytes(2010), "1000 tokens, 2000 bytes, but 2010 bytes"),
    "negative count": (header(20240520, 1, -1) + bytes(2000), "claims -1 tokens, expected at least 1"),
    "no tokens": (header(20240520, 1, 0), "claims 0 tokens, expected at least 1"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_shard_is_refused(tmp_path: Path, name: str) -> None:
    """BR-088, BR-089: another tokenizer's magic, tokens of 4 bytes, a page of HTML, and every wrong length."""
    content, message = DAMAGED[name]
    path = tmp_path / "fineweb_train_000001.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: .*{message}"):
        open_shard(path)


@given(token_lists, st.data())
def test_a_shard_of_any_other_length_is_refused(ids: list[int], data: st.DataObject) -> None:
    content = shard_bytes(np.array(ids, dtype=np.uint16))
    length = data.draw(st.integers(0, len(content) + 40).filter(lambda number: number != len(content)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x_train_000001.bin"
        path.write_bytes(content[:length].ljust(length, b"\0"))
        with pytest.raises(DataError, match=re.escape(str(path))):
            open_shard(path)


def test_absent_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.bin: cannot be read: No such file"):
        open_shard(tmp_path / "gone.bin")


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    occupied = tmp_path / "x_train_000001.bin"
    occupied.mkdir()
    with pytest.raises(OSError):
        write_file(occupied, b"content")
    assert [child.name for child in tmp_path.iterdir()] == [occupied.name]


# ---------------------------------------------------------------------------
# Folders


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(shard_bytes(tokens(10)))


def test_dataset_is_found_by_name_among_strays(tmp_path: Path) -> None:
    """BR-091: validation is not the last file of the folder, and partial files are no shards."""
    fill(tmp_path, "fineweb_val_000000.bin", *(f"fineweb_train_{number:06d}.bin" for number in range(1, 12)))
    for stray in ("zzz.bin.tmp", ".fineweb_train_000005.bin.incomplete", "train_10.bin", "fineweb_train_12.bin"):
        (tmp_path / stray).write_text("half of something")
    dataset = find_dataset(tmp_path)
    assert dataset.val.name == "fineweb_val_000000.bin"
    assert [path.name for path in dataset.train] == [f"fineweb_train_{number:06d}.bin" for number in range(1, 12)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "holds no file named like fineweb_train_000001.bin"),
        (["x_val_000000.bin"], "x_train_000001.bin: this training shard is missing"),
        (["x_train_000001.bin"], "x_val_000000.bin: the validation shard is missing"),
        (["x_val_000001.bin", "x_train_000001.bin"], "x_val_000000.bin: the validation shard is missing"),
        (
            ["x_val_000000.bin", "x_train_000001.bin", "x_train_000003.bin"],
            "x_train_000002.bin: this training shard is",
        ),
        (["x_val_000000.bin", "x_train_000001.bin", "y_train_000002.bin"], r"several datasets \(x, y\)"),
    ],
)
def test_incomplete_folder_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    fill(tmp_path, *names)
    with pytest.raises(DataError, match=message):
        find_dataset(tmp_path)


# ---------------------------------------------------------------------------
# Streams and batches


@given(st.lists(token_lists, min_size=1, max_size=4), st.data())
def test_shards_read_as_one_stream(shards: list[list[int]], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"x_train_{number:06d}.bin" for number in range(len(shards))]
        for path, ids in zip(paths, shards, strict=True):
            ensure_shard(path, np.array(ids, dtype=np.uint16))
        stream = TokenStream(paths, vocabulary=2**16)
        whole = [token for ids in shards for token in ids]
        assert len(stream) == len(whole)
        start = data.draw(st.integers(0, len(whole) - 1))
        count = data.draw(st.integers(1, len(whole) - start))
        assert stream.read(start, count).tolist() == whole[start : start + count]


@pytest.fixture
def uneven_stream(tmp_path: Path) -> TokenStream:
    """The ids 0 to 3,999 in three shards, the last one too short for a batch."""
    paths = []
    for number, (start, end) in enumerate([(0, 1900), (1900, 3800), (3800, 4000)], start=1):
        paths.append(tmp_path / f"x_train_{number:06d}.bin")
        ensure_shard(paths[-1], tokens(end - start, start=start))
    return TokenStream(paths, vocabulary=4000)


def test_too_few_tokens_are_told_before_they_are_needed(uneven_stream: TokenStream) -> None:
    uneven_stream.require(4000, "training")
    with pytest.raises(
        DataError, match=r"x_train_000001.bin to x_train_000003.bin: training needs 4,001 tokens, but .*"
    ):
        uneven_stream.require(4001, "training")
    with pytest.raises(DataError, match=r"reading 100 tokens from 3,950 on needs 4,050 tokens"):
        uneven_stream.read(3950, 100)


def test_foreign_token_id_names_its_shard(tmp_path: Path) -> None:
    paths = [tmp_path / "x_train_000001.bin", tmp_path / "x_train_000002.bin"]
    ensure_shard(paths[0], tokens(16))
    ensure_shard(paths[1], tokens(17))
    TokenStream(paths[:1], vocabulary=16).check()
    with pytest.raises(DataError, match=r"x_train_000002\.bin: holds token id 16, but the vocabulary has 16 ids"):
        TokenStream(paths, vocabulary=16).check()


def test_a_folder_says_its_vocabulary(tmp_path: Path) -> None:
    assert vocabulary_of(tmp_path) == GPT2_VOCABULARY
    describe_vocabulary(tmp_path, 257, "bytes")
    assert vocabulary_of(tmp_path) == 257


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"vocabulary": 1}', '{"vocabulary": 65537}', '{"vocabulary": "9"}'])
def test_unreadable_vocabulary_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / VOCABULARY_FILE).write_text(text)
    with pytest.raises(
        DataError, match=r"vocabulary\.json: does not say the size of a vocabulary .* make the data again"
    ):
        vocabulary_of(tmp_path)


# ---------------------------------------------------------------------------
# The commands


def make(folder: Path, *options: str) -> int:
    return main(
        ["data", "make-synthetic", "--data", str(folder), "--shard-tokens", "5000", "--val-tokens", "3000", *options]
    )


def check(folder: Path) -> int:
    return main(["data", "check", "--data", str(folder)])


def test_made_data_are_kept_and_pass_the_check(small_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in small_data.glob("*.bin")}
    capsys.readouterr()
    assert make(small_data) == 0
    assert capsys.readouterr().out.count(", kept\n") == 3
    assert {path: path.stat().st_mtime_ns for path in small_data.glob("*.bin")} == before
    assert check(small_data) == 0
    assert f"{small_data}/markov_train_000002.bin: 5,000 tokens, ok\n" in capsys.readouterr().out


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change_a_token(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "outcome"),
    [
        (cut, "replaced, it was damaged: .*truncated or damaged.*"),
        (Path.unlink, "written"),
        (change_a_token, "replaced, it held other tokens"),
    ],
)
def test_only_what_is_damaged_is_made_again(
    small_data: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], outcome: str
) -> None:
    path = small_data / "markov_train_000001.bin"
    right = path.read_bytes()
    damage(path)
    capsys.readouterr()
    assert make(small_data) == 0
    out = capsys.readouterr().out
    assert re.search(f"markov_train_000001.bin: 5,000 tokens, {outcome}\n", out)
    assert out.count(", kept\n") == 2
    assert path.read_bytes() == right


def test_check_tells_every_fault(small_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(small_data / "markov_val_000000.bin")
    (small_data / "markov_train_000002.bin").write_bytes(shard_bytes(tokens(20)))
    capsys.readouterr()
    assert check(small_data) == 4
    out, err = capsys.readouterr()
    assert out == f"{small_data}/markov_train_000001.bin: 5,000 tokens, ok\n"
    first, second = err.splitlines()
    assert "markov_val_000000.bin: the header claims 3000 tokens" in first
    assert "markov_train_000002.bin: holds token id 19, but the vocabulary has 16 ids" in second


def test_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert make(tmp_path / "file" / "folder") == 4
    assert re.fullmatch(r"speedrun_trainer: cannot write the data: .*Not a directory.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("options", [["--shards", "0"], ["--seed", "x"], ["--shards", "1.5"], ["--nonsense"]])
def test_bad_option_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        make(tmp_path, *options)
    assert end.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_makers_at_the_same_time_do_not_disturb_each_other(tmp_path: Path, processes: Processes) -> None:
    command = [sys.executable, "-m", "speedrun_trainer", "data", "make-synthetic", "--data", str(tmp_path / "data")]
    started = [processes.start(command)[0] for _ in range(4)]
    assert [process.wait(timeout=60) for process in started] == [0, 0, 0, 0]
    assert check(tmp_path / "data") == 0
    assert not list((tmp_path / "data").glob(".*"))


def test_data_commands_do_not_load_torch(processes: Processes) -> None:
    program = "import sys, speedrun_trainer.__main__; print('torch' in sys.modules)"
    assert processes.run([sys.executable, "-c", program])[:2] == (0, "False\n")
