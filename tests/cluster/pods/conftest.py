"""What the tests of pods use besides the bed: its node, started once for all of them, and whole after each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from cluster.speedruns import Speedruns
from contract.pods_world import PodsWorld
from testbed.facts import Facts
from testbed.image import IMAGE
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.node import CLAIM, Node
from testbed.operator import Operator
from testbed.part import Place

SETTINGS = {
    "SPEEDRUN_PODS__ENABLED": "true",
    "SPEEDRUN_PODS__IMAGE": IMAGE,
    "SPEEDRUN_PODS__PYTHON": "/cache/python/bin/python",
    "SPEEDRUN_PODS__CACHE_VOLUME_CLAIM": CLAIM,
    "SPEEDRUN_PODS__POLL_SECONDS": "1",
    "SPEEDRUN_PODS__GRACE_SECONDS": "2",
    "SPEEDRUN_PODS__GIVE_UP_SECONDS": "3",
}


@pytest.fixture(scope="session")
def started_node(bed: Facts, place: Place) -> Node:
    node = Node(place)
    node.start(bed)
    return node


@pytest.fixture
def node(started_node: Node) -> Iterator[Node]:
    """The node, to be broken: it is ready again after the test."""
    yield started_node
    started_node.heal()


@pytest.fixture
def claimed(node: Node, namespace: str) -> str:
    """A namespace with the cache claim."""
    node.claim(namespace)
    return namespace


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place, started_node: Node) -> Iterator[Operator]:
    """A running operator that makes pods, with a service account's rights."""
    operator = Operator(place, bed, SETTINGS)
    operator.install()
    operator.start()
    yield operator
    operator.stop()


@pytest.fixture
def runs(operator: Operator, kubectl: Kubectl, claimed: str) -> Speedruns:
    return Speedruns(kubectl, claimed)


@pytest.fixture
async def world(node: Node, bed: Facts, place: Place) -> AsyncIterator[PodsWorld]:
    """The backend by itself."""
    installed = Operator(place, bed)
    installed.install()
    world = PodsWorld(Kubernetes(place), installed.kubeconfig)
    await world.open()
    yield world
    await world.close()
