"""What the tests of the operator outside of the cluster share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.speedruns import Speedruns
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.outside import Outside
from testbed.part import Place
from testbed.slurm import NODES, Slurm

MakeOperator = Callable[..., Operator]


@pytest.fixture
def outside(bed: Facts, place: Place, tmp_path: Path) -> Iterator[Outside]:
    """A person with a token, and the Platform API."""
    one = Outside(place, bed, tmp_path)
    with one.platform:
        yield one
    one.kubernetes.trust_clients()


@pytest.fixture
def make_operator(bed: Facts, place: Place, outside: Outside) -> Iterator[MakeOperator]:
    """Makes an operator that has the person's settings and no kubeconfig; not started."""
    made: list[Operator] = []

    def make(**settings: str) -> Operator:
        operator = Operator(place, bed, {**outside.settings(), **settings}, "outside")
        operator.install()
        operator.kubeconfig.unlink()
        operator.log.unlink(missing_ok=True)
        made.append(operator)
        return operator

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def slurm(bed: Facts, place: Place) -> Iterator[Slurm]:
    """Slurm, whose nodes take jobs again after the test."""
    part = Slurm(place)
    yield part
    part.command("scontrol", "update", f"nodename={','.join(NODES)}", "state=resume")


@pytest.fixture
def runs(kubectl: Kubectl, namespace: str) -> Speedruns:
    return Speedruns(kubectl, namespace)
