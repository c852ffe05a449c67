"""The operator's image, built from the Dockerfile, and run on the bed's node as a cluster would run it.

Its root is read-only, it has no capabilities and no directory that it may write to; it comes to the API server with its
service account and to Slurm through the login.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.speedruns import Speedruns, quick
from cluster.waiting import until
from testbed import archives
from testbed.archives import Contents
from testbed.builds import Builder
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.node import Node
from testbed.operator import ACCOUNT, NAMESPACE, Operator
from testbed.part import Place

MOST_BYTES = 350_000_000
OWN_USER = 65532
# As OpenShift gives them: no line of passwd has it, and no file of the image is its own.
ARBITRARY_USER = 1000680000
HEALTH = "127.0.0.1:8080"
KEPT = "speedrun.test/looked-at"


@pytest.fixture(scope="session")
def image(bed: Facts, place: Place) -> str:
    """The name of the image, whose archive is in the cache by now."""
    builder = Builder(place)
    builder.archive("operator")
    return builder.name("operator")


@pytest.fixture(scope="session")
def contents(image: str, place: Place) -> Contents:
    return archives.read(Builder(place).archive("operator"))


@pytest.fixture(scope="module")
def installed(image: str, bed: Facts, place: Place, started_node: Node, kubectl: Kubectl) -> dict[str, Any]:
    """CRD, rights, image and the login's Secret are in place; what every container of it gets."""
    Operator(place, bed).install()
    started_node.load(Builder(place).archive("operator"))
    host = started_node.layout.addresses[0]
    _, kind, key = bed.ssh_known_hosts.read_text().split()[:3]
    secret = {"key": bed.ssh_key.read_text(), "known_hosts": f"[{host}]:{bed.ssh_port} {kind} {key}\n"}
    _apply(kubectl, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": secret})
    environment = {
        # No kube-proxy leads to the Service `kubernetes` here.
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": bed.api_url.rpartition(":")[2],
        "SPEEDRUN_LOGIN__HOST": host,
        "SPEEDRUN_LOGIN__PORT": str(bed.ssh_port),
        "SPEEDRUN_LOGIN__USER": bed.ssh_user,
        "SPEEDRUN_LOGIN__KEY_FILE": "/login/key",
        "SPEEDRUN_LOGIN__KNOWN_HOSTS_FILE": "/login/known_hosts",
        "SPEEDRUN_SLURM__POLL_SECONDS": "1",
        "SPEEDRUN_HEALTH_ADDRESS": HEALTH,
    }
    return {
        "image": image,
        "imagePullPolicy": "Never",
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "login", "mountPath": "/login", "readOnly": True}],
    }


def _pod(name: str, container: dict[str, Any], **security: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": True,
            "hostNetwork": True,
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": OWN_USER,
                "seccompProfile": {"type": "RuntimeDefault"},
                **security,
            },
            "containers": [{"name": "operator", **container}],
            "volumes": [{"name": "login", "secret": {"secretName": "login", "defaultMode": 0o440}}],
        },
    }


def _apply(kubectl: Kubectl, body: dict[str, Any]) -> None:
    kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(body))


@pytest.fixture
def running(installed: dict[str, Any], kubectl: Kubectl) -> Iterator[str]:
    """The operator as its image says: entry point, command and user. Its pod stays until its end was looked at."""
    port = int(HEALTH.rpartition(":")[2])
    probe = {"httpGet": {"host": "127.0.0.1", "port": port, "path": "/healthz"}, "periodSeconds": 1}
    pod = _pod("operator", {**installed, "readinessProbe": probe})
    pod["metadata"]["finalizers"] = [KEPT]
    _apply(kubectl, pod)
    try:
        kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/operator", "--timeout=30s")
        yield "operator"
    finally:
        kubectl("delete", "pod", "operator", "-n", NAMESPACE, "--wait=false", "--ignore-not-found")
        kubectl("patch", "pod", "operator", "-n", NAMESPACE, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        kubectl("wait", "-n", NAMESPACE, "--for=delete", "pod/operator", "--timeout=60s")


def test_it_is_small_and_has_nothing_to_build_or_compute_with(contents: Contents) -> None:
    assert contents.size < MOST_BYTES
    programs = {path.rpartition("/")[2] for path in contents.files if "/bin/" in path or "/sbin/" in path}
    assert "speedrun-operator" in programs and "python3" in programs
    for compiler in ("cc", "gcc", "g++", "c++", "clang", "ld", "as", "make", "cmake", "rustc", "go", "pip", "pip3"):
        assert compiler not in programs
    packages = _packages(contents)
    assert {"kopf", "asyncssh", "speedrun_operator"} <= packages
    assert not {"torch", "numpy", "scipy", "nvidia", "triton", "pip", "setuptools", "pytest", "mypy"} & packages
    assert not [path for path in contents.files if path.endswith((".a", ".o")) or path.startswith("/usr/include/")]


def _packages(contents: Contents) -> set[str]:
    """Names of Python's packages, wherever they lie."""
    found = set()
    for path in contents.files:
        for folder in ("/site-packages/", "/dist-packages/"):
            if folder in path:
                found.add(path.partition(folder)[2].partition("/")[0])
    return found


def test_it_is_labelled_and_runs_as_nobody_in_particular(contents: Contents) -> None:
    config = contents.config
    assert (config["Entrypoint"], config["Cmd"]) == (["speedrun-operator"], ["run"])
    assert (config["User"], config["StopSignal"]) == (f"{OWN_USER}:{OWN_USER}", "SIGTERM")
    labels = {key.rpartition("org.opencontainers.image.")[2]: value for key, value in config["Labels"].items()}
    assert labels["title"] == "speedrun-operator" and labels["licenses"] == "Apache-2.0"
    assert labels["base.name"].startswith("speedrun.test/base@sha256:")


def test_it_runs_a_speedrun_through_and_ends_in_time(running: str, kubectl: Kubectl, namespace: str) -> None:
    helps = kubectl("exec", "-n", NAMESPACE, running, "--", "speedrun-operator", "--help")
    assert "usage: speedrun-operator" in helps
    look = (
        "import os, sys; print(os.getuid()); [os.path.exists(d) and os.access(d, os.W_OK) and sys.exit(d)"
        " for d in ('/', '/tmp', '/opt/speedrun', '/var/tmp', '/run', '/home')]"
    )
    assert kubectl("exec", "-n", NAMESPACE, running, "--", "python3", "-c", look).strip() == str(OWN_USER)
    runs = Speedruns(kubectl, namespace)
    runs.apply(quick("contained"))
    status = runs.wait_finished("contained")
    assert (status["phase"], status["val_loss"], status["reason"]) == ("Succeeded", 3.2782, "TargetReached")
    assert "Traceback" not in kubectl("logs", "-n", NAMESPACE, running)
    kubectl("delete", "pod", running, "-n", NAMESPACE, "--wait=false")
    ended = until("its end", lambda: _ended(kubectl, running), timeout=60)
    # It would not be its own end had its 30 s run out first.
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")


def _ended(kubectl: Kubectl, pod: str) -> dict[str, Any]:
    """How its container ended; empty while it runs."""
    status = json.loads(kubectl("get", "pod", pod, "-n", NAMESPACE, "-o", "json"))["status"]
    statuses = status.get("containerStatuses") or [{}]  # none before the kubelet's first word
    return dict(statuses[0].get("state", {}).get("terminated", {}))


def test_any_user_will_do(installed: dict[str, Any], kubectl: Kubectl) -> None:
    _apply(kubectl, _pod("check", {**installed, "args": ["check"]}, runAsUser=ARBITRARY_USER, runAsGroup=0))
    try:
        until("its end", lambda: _ended(kubectl, "check"))
        said = kubectl("logs", "-n", NAMESPACE, "check")
        assert _ended(kubectl, "check")["exitCode"] == 0, said
        for line in (
            "credential   ok       the pod's service account",
            "rights       ok",
            "login        ok",
            "slurm        ok",
        ):
            assert f"\n{line}" in f"\n{said}"
    finally:
        kubectl("delete", "pod", "check", "-n", NAMESPACE, "--wait=false")
