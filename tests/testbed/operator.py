"""The operator against a bed: the real program with a service account's rights, started, killed, looked at.

Its process is one of the bed's, so that it ends with the bed whatever happens to whoever started it.
"""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from testbed import ports
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.part import Place
from testbed.processes import start_ticks

NAMESPACE = "speedrun-system"
ACCOUNT = "speedrun-operator"
ROLE = f"{NAMESPACE}:{ACCOUNT}"
RBAC = Path(__file__).with_name("rbac.yaml")
CRD = Path(__file__).parents[2] / "crds" / "speedruns.yaml"
TOKEN_SECONDS = 24 * 3600


class Operator:
    """One operator, the only one of its `name`. `settings` are variables of its environment beyond the bed's."""

    def __init__(
        self, place: Place, facts: Facts, settings: Mapping[str, str] | None = None, name: str = "operator"
    ) -> None:
        self.place = place
        self.facts = facts
        self.name = name
        self.directory = place.state / self.name
        self.log = place.logs / f"{self.name}.log"
        self.settings = dict(settings or {})
        self._health_port = ports.kept_ports(self.directory / "ports.json", ["health"])["health"]

    def install(self) -> None:
        """Apply the CRD and the rights, and mint the kubeconfig."""
        kubectl = Kubectl(self.facts.kubectl, self.facts.kubeconfig)
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD), "-f", str(RBAC))
        kubectl.wait_established("speedruns.speedrun.dev")
        self.directory.mkdir(parents=True, exist_ok=True)
        Kubernetes(self.place).service_account_kubeconfig(NAMESPACE, ACCOUNT, self.kubeconfig, TOKEN_SECONDS)

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def environment(self) -> dict[str, str]:
        """The SPEEDRUN_… variables of this bed."""
        return {
            "SPEEDRUN_KUBECONFIG": str(self.kubeconfig),
            "SPEEDRUN_LOGIN__HOST": self.facts.ssh_host,
            "SPEEDRUN_LOGIN__PORT": str(self.facts.ssh_port),
            "SPEEDRUN_LOGIN__USER": self.facts.ssh_user,
            "SPEEDRUN_LOGIN__KEY_FILE": str(self.facts.ssh_key),
            "SPEEDRUN_LOGIN__KNOWN_HOSTS_FILE": str(self.facts.ssh_known_hosts),
            "SPEEDRUN_SLURM__PYTHON": str(self.facts.job_python),
            "SPEEDRUN_SLURM__POLL_SECONDS": "1",
            "SPEEDRUN_HEALTH_ADDRESS": f"127.0.0.1:{self._health_port}",
            "SPEEDRUN_LOG_FORMAT": "text",
            **self.settings,
        }

    def start(self, *arguments: str, wait: bool = True) -> None:
        """Start `speedrun-operator run ARGUMENTS`; with `wait`, until it is at work.

        Raises StartFailed with the end of its log.
        """
        argv = [sys.executable, "-m", "speedrun_operator.cli", "run", *arguments]
        self.place.processes.start(self.name, argv, log=self.log, env=self.environment())
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        self.place.processes.ready(self.name, self.healthy, timeout=30)

    def stop(self) -> None:
        """SIGTERM; returns when it has ended."""
        self.place.processes.stop(self.name, grace=20)

    def kill(self) -> None:
        """SIGKILL; returns when it has ended."""
        self.place.processes.kill(self.name)

    def pause(self) -> None:
        """Freeze it: its connections stand, it does nothing until `resume`."""
        self.place.processes.signal(self.name, signal.SIGSTOP)

    def resume(self) -> None:
        self.place.processes.signal(self.name, signal.SIGCONT)

    def health(self) -> dict[str, object]:
        """What /healthz says of it."""
        port = self.environment()["SPEEDRUN_HEALTH_ADDRESS"].rpartition(":")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return dict(json.loads(answer.read()))

    @property
    def alive(self) -> bool:
        return self.place.processes.alive(self.name)

    @property
    def pid(self) -> int:
        proc = self.place.processes.get(self.name)
        if proc is None or start_ticks(proc.pid) != proc.ticks:
            raise LookupError("the operator does not run")
        return proc.pid

    def healthy(self) -> bool:
        """Whether it has found API server and CRD, and is at work."""
        try:
            return bool(self.health()["working"])
        except OSError:  # urllib's errors are
            return False
