"""Sequences that were found, each with what it must come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from unit.model import virtual
from unit.model.job import Fate
from unit.model.schedules import Act, Life, live
from unit.model.world import World

SPEC: dict[str, Any] = {"recipe": {"name": "replay"}, "timeLimitSeconds": 600}

FOUND: Mapping[str, tuple[Life, dict[str, Any]]] = {
    "nothing happens": (Life((SPEC,)), {"phase": "Succeeded", "val_loss": 3.27, "train_time": "0.205s"}),
    "its job finished while its submission hung, and it passed its deadline": (
        Life(({**SPEC, "activeDeadlineSeconds": 100},), acts=(Act(0, "commands", with_=("lost",)),)),
        {"phase": "Succeeded", "val_loss": 3.27},
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_found(case: str) -> None:
    life, shows = FOUND[case]

    async def whole() -> None:
        world = await live(life)
        status = world.raw("mine")["status"]
        assert {name: status.get(name) for name in shows} == shows
        world.close()

    virtual.run(whole)


def test_a_submission_that_hangs_holds_up_nobody_else() -> None:
    """sbatch tries again by itself for minutes; the other Speedruns are polled meanwhile."""

    async def whole() -> None:
        world = World()
        world.slurm.fates = [Fate(takes=40), Fate(takes=40)]
        world.start()
        world.api.create("mine", SPEC)
        await world.wait(10)
        world.wire.fates = ["lost"]
        world.api.create("other", SPEC)
        await world.wait(100)
        assert world.raw("mine")["status"]["phase"] == "Succeeded"
        assert world.raw("other")["status"]["phase"] == "Pending"
        world.close()

    virtual.run(whole)
