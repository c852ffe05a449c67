"""A thousand Speedruns that wait when the operator starts, beside a bare sbatch loop in one ssh connection.

    python bench/burst.py [--runs 1000]

Both on a test bed of its own, with the API server and etcd up: half of the bare submissions, then the operator's, then
the other half. All jobs go to a partition that is down, so that neither shares the machine with jobs that run. A rate
is submissions a second from the first to the last, by the clock of the login node: of the operator by the times at
which the job numbers were written to the ledgers. Ends with one line of JSON: `submitted` and `doubles` (by squeue),
`rate_per_s`, `bare_rate_per_s`, `ratio`; and `cpu_ms`, the operator's CPU time for each submission in that time.
"""

from __future__ import annotations

import argparse
import json
import pwd
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from _bench import cpu_seconds, create, replay, speedruns

from testbed.bed import Bed
from testbed.facts import Facts
from testbed.kubernetes import Kubernetes
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm

PARTITION = "waiting"
OPTIONS = f"--parsable --partition={PARTITION} --ntasks=1 --cpus-per-task=1 --mem=64M --time=11 --comment=bare"
BARE = r"""
printf '#!/bin/bash\ntrue\n' >bare.sh
for ((i = 0; i < COUNT; i++)); do
  sbatch OPTIONS --output=/dev/null bare.sh </dev/null >/dev/null || exit
  echo "$EPOCHREALTIME"
done
"""
DEADLINE_SECONDS = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="Speedruns (default: %(default)s)")
    parser.add_argument("--profile", metavar="FILE", help="write py-spy's samples of the operator (needs py-spy)")
    arguments = parser.parse_args()
    count = arguments.runs
    place = Place(profile="bench", say=lambda line: print(f"bench: {line}", file=sys.stderr))
    with Bed(place).hold() as facts:
        api, slurm = Kubernetes(place), Slurm(place)
        slurm.command("scontrol", "create", f"PartitionName={PARTITION}", "Nodes=ALL", "State=DOWN")
        # The production period: what is measured is how submissions are made, not how often Slurm is asked.
        operator = Operator(place, facts, {"SPEEDRUN_SLURM__POLL_SECONDS": "10", "SPEEDRUN_SLURM__ROOT": "~/burst"})
        operator.install()
        waiting = {"slurm": {"partition": PARTITION}}
        create(api, (replay(f"burst-{number}", waiting, steps=1) for number in range(count)))
        bare = _bare(facts, count // 2)
        cpu, root = _Cpu(operator), Path(pwd.getpwnam(facts.ssh_user).pw_dir, "burst")
        shutil.rmtree(root, ignore_errors=True)
        operator.start()
        sampler = _profiler(operator.pid, arguments.profile)
        began = time.monotonic()
        cpu.start()
        ours = _until_submitted(root, count)
        cpu.stop()
        print(f"bench: all submitted {time.monotonic() - began:.1f} s after the operator's start", file=sys.stderr)
        _until_told(api, count)
        print(f"bench: all told {time.monotonic() - began:.1f} s after it", file=sys.stderr)
        if sampler is not None:
            sampler.send_signal(2)
            sampler.wait()
        uids = {each["metadata"]["uid"] for each in speedruns(api)}
        names = Counter(name for name in _names(slurm) if name.partition("-")[2].partition("-")[2][:36] in uids)
        operator.stop()
        shutil.rmtree(root)
        more = _bare(facts, count - count // 2)
    rate = _rate(ours)
    bare_rate = (len(bare) + len(more) - 2) / (bare[-1] - bare[0] + more[-1] - more[0])
    print(f"bench: bare {_rate(bare):.1f}/s before, {_rate(more):.1f}/s after", file=sys.stderr)
    figures = {
        "bench": "burst",
        "submitted": len(names),
        "doubles": sum(times - 1 for times in names.values()),
        "rate_per_s": round(rate, 1),
        "bare_rate_per_s": round(bare_rate, 1),
        "ratio": round(rate / bare_rate, 2),
        "cpu_ms": round(1000 * cpu.used(ours[0], ours[-1]) / count, 1),
    }
    print(json.dumps(figures))
    return 0


class _Cpu(threading.Thread):
    """The operator's CPU time, looked at five times a second."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(daemon=True)
        self._operator = operator
        self._ended = threading.Event()
        self._seen: list[tuple[float, float]] = []

    def run(self) -> None:
        pid = self._operator.pid
        while not self._ended.is_set():
            self._seen.append((time.time(), cpu_seconds(pid)))
            self._ended.wait(0.2)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def used(self, begin: float, end: float) -> float:
        """Seconds of CPU time between two moments."""
        inside = [seconds for at, seconds in self._seen if begin <= at <= end]
        return inside[-1] - inside[0] if inside else 0.0


def _bare(facts: Facts, count: int) -> list[float]:
    """When each of `count` bare submissions was done."""
    script = BARE.replace("COUNT", str(count)).replace("OPTIONS", OPTIONS)
    command = ["ssh", "-F", facts["ssh_config"], "training", "exec bash -s"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
    times = [float(line) for line in done.stdout.split()]
    if len(times) != count:
        raise RuntimeError(f"the bare loop made {len(times)} of {count} jobs: {done.stderr}")
    return times


def _until_submitted(root: Path, count: int) -> list[float]:
    """When each job's number was written, in order."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        found = list(root.glob("default/*/alloc-*/jobid"))
        if len(found) >= count:
            return sorted(path.stat().st_mtime for path in found)
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(found)} of {count} were submitted in {DEADLINE_SECONDS:g} s")
        time.sleep(1)


def _until_told(api: Kubernetes, count: int) -> None:
    """Until every Speedrun's status has its job's number."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (told := sum("job" in each.get("status", {}) for each in speedruns(api))) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {told} of {count} say their job")
        time.sleep(1)


def _names(slurm: Slurm) -> list[str]:
    done = slurm.command("squeue", "-h", "-t", "all", "-o", "%j")
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.split()


def _profiler(pid: int, path: str | None) -> subprocess.Popen[bytes] | None:
    if path is None:
        return None
    options = ("--pid", str(pid), "--output", path, "--format", "raw", "--rate", "200", "--nonblocking", "--threads")
    return subprocess.Popen(("py-spy", "record", *options))


def _rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


if __name__ == "__main__":
    sys.exit(main())
