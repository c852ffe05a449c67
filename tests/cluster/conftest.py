"""The bed that the cluster tests share: brought up once, claimed, taken down after the last test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from testbed.bed import Bed
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.part import Place


@pytest.fixture(scope="session")
def place(pytestconfig: pytest.Config) -> Place:
    """Where the bed of this test run lives. What it says is shown at once: a wait would look like a hang."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\ntestbed: {line}", end="", flush=True)

    return Place(profile="fast", say=say)


@pytest.fixture(scope="session")
def bed(place: Place) -> Iterator[Facts]:
    """A whole bed of this run's own."""
    with Bed(place).hold() as facts:
        yield facts


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
