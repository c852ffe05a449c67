"""The progress line on a real terminal, and metrics that are JSON whatever the numbers are."""

import json
import math
import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path

import pytest

from conftest import wait_until
from speedrun_trainer.report import Metrics, Progress


@contextmanager
def terminal() -> Iterator[int]:
    """Standard error is a terminal whose other end is this. Not a fixture: pytest takes stderr back in between."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    with os.fdopen(theirs, "w") as stream, redirect_stderr(stream):
        yield ours
    os.close(ours)


def test_progress_is_one_line_that_overwrites_itself() -> None:
    with terminal() as screen:
        progress = Progress(shown=True)
        progress.show(0, 200, loss=math.nan, seconds=0.0)
        progress.show(50, 200, loss=2.5, seconds=10.0)
        progress.end()
        seen = bytearray()

        def ended() -> bool:  # the kernel may hand on what was written in pieces, and later
            with suppress(BlockingIOError):
                seen.extend(os.read(screen, 4096))
            return seen.endswith(b"\n")

        wait_until(ended, "the end of the line")
        first, second = seen.decode().removeprefix("\r").split("\r", 1)
    assert "step 0/200" in first and "\n" not in first
    assert second.startswith(f"{'#' * 5:<20} step 50/200  loss 2.5000  10 s, 30 s to go")


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(shown=True)
    progress.show(1, 2, loss=1.0, seconds=1.0)
    progress.end()
    assert capsys.readouterr() == ("", "")


def test_progress_is_silent_on_other_ranks() -> None:
    with terminal() as screen:
        progress = Progress(shown=False)
        progress.show(1, 2, loss=1.0, seconds=1.0)
        progress.end()
        with pytest.raises(BlockingIOError):
            os.read(screen, 1)


def test_metrics_append_a_line_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    for _ in range(2):
        metrics = Metrics(path)
        metrics.write(step=1, loss=math.inf, name="x")
        assert json.loads(path.read_text().splitlines()[-1]) == {"step": 1, "loss": None, "name": "x"}
        metrics.close()
    assert len(path.read_text().splitlines()) == 2


def test_no_metrics_are_wanted() -> None:
    metrics = Metrics(None)
    metrics.write(step=1)
    metrics.close()


def test_a_full_disk_ends_the_metrics_and_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics(Path("/dev/full"))
    for step in range(2):
        metrics.write(step=step)
    metrics.close()
    assert capsys.readouterr().err == "/dev/full: no more metrics (No space left on device)\n"
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        Metrics(Path("/dev/full"), first="line")
