"""The main job, live: a bed, the operator, `kubectl apply`, and what `kubectl get` shows until the run is over.

python -m testbed.demo          bring all up, run examples/smoke.yaml, leave it up to look at
python -m testbed.demo --down   stop the operator (the bed is taken down by `python -m testbed down`)
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.bed import Bed, InUse
from testbed.facts import Facts
from testbed.kubectl import Kubectl, KubectlFailed
from testbed.operator import Operator
from testbed.part import Place
from testbed.processes import StartFailed

EXAMPLE = Path(__file__).parents[2] / "examples" / "smoke.yaml"
NAME = "smoke"
TIMEOUT_SECONDS = 600.0
WIDTHS = (8, 12, 11, 13, 7, 7, 10, 5)  # NAME PHASE VAL_LOSS TRAIN_TIME STEP RUNS BACKEND AGE


def say(line: str) -> None:
    print(f"demo: {line}", file=sys.stderr, flush=True)


def main(demo: Callable[[Place], int] | None = None) -> int:
    """Run a demo, the main one by default; the exit code."""
    place = Place(say=say)
    try:
        if "--down" in sys.argv[1:]:
            stop_operator(place)
            return 0
        return (demo or _demo)(place)
    except (StartFailed, InUse, KubectlFailed, TimeoutError) as error:
        say(str(error))
        return 1
    except PermissionError as error:
        say(f"{error}: the demo and its test bed need root")
        return 1
    except KeyboardInterrupt:
        say("interrupted. What is up stays up: `make demo` goes on from here, `make down` takes it down")
        return 130


def stop_operator(place: Place) -> None:
    if place.processes.get("operator") is not None:
        place.processes.stop("operator", grace=20)
        say("the operator is stopped")


def _demo(place: Place) -> int:
    bed = Bed(place)
    say("bringing the test bed up: API server, Slurm, sshd (10 s; at first it builds Kubernetes and fetches torch)")
    facts = bed.up()
    with bed.claim():
        kubectl = Kubectl(facts.kubectl, facts.kubeconfig)
        operator = Operator(place, facts)
        stop_operator(place)
        operator.install()
        operator.start()
        say(f"the operator runs; its log is {operator.log}")
        kubectl("delete", "-f", str(EXAMPLE), "--ignore-not-found", timeout=180)
        say(f"kubectl apply -f {EXAMPLE.relative_to(Path.cwd()) if EXAMPLE.is_relative_to(Path.cwd()) else EXAMPLE}")
        say(kubectl("apply", "-f", str(EXAMPLE)).strip())
        say("training a small model on this machine's CPU takes about half a minute; kubectl get speedruns:")
        phase = follow(kubectl)
        _farewell(facts, kubectl, operator)
        return 0 if phase == "Succeeded" else 1


def follow(kubectl: Kubectl, look: Callable[[dict[str, Any]], None] = lambda status: None) -> str:
    """Print a line of `kubectl get` whenever it says something new (but for the age); the final phase.

    `look` gets each status.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    told: list[str] = []
    while time.monotonic() < deadline:
        table = _table(kubectl)
        header, row = (_columns(line, table[0]) for line in table)
        if not told:
            print(_line(header), flush=True)
        if row[:-1] != told[:-1]:
            print(_line(row), flush=True)
            told = row
        status: dict[str, Any] = json.loads(kubectl("get", "speedruns", NAME, "-o", "json")).get("status", {})
        look(status)
        if any(each["type"] == "Finished" and each["status"] == "True" for each in status.get("conditions", [])):
            print("\n" + kubectl("get", "speedruns", NAME, "-o", "wide"), flush=True)
            return str(status["phase"])
        time.sleep(0.5)
    raise TimeoutError(f"the run did not end within {TIMEOUT_SECONDS:g} s; look at `kubectl describe speedrun {NAME}`")


def _table(kubectl: Kubectl) -> tuple[str, str]:
    """kubectl's header and row, whose widths differ from call to call."""
    header, row = kubectl("get", "speedruns", NAME).splitlines()
    return header, row


def _columns(line: str, header: str) -> list[str]:
    """The cells of a line of kubectl's table; cells may be empty, so they are cut where the header's words begin."""
    starts = [match.start() for match in re.finditer(r"\S+", header)]
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _line(cells: list[str]) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _farewell(facts: Facts, kubectl: Kubectl, operator: Operator) -> None:
    log = kubectl("get", "speedruns", NAME, "-o", "jsonpath={.status.logPath}")
    print(
        f"""
Look further:
    export KUBECONFIG={facts.kubeconfig} PATH={facts.kubectl.parent}:$PATH
    kubectl describe speedrun {NAME}
    ssh -F {facts["ssh_config"]} training cat {log}
    tail {operator.log}
All of it stays up. Take it down with `make down`; `make clean` also removes the bed's users and state.""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
