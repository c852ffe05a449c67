"""From the API server's answer to a create until the job is in squeue, beside a new ssh connection running sbatch.

    python bench/latency.py [--runs 20]

Both are measured in turn in one run, on a test bed of its own. Ends with one line of JSON: `median_s` (ours, seconds),
`bare_median_s` (OpenSSH: connect, authenticate, sbatch), `ratio`, and the operator when nothing is to do:
`idle_rss_mib`, `idle_cpu_percent` (of one core, over `--idle` seconds).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from testbed.bed import Bed
from testbed.facts import Facts
from testbed.kubernetes import Kubernetes
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm

SPEEDRUNS = "/apis/speedrun.dev/v1alpha1/namespaces/default/speedruns"
DEADLINE_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="measurements of each (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=30, help="seconds of idle time measured (default: %(default)s)")
    arguments = parser.parse_args()
    place = Place(say=lambda line: print(f"bench: {line}", file=sys.stderr))
    with Bed(place).hold() as facts:
        # The production period: what is measured is how a submission is made, not how often Slurm is asked.
        operator = Operator(place, facts, {"SPEEDRUN_SLURM__POLL_SECONDS": "10"})
        operator.install()
        operator.start()
        api, slurm = Kubernetes(place), Slurm(place)
        script = _bare_script(facts)
        ours, bare = [], []
        for number in range(arguments.runs):
            ours.append(_ours(api, slurm, f"latency-{number}"))
            bare.append(_bare(facts, script))
        _wait_until_idle(api, arguments.runs)
        rss, cpu = _idle(operator.pid, arguments.idle)
        operator.stop()
    median, bare_median = statistics.median(ours), statistics.median(bare)
    print(f"ours: {min(ours):.3f} to {max(ours):.3f} s; bare: {min(bare):.3f} to {max(bare):.3f} s", file=sys.stderr)
    figures = {
        "bench": "latency",
        "runs": arguments.runs,
        "median_s": round(median, 3),
        "bare_median_s": round(bare_median, 3),
        "ratio": round(median / bare_median, 2),
        "idle_rss_mib": round(rss, 1),
        "idle_cpu_percent": round(cpu, 2),
    }
    print(json.dumps(figures))
    return 0


def _ours(api: Kubernetes, slurm: Slurm, name: str) -> float:
    body = {
        "apiVersion": "speedrun.dev/v1alpha1",
        "kind": "Speedrun",
        "metadata": {"name": name},
        "spec": {"recipe": {"name": "replay", "parameters": {"steps": 1, "intervalMilliseconds": 0}}},
    }
    uid = json.loads(api.call("POST", SPEEDRUNS, body))["metadata"]["uid"]
    began = time.perf_counter()
    while uid not in slurm.command("squeue", "-h", "-t", "all", "-o", "%j").stdout:
        if time.perf_counter() - began > DEADLINE_SECONDS:
            raise TimeoutError(f"{name} was not submitted within {DEADLINE_SECONDS:g} s")
    return time.perf_counter() - began


def _bare_script(facts: Facts) -> list[str]:
    ssh = ["ssh", "-F", facts["ssh_config"], "training"]
    subprocess.run([*ssh, "printf '#!/bin/bash\\ntrue\\n' >bare.sh"], check=True)
    return [*ssh, "sbatch --parsable --mem=64M --output=/dev/null bare.sh"]


def _bare(facts: Facts, command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _wait_until_idle(api: Kubernetes, runs: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        items = json.loads(api.call("GET", SPEEDRUNS))["items"]
        done = [each for each in items if each.get("status", {}).get("phase") == "Succeeded"]
        if len(done) == runs:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(done)} of {runs} runs have succeeded")
        time.sleep(1)


def _idle(pid: int, seconds: float) -> tuple[float, float]:
    """Resident MiB and percent of one core while nothing is to do."""
    began, before = time.monotonic(), _cpu_seconds(pid)
    time.sleep(seconds)
    cpu = 100 * (_cpu_seconds(pid) - before) / (time.monotonic() - began)
    status = Path(f"/proc/{pid}/status").read_text()
    kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
    return kib / 1024, cpu


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
