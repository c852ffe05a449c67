"""What the cluster tests use of the bed (../conftest.py)."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Generator, Iterator

import pytest

from testbed import users
from testbed.facts import Facts
from testbed.kubectl import Kubectl, KubectlFailed
from testbed.kubernetes import Kubernetes
from testbed.part import Place
from testbed.processes import wait_for
from testbed.slurm import Slurm

SHOWN = {"speedruns": ("-o", "yaml"), "pods": ("-o", "yaml"), "events": ("-o", "wide", "--sort-by", ".lastTimestamp")}
LOGS = ("operator*.log", "kubelet.log")
LOG_SHOWN = 6000


@pytest.fixture(scope="module", autouse=True)
def nobodys_jobs(bed: Facts, place: Place) -> None:
    """Each file finds Slurm empty, whichever files came before it: what their last tests left is ended."""
    slurm = Slurm(place)
    for user in users.NAMES:
        slurm.command("scancel", "-Q", "-u", user)
    wait_for("Slurm to be empty", lambda: slurm.command("squeue", "-h").stdout == "", timeout=60)


@pytest.fixture
def kubernetes(bed: Facts, place: Place) -> Iterator[Kubernetes]:
    """The API server and its companions, to be broken: all three run and answer again after the test."""
    part = Kubernetes(place)
    yield part
    part.heal()


@pytest.fixture(scope="session")
def kubectl(bed: Facts) -> Kubectl:
    """kubectl as the bed's administrator."""
    return Kubectl(bed.kubectl, bed.kubeconfig)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace for one test."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a failed test's Speedruns, pods and events said: its namespace is gone before anybody can look."""
    report = yield
    names = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and {"place", "kubectl", "namespace"} <= set(names):
        for what, form in SHOWN.items():
            try:
                said = names["kubectl"]("get", what, "-n", names["namespace"], *form)
            except (KubectlFailed, subprocess.TimeoutExpired) as error:
                said = str(error)
            report.sections.append((f"{what} of the test's namespace", said))
        for log in (each for pattern in LOGS for each in sorted(names["place"].logs.glob(pattern))):
            report.sections.append((f"end of {log.name}", log.read_text(errors="replace")[-LOG_SHOWN:]))
    return report
