"""Data folders, and the trainer run as a user runs it: as processes."""

import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

if importlib.util.find_spec("torch") is None:
    raise pytest.UsageError("tests/trainer needs torch: run it with the Python of the jobs, as `make test` does")

from speedrun_trainer.__main__ import main as data_main

REPOSITORY = Path(__file__).parents[2]

# How long an example takes says more of the machine's other work than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def smoke_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke run's own data. Not to be changed by a test."""
    folder = tmp_path_factory.mktemp("smoke")
    assert data_main(["data", "make-synthetic", "--data", str(folder)]) == 0
    return folder


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    """Two training shards of 5,000 tokens and a validation shard of 3,000; a test may damage them."""
    folder = tmp_path / "small"
    small = ["--shard-tokens", "5000", "--val-tokens", "3000"]
    assert data_main(["data", "make-synthetic", "--data", str(folder), *small]) == 0
    return folder


@pytest.fixture(autouse=True)
def keep_sigterm() -> Iterator[None]:
    """A run inside the test's process takes the signal's handler over."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


class Processes:
    """Command lines started by a test. None outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str]) -> tuple[subprocess.Popen[bytes], Path, Path]:
        """The process and its stdout and stderr. It gets a session of its own, so that its children end with it."""
        out, err = (self.folder / f"{len(self.started)}.{name}" for name in ("out", "err"))
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer"), "OMP_NUM_THREADS": "1"}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment, start_new_session=True)
        self.started.append(process)
        return process, out, err

    def run(self, command: list[str], *, within: float = 120) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process, out, err = self.start(command)
        code = process.wait(timeout=within)
        return code, out.read_text(), err.read_text()

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.end()


def wait_until(condition: Callable[[], bool], what: str, *, within: float = 60) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within} s"
        time.sleep(0.05)
