"""Ends a bed whose owner has died: `python -m testbed.watchdog STATE PID TICKS`, started by the bed itself.

A test run that is killed cannot clean up; this process outlives it, takes the bed down and ends.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from testbed.bed import Bed
from testbed.part import Place
from testbed.processes import start_ticks


def wait_for_end(pid: int, ticks: int) -> None:
    """Return once the process that started at `ticks` is gone; costs nothing while it lives."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_ticks(pid) == ticks:
            select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


def main(state: str, pid: str, ticks: str) -> None:
    wait_for_end(int(pid), int(ticks))
    Bed(Place(state=Path(state), say=lambda line: print(line, flush=True))).down_for_dead_owner()


if __name__ == "__main__":
    main(*sys.argv[1:])
