"""What the fault tests share: parts of the bed to break, which are whole again after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.faults.story import Story
from cluster.faults.world import World
from cluster.speedruns import Speedruns
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.login import Login
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm

MakeOperator = Callable[..., Operator]


@pytest.fixture
def make_operator(bed: Facts, place: Place) -> Iterator[MakeOperator]:
    """`make_operator(name=…, SPEEDRUN_…=…)`: an operator that the test starts; killed after it."""
    made: list[Operator] = []

    def make(name: str = "operator", **settings: str) -> Operator:
        operator = Operator(place, bed, settings, name)
        operator.install()
        made.append(operator)
        return operator

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def login(bed: Facts, place: Place) -> Iterator[Login]:
    part = Login(place)
    yield part
    part.heal()


@pytest.fixture
def slurm(bed: Facts, place: Place) -> Iterator[Slurm]:
    """Slurm, to be broken. Jobs outlive a test that leaves any, for tests of one module may share what takes long."""
    part = Slurm(place)
    yield part
    part.mend()


@pytest.fixture
def world(slurm: Slurm) -> World:
    return World(slurm)


@pytest.fixture
def runs(kubectl: Kubectl, namespace: str) -> Speedruns:
    return Speedruns(kubectl, namespace)


@pytest.fixture
def story(bed: Facts, place: Place, namespace: str) -> Callable[[str], Story]:
    """`with story("name") as told:` follows a Speedrun."""
    return lambda name: Story(Kubernetes(place), namespace, name)
