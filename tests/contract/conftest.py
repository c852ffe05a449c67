"""The worlds that the contract is tested in: `-k memory` needs no bed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from contract.worlds import MemoryWorld, SlurmWorld, World, bed_login


@pytest.fixture(params=["memory", "slurm"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """One place a test: allocations in memory, or those of the bed's Slurm through its sshd."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    bed = request.getfixturevalue("bed")
    slurm = SlurmWorld(bed_login(bed), bed.slurm_conf)
    await slurm.open()
    yield slurm
    await slurm.close()
