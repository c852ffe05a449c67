"""Five hundred live runs at the production poll period: what they cost, and how old their status is.

    python bench/steady.py [--runs 500] [--seconds 120]

On a test bed of its own. Every run is a real job of the recipe `replay` that is kept waiting for its log's first line
(a named pipe that nobody writes), so that the machine does not measure five hundred sleeping shells; one process
writes a step a second into each job's log, with the time. Ends with one line of JSON: `commands_per_poll` (remote
commands for each poll), `status_age_periods` (median over runs and samples of now minus the log's time of the step that
the status shows, in poll periods) and `cpu_percent` of one core, of the operator.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import statistics
import sys
import threading
import time
import urllib.request
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from _bench import cpu_seconds, create, replay, speedruns

from testbed.bed import Bed
from testbed.kubernetes import Kubernetes
from testbed.operator import Operator
from testbed.part import Place

PERIOD = 10.0
STEPS = 100_000
DEADLINE_SECONDS = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="live runs (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=120, help="how long they are watched (default: %(default)s)")
    arguments = parser.parse_args()
    place = Place(profile="bench", say=lambda line: print(f"bench: {line}", file=sys.stderr))
    with Bed(place).hold() as facts:
        api = Kubernetes(place)
        settings = {"SPEEDRUN_SLURM__POLL_SECONDS": f"{PERIOD:g}", "SPEEDRUN_SLURM__ROOT": "~/steady"}
        operator = Operator(place, facts, settings)
        operator.install()
        user = pwd.getpwnam(facts.ssh_user)
        root = Path(user.pw_dir, "steady")
        shutil.rmtree(root, ignore_errors=True)
        pipe = Path(user.pw_dir, "steady.pipe")
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        shutil.chown(pipe, user.pw_uid, user.pw_gid)
        operator.start()
        create(api, (replay(f"steady-{number}", log=str(pipe)) for number in range(arguments.runs)))
        _until("started", arguments.runs, lambda: len(_logs(root)))
        writer = Writer(_logs(root))
        writer.start()
        _until("shown as training", arguments.runs, lambda: sum(_step(each) > 0 for each in speedruns(api)))
        figures = _watch(api, operator, writer, arguments.seconds)
        writer.stop()
        operator.stop()
        pipe.unlink()
    shutil.rmtree(root)
    print(json.dumps({"bench": "steady", "runs": arguments.runs, **figures}))
    return 0


class Writer(threading.Thread):
    """Writes all logs: every second the next step in each."""

    def __init__(self, logs: list[Path]) -> None:
        super().__init__(daemon=True)
        self._logs = logs
        self._ended = threading.Event()
        self.times: list[float] = []  # of each step, the moment in which the last log had it

    def run(self) -> None:
        files = [path.open("ab", buffering=0) for path in self._logs]
        begin = time.time()
        for file in files:
            file.write(b"Compiling model (replay)\nResetting Model\n")
        while not self._ended.wait(max(0.0, begin + len(self.times) - time.time())):
            step = len(self.times) + 1
            for file in files:
                file.write(f"step:{step}/{STEPS} train_time:{1000 * step}ms step_avg:1000.00ms\n".encode())
            self.times.append(time.time())
        for file in files:
            file.close()

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _watch(api: Kubernetes, operator: Operator, writer: Writer, seconds: float) -> dict[str, float]:
    before, cpu, began = _counts(operator), cpu_seconds(operator.pid), time.monotonic()
    ages: list[float] = []
    while time.monotonic() - began < seconds:
        time.sleep(3.7)  # not in step with the polls
        items, now = speedruns(api), time.time()
        ages += [now - writer.times[min(_step(each), len(writer.times)) - 1] for each in items if _step(each)]
    after = _counts(operator)
    used = 100 * (cpu_seconds(operator.pid) - cpu) / (time.monotonic() - began)
    polls = after["polls"] - before["polls"]
    worst = sorted(ages)[bisect_right(range(len(ages)), len(ages) * 95 // 100) - 1]
    print(f"bench: {polls} polls, {len(ages)} samples, 95 in 100 no older than {worst:.1f} s", file=sys.stderr)
    return {
        "polls": polls,
        "commands_per_poll": round((after["remote_commands"] - before["remote_commands"]) / polls, 2),
        "status_age_periods": round(statistics.median(ages) / PERIOD, 2),
        "cpu_percent": round(used, 1),
    }


def _logs(root: Path) -> list[Path]:
    return sorted(root.glob("default/*/alloc-*/log"))


def _step(speedrun: dict[str, dict[str, int]]) -> int:
    return speedrun.get("status", {}).get("step") or 0


def _counts(operator: Operator) -> dict[str, int]:
    address = operator.environment()["SPEEDRUN_HEALTH_ADDRESS"]
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as answer:
        counts: dict[str, int] = json.load(answer)
    return counts


def _until(what: str, count: int, look: Callable[[], int]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := look()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {found} of {count} were {what} within {DEADLINE_SECONDS:g} s")
        time.sleep(1)
    print(f"bench: {count} {what}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
