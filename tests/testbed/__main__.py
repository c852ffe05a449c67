"""The test bed by hand: `python -m testbed up | status | python | env | down | clean` (with PYTHONPATH=tests)."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from testbed import packages
from testbed.bed import Bed, InUse
from testbed.halves import HALVES
from testbed.jobpython import JobPython
from testbed.node import Node
from testbed.part import PROFILES, STATE, Place
from testbed.processes import StartFailed


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbed", description="The test bed.")
    parser.add_argument("--state", type=Path, default=STATE, help="the bed's directory (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring the bed up and leave it running")
    up.add_argument("--profile", choices=PROFILES, default="default", help="Slurm's timing (default: %(default)s)")
    up.add_argument("--only", choices=HALVES, help="bring up one half")
    commands.add_parser("node", help="start the Kubernetes node of the bed that is up: kubelet, containerd, scheduler")
    commands.add_parser("status", help="one line a process; exit status 1 when something is down")
    commands.add_parser("python", help="print the Python that jobs run with, made first where it is missing")
    commands.add_parser("env", help='exports for a shell: eval "$(python -m testbed env)"')
    for name, text in (("down", "take the bed down"), ("clean", "take it down, remove its state and its users")):
        commands.add_parser(name, help=text).add_argument("--force", action="store_true", help="even if it is in use")
    return parser.parse_args(argv)


def say(line: str) -> None:
    print(f"testbed: {line}", file=sys.stderr, flush=True)


def status(bed: Bed) -> int:
    rows = bed.status()
    for name, pid, alive in rows:
        print(f"{name:26} {pid or '-':>8} {'up' if alive else 'down'}")
    if not rows:
        print("no bed is up")
    return 0 if rows and all(alive for _, _, alive in rows) else 1


def run(args: argparse.Namespace) -> int:
    place = Place(state=args.state, profile=getattr(args, "profile", "default"), say=say)
    bed = Bed(place, getattr(args, "only", None))
    started = time.monotonic()
    match args.command:
        case "up":
            bed.up()
            say(f'up after {time.monotonic() - started:.1f} s; use it with: eval "$(python -m testbed env)"')
        case "node":
            Node(place).start(bed.facts())
        case "status":
            return status(bed)
        case "python":
            packages.install(place)
            print(JobPython(place).up()["job_python"])
        case "env":
            print(bed.facts().exports())
        case "down":
            bed.down(force=args.force)
            say(f"down after {time.monotonic() - started:.1f} s")
        case "clean":
            bed.clean(force=args.force)
            say(f"clean after {time.monotonic() - started:.1f} s")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End as on Ctrl-C: what was started is stopped."""
    raise KeyboardInterrupt


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup it stays ignored
            signal.signal(number, _interrupt)
    try:
        return run(arguments())
    except (StartFailed, InUse) as error:
        say(str(error))
    except PermissionError as error:
        say(f"{error}: the bed needs root")
    except KeyboardInterrupt:
        say("interrupted: what was started has been stopped")
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
