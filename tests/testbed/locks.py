"""Who may change the bed, and who uses it: two files under flock, so that a dead process never holds anything.

The kernel drops an flock with its holder. What is written into the files is only for messages: pid, start ticks
and command of each holder, believed while such a process lives.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.processes import start_ticks

POLL_SECONDS = 0.2


def describe(pid: int) -> str:
    """`pid 12 (python -m testbed up)`: a process as a person would want it named."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = ""
    return f"pid {pid} ({command[:80]})" if command else f"pid {pid}"


def record_line(pid: int) -> str:
    """The line with which a process signs a lock file."""
    return f"{pid} {start_ticks(pid)}\n"


def living(text: str) -> list[int]:
    """Pids signed in `text` (lines `PID TICKS`) that are still the same living process; other lines are ignored."""
    pids = []
    for line in text.splitlines():
        pid, _, ticks = line.partition(" ")
        if pid.isdecimal() and ticks.isdecimal() and start_ticks(int(pid)) == int(ticks):
            pids.append(int(pid))
    return pids


def signed(path: Path) -> list[str]:
    """Descriptions of the living processes that signed the file; `another process` when none can be named."""
    text = path.read_text() if path.exists() else ""
    return [describe(pid) for pid in living(text)] or ["another process"]


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)


def _try(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_there(descriptor: int, path: Path) -> bool:
    """False when the file was removed (`clean`) after it was opened: a lock on it would exclude nobody."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def exclusive(path: Path, busy: Callable[[str], None]) -> Iterator[None]:
    """Hold `path` alone. While another process has it, `busy` is called once with a description of that process."""
    told = False
    while True:
        descriptor = _open(path)
        try:
            if _try(descriptor, fcntl.LOCK_EX) and _still_there(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, record_line(os.getpid()).encode())
                yield
                return
        finally:
            os.close(descriptor)
        if not told:
            busy(", ".join(signed(path)))
            told = True
        time.sleep(POLL_SECONDS)


class Users:
    """The living processes that use the bed: each holds a shared flock on `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Count this process as a user until the context ends. Call it with the bed's own lock held."""
        descriptor = _open(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.write(descriptor, record_line(os.getpid()).encode())
            yield
        finally:
            os.close(descriptor)

    def living(self) -> list[str]:
        """Descriptions of the users, empty when no living process uses the bed. Ask it before claiming yourself."""
        if not self.path.exists():
            return []
        descriptor = _open(self.path)
        try:
            if _try(descriptor, fcntl.LOCK_EX):
                os.ftruncate(descriptor, 0)
                return []
        finally:
            os.close(descriptor)
        return signed(self.path)
