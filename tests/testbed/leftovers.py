"""Processes that the bed did not start itself but that belong to it: found by what stands in their environment.

slurmstepds outlive their slurmd, and a job's processes outlive a killed slurmstepd. Both carry SLURM_CONF of the bed
that they came from, so those of another Slurm on the machine are never touched.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from testbed.processes import start_ticks, wait_for

PAUSE = 0.01  # seconds between two looks


def with_environment(**wanted: str) -> list[int]:
    """Pids of living processes (not our own) whose environment has all of `wanted`."""
    entries = {f"{name}={value}".encode() for name, value in wanted.items()}
    found = []
    for pid in _others():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if entries.issubset(environment):
            found.append(pid)
    return found


def of_user(uid: int) -> list[int]:
    """Pids of the living processes of a user (not our own)."""
    return [pid for pid in _others() if owner(pid) == uid]


def _others() -> list[int]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and start_ticks(pid) is not None]


def program(pid: int) -> str:
    """File name of the program that a process runs; empty when it has ended."""
    try:
        return (Path("/proc") / str(pid) / "exe").readlink().name.removesuffix(" (deleted)")
    except OSError:
        return ""


def owner(pid: int) -> int | None:
    """Uid that a process runs as, None when it has ended."""
    try:
        return (Path("/proc") / str(pid)).stat().st_uid
    except OSError:
        return None


def end(find: Callable[[], Iterable[int]]) -> None:
    """SIGKILL all that `find` finds, again until it finds none twice.

    While we look, a process may start another, and one that is in the middle of its exec shows no environment.
    """
    quiet = 0
    deadline = time.monotonic() + 30
    while quiet < 2:
        quiet = 0 if _end_those(find()) else quiet + 1
        if time.monotonic() > deadline:
            raise TimeoutError("processes start faster than they can be ended")
        if quiet:
            time.sleep(PAUSE)


def _end_those(pids: Iterable[int]) -> bool:
    """SIGKILL each process and wait until it has ended; whether there was one."""
    living = {pid: ticks for pid in pids if (ticks := start_ticks(pid)) is not None}
    for pid in living:
        try:
            os.kill(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue
    for pid, ticks in living.items():
        wait_for(f"process {pid} to end", partial(_has_ended, pid, ticks), timeout=10)
    return bool(living)


def _has_ended(pid: int, ticks: int) -> bool:
    return start_ticks(pid) != ticks
