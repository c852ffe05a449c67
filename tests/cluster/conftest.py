"""What the cluster tests use of the bed (../conftest.py)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.part import Place


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
