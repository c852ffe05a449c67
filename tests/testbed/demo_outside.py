"""The demo from outside of the cluster: the operator knows an organization, a cluster and a token, and nothing more.

The Platform API is a stand-in whose cluster comes up step by step; the rest is real, as in the other demo. The stand-in
lives as long as the demo does, so the operator is stopped at its end; the bed stays up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from typing import Any

from testbed.bed import Bed
from testbed.demo import EXAMPLE, follow, main, say, stop_operator
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.outside import FLAGS, Outside
from testbed.part import Place

STEP_SECONDS = 4.0
STEPS: tuple[tuple[str, dict[str, object]], ...] = (
    ("the cluster is active: its nodes are assigned", {"lifecycle": "active"}),
    ("Slurm is ready", {"slurm": "True"}),
    ("Ceph is ready", {"storage_ready": "True"}),
    ("SSH access is ready", {"ssh_ready": True, "ssh_reason": ""}),
)
FIRST: dict[str, object] = {
    "lifecycle": "provisioning",
    "slurm": "False",
    "storage_ready": "False",
    "ssh_ready": False,
    "ssh_reason": "the login node starts",
}


def demo(place: Place) -> int:
    bed = Bed(place)
    say("bringing the test bed up: API server, Slurm, sshd (10 s; at first it builds Kubernetes and fetches torch)")
    facts = bed.up()
    directory = place.state / "person"
    shutil.rmtree(directory, ignore_errors=True)
    with bed.claim():
        outside = Outside(place, facts, directory)
        _change(outside, FIRST)
        with outside.platform:
            return _told(place, facts, outside)


def _told(place: Place, facts: Facts, outside: Outside) -> int:
    kubectl = Kubectl(facts.kubectl, facts.kubeconfig)
    operator = Operator(place, facts, outside.settings())
    stop_operator(place)
    operator.install()
    operator.kubeconfig.unlink()
    kubectl("delete", "-f", str(EXAMPLE), "--ignore-not-found", timeout=180)
    _show(operator, "clusters", FLAGS[0])
    say(f"speedrun-operator run {' '.join(FLAGS)}")
    operator.log.unlink(missing_ok=True)
    operator.start(*FLAGS, wait=False)
    place.processes.ready(operator.name, lambda: "ClusterProvisioning" in operator.log.read_text(), timeout=60)
    say(f"the operator runs, without a kubeconfig, and waits for the cluster; its log is {operator.log}")
    say(kubectl("apply", "-f", str(EXAMPLE)).strip())
    stop = threading.Event()
    console = threading.Thread(target=_come_up, args=(outside, stop), daemon=True)
    console.start()
    try:
        phase = follow(kubectl, _Waits().look)
        _show(operator, "clusters", FLAGS[0])
        _show(operator, "check", *FLAGS)
    finally:
        stop.set()
        stop_operator(place)
    say("the Platform API's stand-in ends with this demo; the bed stays up: `make down` takes it down")
    return 0 if phase == "Succeeded" else 1


class _Waits:
    """Says what is waited for, when that changes."""

    def __init__(self) -> None:
        self._said = ""

    def look(self, status: dict[str, Any]) -> None:
        admitted = next((each for each in status.get("conditions", []) if each["type"] == "Admitted"), None)
        if admitted and admitted["status"] == "False" and admitted["message"] != self._said:
            self._said = admitted["message"]
            say(f"Admitted=False: {admitted['reason']}: {admitted['message']}")


def _come_up(outside: Outside, stop: threading.Event) -> None:
    for words, changes in STEPS:
        if stop.wait(STEP_SECONDS):
            return
        _change(outside, changes)
        say(f"(platform) {words}")


def _change(outside: Outside, changes: dict[str, object]) -> None:
    for name, value in changes.items():
        setattr(outside.platform.state, name, value)


def _show(operator: Operator, *arguments: str) -> None:
    say(f"speedrun-operator {' '.join(arguments)}")
    argv = [sys.executable, "-m", "speedrun_operator.cli", *arguments]
    environment = {**os.environ, **operator.environment()}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    print(done.stdout + done.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(demo))
