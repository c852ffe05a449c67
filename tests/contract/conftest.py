"""The worlds that the contract is tested in: `-k memory` needs no bed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.pods_world import PodsWorld
from contract.worlds import MemoryWorld, SlurmWorld, World, bed_login
from testbed.facts import Facts
from testbed.kubernetes import Kubernetes
from testbed.node import Node
from testbed.operator import Operator
from testbed.part import Place


@pytest.fixture(scope="session")
def pods_place(bed: Facts, place: Place) -> tuple[Kubernetes, Path]:
    """The bed's Kubernetes with its node, and the kubeconfig of an account with the operator's rights."""
    Node(place).start(bed)
    operator = Operator(place, bed)
    operator.install()
    return Kubernetes(place), operator.kubeconfig


@pytest.fixture(params=["memory", "slurm", "pods"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """One place a test: allocations in memory, those of the bed's Slurm through its sshd, or pods on its node."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    bed = request.getfixturevalue("bed")
    if request.param == "pods":
        pods = PodsWorld(*request.getfixturevalue("pods_place"))
        await pods.open()
        yield pods
        await pods.close()
        return
    slurm = SlurmWorld(bed_login(bed), bed.slurm_conf)
    await slurm.open()
    yield slurm
    await slurm.close()
