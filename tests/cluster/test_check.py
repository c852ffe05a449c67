"""`speedrun-operator check` against the bed: all is well, and each fault with its remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from cluster.stale import stale_crd
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import CRD, RBAC, ROLE, Operator
from testbed.part import Place

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(bed: Facts, place: Place) -> Check:
    """Runs the command with an installed operator's settings, changed as asked; its exit code and what it prints."""
    operator = Operator(place, bed)
    operator.install()

    def run(**changes: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "speedrun_operator.cli", "check"]
        environment = {**os.environ, **operator.environment(), **changes}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout

    return run


def test_all_is_well_with_a_service_accounts_rights(check: Check) -> None:
    code, said = check()
    assert code == 0, said
    assert [line.split()[:2] for line in said.splitlines() if not line.startswith("cluster id")] == [
        [subject, "ok"]
        for subject in ("credential", "api", "crd", "rights", "login", "storage", "slurm", "recipe", "recipe")
    ]
    has = "compute-h100: 2 nodes of 8 nvidia_h100 (2 idle); all, the default: 2 nodes of 8 nvidia_h100 (2 idle)"
    assert f"slurm        ok       {has}\n" in said
    assert "gpt2-small runs on 8 GPUs of H100 in partition compute-h100" in said
    assert "modded-nanogpt runs on 8 GPUs of H100 in partition compute-h100; driver: " in said
    assert "served, and it is this version's" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"SPEEDRUN_KUBECONFIG": "/nonexistent"}, "no kubeconfig at /nonexistent"),
        ({"SPEEDRUN_LOGIN__HOST": ""}, "not configured: set login.host"),
        ({"SPEEDRUN_LOGIN__PORT": "1"}, "LoginUnreachable"),
        ({"SPEEDRUN_LOGIN__USER": "nobody"}, "LoginAuthenticationFailed"),
        ({"SPEEDRUN_LOGIN__KEY_FILE": "/nonexistent"}, "LoginKeyUnusable"),
        ({"SPEEDRUN_LOGIN__KNOWN_HOSTS_FILE": "/dev/null"}, "ssh-keyscan"),
        ({"SPEEDRUN_SLURM__ROOT": "/proc/speedruns"}, "/proc/speedruns cannot be written"),
    ],
    ids=["kubeconfig", "host", "port", "user", "key", "known hosts", "root"],
)
def test_each_fault_says_what_to_do(check: Check, changes: dict[str, str], says: str) -> None:
    code, said = check(**changes)
    assert code == 1
    assert any("FAULT" in line and says in line for line in said.splitlines()), said


def test_a_stale_crd_and_missing_rights_are_found(check: Check, kubectl: Kubectl) -> None:
    try:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=stale_crd())
        kubectl("delete", "clusterrolebinding", ROLE)
        deadline = time.monotonic() + 30
        while "not this version's" not in (said := check_line(check, "crd")[1]):
            assert time.monotonic() < deadline, said  # the API server publishes a changed schema after a moment
        assert "FAULT" in said and "speedrun-operator crd | kubectl apply" in said
        code, said = check_line(check, "rights")
        assert code == 1
        assert "patch speedruns/status" in said and "create events" in said
    finally:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD), "-f", str(RBAC))


def test_whether_pods_find_types_of_gpus_by_labels_is_told(check: Check, kubectl: Kubectl) -> None:
    pods = {"SPEEDRUN_PODS__ENABLED": "true", "SPEEDRUN_PODS__IMAGE": "registry.local/trainer:1"}
    try:
        code, said = check_line(check, "gpu labels", **pods)
        assert code == 0 and "the nodes' labels tell" in said
        kubectl("delete", "clusterrolebinding", f"{ROLE}:nodes")
        code, said = check_line(check, "gpu labels", **pods)
        assert code == 0 and "not allowed: list nodes" in said and "rbac.nodes" in said
    finally:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(RBAC))


def check_line(check: Check, subject: str, **changes: str) -> tuple[int, str]:
    code, said = check(**changes)
    return code, next(line for line in said.splitlines() if line.startswith(subject))
