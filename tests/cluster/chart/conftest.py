"""The chart installed into the bed, and the operator run as its pod would be: its account, settings and mounts.

Without a node the pod of the Deployment waits. The operator is a process of the bed instead that gets what the kubelet
would give to the pod: the settings of the release's ConfigMap, the files of the Secrets that the Deployment mounts, and
a token of its ServiceAccount, with exactly its rights. With a node, in the long tests: ../pods/test_chart_pod.py.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.speedruns import Speedruns
from testbed.facts import Facts
from testbed.helm import CHART, Helm
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.operator import TOKEN_SECONDS, Operator
from testbed.part import Place

NAME = "speedrun-operator"


class ChartOperator(Operator):
    """The operator of a release in namespace `home`."""

    def __init__(self, place: Place, facts: Facts, home: str) -> None:
        super().__init__(place, facts, name="chart-operator")
        self.home = home
        self._kubectl = Kubectl(facts.kubectl, facts.kubeconfig)

    def mount(self) -> None:
        """Lay out what the pod of the release's Deployment would see now."""
        spec = self._get("deployment", NAME)["spec"]["template"]["spec"]
        self.directory.mkdir(parents=True, exist_ok=True)
        mounts = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
        for volume in spec["volumes"]:
            where = self.directory / "root" / mounts[volume["name"]].lstrip("/")
            for source in volume.get("projected", {}).get("sources", []):
                if "secret" in source:
                    self._write_secret(source["secret"], where)
        settings = self._get("configmap", NAME)["data"]["settings.yaml"]
        (self.directory / "settings.yaml").write_text(settings)
        account = spec["serviceAccountName"]
        Kubernetes(self.place).service_account_kubeconfig(self.home, account, self.kubeconfig, TOKEN_SECONDS)

    def _write_secret(self, source: dict[str, Any], where: Path) -> None:
        where.mkdir(parents=True, exist_ok=True)
        data = self._get("secret", source["name"])["data"]
        for item in source["items"]:
            file = where / item["path"]
            file.touch(mode=0o600)
            file.write_bytes(base64.b64decode(data[item["key"]]))

    def _get(self, kind: str, name: str) -> dict[str, Any]:
        return dict(json.loads(self._kubectl("get", kind, name, "-n", self.home, "-o", "json")))

    def environment(self) -> dict[str, str]:
        """Beside the release's settings, where things lie on this machine instead of in the pod."""
        login = self.directory / "root" / "etc" / "speedrun" / "login"
        return {
            "SPEEDRUN_CONFIG": str(self.directory / "settings.yaml"),
            "SPEEDRUN_KUBECONFIG": str(self.kubeconfig),
            "SPEEDRUN_LOGIN__KEY_FILE": str(login / "key"),
            "SPEEDRUN_LOGIN__KNOWN_HOSTS_FILE": str(login / "known_hosts"),
            "SPEEDRUN_HEALTH_ADDRESS": f"127.0.0.1:{self._health_port}",
            "SPEEDRUN_METRICS__ADDRESS": "",
            **self.settings,
        }


@dataclass
class Release:
    """A release of the chart that watches one namespace, and what is needed to change it."""

    helm: Helm
    kubectl: Kubectl
    home: str
    watched: str
    values: dict[str, Any]
    operator: ChartOperator
    runs: Speedruns

    def install(self, *flags: str, chart: Path = CHART) -> str:
        """Install or upgrade, and lay out what the pod then sees; what helm prints.

        The CRD may be there already, applied by kubectl.
        """
        said = self.helm.install(self.values, "--take-ownership", *flags, namespace=self.home, chart=chart)
        self.kubectl.wait_established("speedruns.speedrun.dev")
        self.operator.mount()
        return said

    def uninstall(self, *flags: str) -> str:
        return self.helm("uninstall", "speedrun", "-n", self.home, *flags)


@pytest.fixture(scope="session")
def helm(bed: Facts, place: Place) -> Helm:
    """helm as the bed's administrator."""
    return Helm(place, bed.kubeconfig)


@pytest.fixture
def release(bed: Facts, place: Place, helm: Helm, kubectl: Kubectl) -> Iterator[Release]:
    """Not installed yet; its namespaces and the Secrets of its login are there. All of it is gone after the test."""
    with made(bed, place, helm, kubectl) as release:
        yield release


@contextmanager
def made(bed: Facts, place: Place, helm: Helm, kubectl: Kubectl) -> Iterator[Release]:
    """The same for as long as the context lasts."""
    number = uuid.uuid4().hex[:8]
    home, watched = f"system-{number}", f"runs-{number}"
    for name in (home, watched):
        kubectl("create", "namespace", name)
    kubectl(
        "create", "secret", "generic", "login", "-n", home, "--type=kubernetes.io/ssh-auth",
        f"--from-file=ssh-privatekey={bed.ssh_key}", f"--from-file=known_hosts={bed.ssh_known_hosts}",
    )  # fmt: skip
    values = {
        "image": {"repository": "registry.example/speedrun-operator"},
        "watch": {"namespaces": [watched]},
        "login": {
            "host": bed.ssh_host,
            "port": bed.ssh_port,
            "user": bed.ssh_user,
            "keySecret": "login",
            "knownHostsSecret": "login",
        },
        "slurm": {"python": str(bed.job_python), "pollSeconds": 1},
        "logFormat": "text",
    }
    operator = ChartOperator(place, bed, home)
    yield Release(helm, kubectl, home, watched, values, operator, Speedruns(kubectl, watched))
    operator.kill()
    helm("uninstall", "speedrun", "-n", home, "--ignore-not-found", "--no-hooks")
    # Nobody is left to take the finalizers off.
    for name in kubectl("get", "speedruns", "-n", watched, "-o", "name").split():
        kubectl("patch", name, "-n", watched, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("delete", "namespace", home, watched, "--wait=false")
