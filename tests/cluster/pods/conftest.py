"""What the tests of pods use besides the bed: its node, started once for all of them, and whole after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.facts import Facts
from testbed.node import Node
from testbed.part import Place


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
