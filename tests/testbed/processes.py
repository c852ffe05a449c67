"""Processes that the test bed starts: recorded on disk, recognised safely, ended by id.

A process is known by its pid *and* its start time in clock ticks since boot (field 22 of /proc/PID/stat), so a
pid that the kernel has given to somebody else is never signalled. A zombie counts as ended: where pid 1 reaps
late, `kill -0` still succeeds on one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Children of this process, kept until they have been reaped: a dropped Popen warns, and a zombie stays a zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


class StartFailed(Exception):
    """A part of the bed did not come up. The message names the part, the reason and the end of its log."""

    def __init__(self, part: str, reason: str, log: Path | None = None, lines: int = 20) -> None:
        text = f"{part}: {reason}"
        if log is not None and log.exists():
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            text += f"\n--- end of {log} ---\n" + "\n".join(tail)
        super().__init__(text)


@dataclass(frozen=True)
class Proc:
    """One started process. `ticks` is its start time in clock ticks since boot."""

    name: str
    pid: int
    ticks: int
    log: str


def start_ticks(pid: int) -> int | None:
    """Start time of a living process, or None when it has ended (or is a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    state, threads = fields[0], int(fields[17])
    # A killed process whose first thread is a zombie while others still end holds its ports and files until the last.
    return None if state == "X" or (state == "Z" and threads <= 1) else int(fields[19])


def reap() -> None:
    """Collect the exit status of children that have ended, so that they do not stay zombies."""
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)


def wait_for(what: str, condition: Callable[[], bool], *, timeout: float, poll: float = 0.05) -> None:
    """Return when `condition` holds; raise TimeoutError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(poll)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on now; all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Processes:
    """The processes of one bed, one JSON file each in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.closed = False

    def close(self) -> None:
        """Start nothing more: the bed is being taken down while some thread may still be bringing it up."""
        self.closed = True

    def reopen(self) -> None:
        self.closed = False

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: Path | None = None,
    ) -> Proc:
        """Start `argv` detached (own session, no stdin), stdout and stderr appended to `log`.

        `env` is added to the caller's environment. `user` needs root. A process of that name that still runs is an
        error: stop it first.
        """
        if self.closed:
            raise StartFailed(name, "not started, because the bed is being taken down")
        if self.alive(name):
            raise StartFailed(name, "is running already")
        self.directory.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            child = subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                user=user,
                group=user,
                extra_groups=[] if user else None,
            )
        reap()
        _children[child.pid] = child
        ticks = start_ticks(child.pid)
        if ticks is None:
            raise StartFailed(name, f"ended at once (exit status {child.wait()})", log)
        proc = Proc(name, child.pid, ticks, str(log))
        record = self.directory / f".{name}.new"
        record.write_text(json.dumps(asdict(proc)))
        record.replace(self.directory / f"{name}.json")
        return proc

    def get(self, name: str) -> Proc | None:
        try:
            return Proc(**json.loads((self.directory / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.json"))

    def alive(self, name: str) -> bool:
        proc = self.get(name)
        return proc is not None and start_ticks(proc.pid) == proc.ticks

    def ready(self, name: str, condition: Callable[[], bool], *, timeout: float, poll: float = 0.05) -> None:
        """Wait until `condition` holds; raise StartFailed with the log's end if the process ends or time is up."""
        proc = self.get(name)
        log = Path(proc.log) if proc else None
        deadline = time.monotonic() + timeout
        while not condition():
            if self.closed:
                raise StartFailed(name, "not waited for, because the bed is being taken down")
            if not self.alive(name):
                raise StartFailed(name, "ended while it was starting", log)
            if time.monotonic() > deadline:
                raise StartFailed(name, f"not ready within {timeout:g} s", log)
            time.sleep(poll)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a living process of ours; nothing happens if it has ended."""
        proc = self.get(name)
        if proc is not None and start_ticks(proc.pid) == proc.ticks:
            os.kill(proc.pid, number)

    def stop(self, name: str, *, grace: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds; forget the process. A stopped (SIGSTOP) one is continued."""
        proc = self.get(name)
        if proc is None:
            return
        if start_ticks(proc.pid) == proc.ticks:
            os.kill(proc.pid, signal.SIGTERM)
            os.kill(proc.pid, signal.SIGCONT)
            try:
                wait_for(f"{name} to end", lambda: start_ticks(proc.pid) != proc.ticks, timeout=grace)
            except TimeoutError:
                os.kill(proc.pid, signal.SIGKILL)
                wait_for(f"{name} to end", lambda: start_ticks(proc.pid) != proc.ticks, timeout=10)
        self.forget(name)

    def kill(self, name: str) -> None:
        """SIGKILL at once; forget the process."""
        proc = self.get(name)
        if proc is None:
            return
        self.signal(name, signal.SIGKILL)
        wait_for(f"{name} to end", lambda: start_ticks(proc.pid) != proc.ticks, timeout=10)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Drop the record of a process that has ended, or is about to end by itself."""
        (self.directory / f"{name}.json").unlink(missing_ok=True)
        reap()
