"""Install Debian packages without letting any of their services start: `python -m testbed.apt NAME...`.

Debian starts a service as soon as its package is installed, unless /usr/sbin/policy-rc.d says no. This program puts
such a file there while it works and puts the machine's own back when it ends. It is a program of its own so that it
finishes this even if whoever called it dies; what it leaves behind when it is killed itself, `put_policy_back` mends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

POLICY = Path("/usr/sbin/policy-rc.d")
SAVED = POLICY.with_name("policy-rc.d.speedrun-testbed-saved")
MARK = "# speedrun-testbed: no service starts while its package is being installed"
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "NEEDRESTART_SUSPEND": "1"}
OPTIONS = (
    "--no-install-recommends",
    "-oDPkg::Lock::Timeout=300",
    "-oDpkg::Options::=--force-confdef",
    "-oDpkg::Options::=--force-confold",
)


class Failed(Exception):
    """A command failed; the message says which and what it means."""


def put_policy_back() -> None:
    """Give the machine its own policy-rc.d again, or none if it had none. Nothing happens when ours is not there."""
    if SAVED.exists() or SAVED.is_symlink():
        SAVED.replace(POLICY)
    elif POLICY.is_file() and MARK in POLICY.read_text(errors="replace"):
        POLICY.unlink()


@contextmanager
def no_service_starts() -> Iterator[None]:
    """Forbid starting services while the context lasts."""
    try:
        if POLICY.exists() or POLICY.is_symlink():
            POLICY.rename(SAVED)
        POLICY.write_text(f"#!/bin/sh\n{MARK}\nexit 101\n")
        POLICY.chmod(0o755)
        yield
    finally:
        put_policy_back()


def run(argv: list[str], failure: str) -> None:
    """Run a command to its end, also when we are told to stop: dpkg must not outlive the policy it works under."""
    print(f"\n$ {' '.join(argv)}", flush=True)
    running = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}, process_group=0)
    try:
        status = running.wait()
    except BaseException:
        running.send_signal(signal.SIGINT)  # apt stops fetching at once, but lets dpkg finish what it has begun
        running.wait()
        raise
    if status != 0:
        raise Failed(f"{failure} (exit status {status})")


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main(names: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        with no_service_starts():
            run(["dpkg", "--configure", "-a"], "an interrupted installation could not be completed")
            run(["apt-get", "update"], "`apt-get update` failed: is Debian's package mirror reachable?")
            run(["apt-get", "install", "-y", *OPTIONS, *names], "`apt-get install` failed")
    except Failed as failure:
        print(failure, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
