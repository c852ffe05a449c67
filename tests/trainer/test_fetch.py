"""`data get` with the Hub's real library against a Hub on loopback: what is right is kept, what is not is fetched."""

import errno
import fcntl
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hub import Hub

from conftest import Processes, wait_until
from speedrun_trainer import fetch
from speedrun_trainer.__main__ import main
from speedrun_trainer.shards import shard_bytes

VAL, ONE, TWO = "fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin"
ALL = [VAL, ONE, TWO]


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    """Up before the library is imported, which is when it reads where the Hub is."""
    hub = Hub()
    assert "huggingface_hub" not in sys.modules
    settings = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_TOKEN": "t"}
    os.environ.update(settings)
    yield hub
    hub.close()


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Holds validation and two training shards. Waiting takes no time and is noted in `waits`."""
    server.clear()
    for number, name in enumerate(ALL):
        server.files[name] = shard_bytes(np.arange(number, 20_000 + number, dtype=np.uint16))
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    return server


def get(folder: Path, *options: str) -> int:
    return main(["data", "get", "--data", str(folder), "--shards", "2", *options])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


def test_all_are_fetched_once_and_the_second_call_needs_no_hub(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "fineweb"
    assert get(folder) == 0
    assert content(folder) == hub.files
    assert [hub.asked("GET")[name] for name in ALL] == [1, 1, 1]
    assert all(headers.get("authorization") == "Bearer t" for how, name, headers in hub.requests if name in ALL)
    before = len(hub.requests)
    capsys.readouterr()
    assert get(folder) == 0
    assert len(hub.requests) == before
    assert capsys.readouterr().out.count(": kept, verified before\n") == 3


def test_a_damaged_shard_is_replaced_alone(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert get(tmp_path) == 0
    (tmp_path / ONE).write_bytes(hub.files[ONE][:30_000])
    hub.requests.clear()
    capsys.readouterr()
    assert get(tmp_path) == 0
    out = capsys.readouterr().out
    assert re.search(rf"{ONE}: fetching 41,024 bytes, since .* claims 20000 tokens, .* \(14488 tokens\)", out)
    assert content(tmp_path) == hub.files
    assert hub.asked("GET") == {ONE: 1}


def test_a_changed_token_is_found_by_its_hash(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.joinpath(TWO).write_bytes(hub.files[TWO][:-1] + b"\x00")
    assert get(tmp_path) == 0
    assert f"{TWO} has another SHA-256 than on the Hub" in capsys.readouterr().out
    assert content(tmp_path) == hub.files


def test_a_damaged_transfer_never_gets_the_final_name(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults["GET", ONE] = ["damaged"]
    assert get(tmp_path) == 0
    assert "the transfer was damaged" in capsys.readouterr().out
    assert content(tmp_path) == hub.files
    assert hub.asked("GET")[ONE] == 2


def test_a_cut_transfer_is_taken_up_where_it_stopped(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024)  # what it writes at once, else 10 MB
    hub.faults["GET", ONE] = ["cut"]
    assert get(tmp_path) == 0
    assert content(tmp_path) == hub.files
    ranges = [headers.get("range") for how, name, headers in hub.requests if (how, name) == ("GET", ONE)]
    assert len(ranges) == 2 and re.fullmatch(r"bytes=[1-9]\d*-", ranges[1] or "")


def test_the_hub_says_how_long_to_wait(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.faults["INFO", ONE] = [(429, {"Retry-After": "7"}), (503, {})]
    assert get(tmp_path) == 0
    out = capsys.readouterr().out
    assert f"{ONE}: the Hub answers 429; trying again in 7 s (1 of 6)\n" in out
    assert f"{ONE}: the Hub answers 503; trying again in " in out


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((401, {}), "the Hub refuses|the Hub answers 401; set HF_TOKEN"),
        ((429, {"Retry-After": "4000"}), r"the Hub answers 429 \(1 tries\); start again later"),
    ],
)
def test_what_waiting_does_not_help_ends_at_once(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: tuple[int, dict[str, str]], message: str
) -> None:
    hub.faults["INFO", ONE] = [fault] * 9
    assert get(tmp_path) == 4
    assert re.search(message, capsys.readouterr().err)
    assert list(content(tmp_path)) == [VAL]


def test_a_hub_that_stays_away_is_given_up(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.faults["INFO", ONE] = [(500, {})] * 99
    assert get(tmp_path) == 4
    assert "the Hub answers 500 (6 tries); start again later, what has arrived is kept" in capsys.readouterr().err


def test_a_whole_file_is_kept_when_the_hub_cannot_be_asked(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it waited for: a folder filled by hand on a node without a network is asked about by every job."""
    for name in ALL:
        (tmp_path / name).write_bytes(hub.files[name])
        hub.faults["INFO", name] = [(500, {})] * 99
    assert get(tmp_path) == 0
    out = capsys.readouterr().out
    assert out.count(": kept, not compared with the Hub (") == 3 and "trying again" not in out
    assert len(hub.requests) == 1
    capsys.readouterr()
    (tmp_path / TWO).unlink()
    hub.faults["INFO", TWO] = [(500, {})] * 2
    assert get(tmp_path) == 0, "a missing one is worth some patience"
    assert content(tmp_path) == hub.files


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((403, {}), "the Hub answers 403; set HF_TOKEN"),
        ((429, {"Retry-After": "4000"}), r"the Hub answers 429 \(1 tries\); start again later"),
    ],
)
def test_a_transfer_that_waiting_does_not_help_ends_at_once(
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    fault: tuple[int, dict[str, str]],
    message: str,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(fetch.time, "sleep", waits.append)
    hub.faults[method, ONE] = [fault] * 9
    assert get(tmp_path) == 4
    assert re.search(message, capsys.readouterr().err)
    assert not waits and hub.asked(method)[ONE] <= 2, "the library sends a second HEAD at once"


def test_the_wait_that_a_transfer_is_asked_for_is_told(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults["HEAD", ONE] = [(429, {"Retry-After": "7"})] * 2  # the library asks twice
    hub.faults["GET", TWO] = [(429, {"Retry-After": "8"})]
    assert get(tmp_path) == 0
    out = capsys.readouterr().out
    assert f"{ONE}: the Hub answers 429; trying again in 7 s (1 of 6)\n" in out
    assert f"{TWO}: the Hub answers 429; trying again in 8 s (1 of 6)\n" in out


def test_xet_s_own_error_is_worth_another_try(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    errors = iter([RuntimeError("Data processing error: CAS service error\nmore")])

    def transfer() -> str:
        for error in errors:
            raise error
        return "done"

    assert fetch.patiently(transfer, ONE, print) == "done"
    assert (
        f"{ONE}: no answer from the Hub (Data processing error: CAS service error); trying" in capsys.readouterr().out
    )


def test_a_file_system_without_locks_is_told(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre mounted without flock."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fetch, "fcntl", SimpleNamespace(flock=none, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
    assert get(tmp_path) == 0
    assert "cannot be locked here (Function not implemented): let one process at a time" in capsys.readouterr().out
    assert content(tmp_path) == hub.files
    assert get(tmp_path) == 0
    assert "locked" not in capsys.readouterr().out, "what is verified needs no lock"


def test_offline_takes_what_is_there_and_names_what_is_not(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in (VAL, ONE):
        (tmp_path / name).write_bytes(hub.files[name])
    assert get(tmp_path) == 4
    assert f"{tmp_path / TWO} is missing; HF_HUB_OFFLINE forbids to fetch it" in capsys.readouterr().err
    assert not hub.requests


def test_a_read_only_cache_is_good_if_it_is_whole(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.os, "access", lambda path, mode: False)  # root may write everywhere
    for name in ALL:
        (tmp_path / name).write_bytes(hub.files[name])
    assert get(tmp_path) == 0
    assert "3 shards are there; it may only be read" in capsys.readouterr().out
    assert get(tmp_path, "--verify") == 0 and capsys.readouterr().out.count(": kept, verified\n") == 3
    (tmp_path / TWO).write_bytes(hub.files[TWO][:-1] + b"\x00")
    assert get(tmp_path, "--verify") == 4
    assert f"{TWO} has another SHA-256 than on the Hub, and the folder cannot be written" in capsys.readouterr().err
    (tmp_path / ONE).unlink()
    assert get(tmp_path) == 4
    assert f"cannot be written to (Read-only file system), and {tmp_path / ONE} is missing" in capsys.readouterr().err


def test_a_full_disk_is_told(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(fetch.DataError, match=r"cannot be written: .*No space left on device"):
        fetch.patiently(full, ONE, print)
    assert capsys.readouterr().out == "", "no second try"


def test_downloaders_at_once_fetch_everything_once(hub: Hub, tmp_path: Path, processes: Processes) -> None:
    """BR-097: and one that is killed in the middle leaves no partial file under a final name, and no lock."""
    command = [
        sys.executable,
        "-m",
        "speedrun_trainer",
        "data",
        "get",
        "--data",
        str(tmp_path / "data"),
        "--shards",
        "2",
    ]
    stopped = [tmp_path / "data" / ".incomplete"]
    hub.faults["GET", ONE] = ["cut"] * 4
    first, out, _ = processes.start(command)
    wait_until(lambda: f"{ONE}: fetching" in out.read_text() and stopped[0].exists(), "the first shard's transfer")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert set(content(tmp_path / "data")) <= {VAL, ONE}
    hub.faults.clear()
    hub.requests.clear()
    both = [processes.start(command) for _ in range(2)]
    assert [process.wait(timeout=60) for process, _, _ in both] == [0, 0]
    assert content(tmp_path / "data") == hub.files
    assert all(count == 1 for count in hub.asked("GET").values())
