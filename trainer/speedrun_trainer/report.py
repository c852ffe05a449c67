"""What a run says besides its log: metrics as lines of JSON in a file, and a progress line on a terminal."""

import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO


class Metrics:
    """A line of JSON for each step and each validation, flushed. Does nothing without a path.

    A number that is none (nan, inf) is written as null, since JSON has no word for it. A line that cannot be written
    ends the metrics, with a word on stderr, and not the run: its result is in the log.
    """

    def __init__(self, path: Path | None, **first: float | int | str) -> None:
        """Appends, so that a run that goes on writes into the same file. Raises OSError, also for the first line."""
        self.file: TextIO | None = None
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("a")
            try:
                if first:
                    self._write(first)
            except OSError as error:
                self.close()
                raise OSError(error.errno, error.strerror, str(path)) from error

    def write(self, **values: float | int | str) -> None:
        if self.file is not None:
            try:
                self._write(values)
            except OSError as error:
                print(f"{self.path}: no more metrics ({error.strerror})", file=sys.stderr, flush=True)
                self.close()

    def close(self) -> None:
        if self.file is not None:
            with suppress(OSError):  # what could not be written is tried again
                self.file.close()
            self.file = None

    def _write(self, values: Mapping[str, float | int | str]) -> None:
        finite = {k: v if isinstance(v, str | int) or math.isfinite(v) else None for k, v in values.items()}
        print(json.dumps(finite), file=self.file, flush=True)


class Progress:
    """One line on a terminal that overwrites itself. Silent if stderr is none, or stdout is one: it has the log."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown and sys.stderr.isatty() and not sys.stdout.isatty()

    def show(self, step: int, steps: int, *, loss: float, seconds: float) -> None:
        """`seconds` have passed on the training clock."""
        if self.shown:
            left = seconds / step * (steps - step) if step else 0.0
            bar = "#" * (20 * step // steps)
            text = f"\r{bar:<20} step {step}/{steps}  loss {loss:.4f}  {seconds:.0f} s, {left:.0f} s to go "
            print(text, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.shown:
            print(file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    """Of its message; its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
