"""Sequences that were found, or were feared, each with what it must come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from speedrun_operator.resync import TOUCH
from unit.model import virtual
from unit.model.job import Fate
from unit.model.schedules import Act, Life, live
from unit.model.world import RESYNC, World

SPEC: dict[str, Any] = {"recipe": {"name": "replay"}, "timeLimitSeconds": 1200}
WELL = {"phase": "Succeeded", "val_loss": 3.27}
LONG = Fate(takes=300)

FOUND: Mapping[str, tuple[Life, dict[str, Any]]] = {
    "nothing happens": (Life((SPEC,)), {**WELL, "train_time": "0.205s"}),
    "its job finished while its submission hung, and it passed its deadline": (
        Life(({**SPEC, "activeDeadlineSeconds": 100},), acts=(Act(0, "commands", with_=("lost",)),)),
        WELL,
    ),
    "sbatch takes its time after the connection was cut": (
        Life((SPEC,), acts=(Act(0, "commands", with_=("left",)), Act(0, "sbatch", with_=("slow",)))),
        {**WELL, "job": "19"},
    ),
    "sbatch took the job and did not say so": (
        Life((SPEC,), acts=(Act(0, "sbatch", with_=("taken",)),)),
        {**WELL, "job": "19"},
    ),
    "the answer of a submission is lost": (
        Life((SPEC,), acts=(Act(0, "commands", with_=("cut after",)),)),
        {**WELL, "job": "19"},
    ),
    "a submission is cut between claim and sbatch": (
        Life((SPEC,), acts=(Act(0, "commands", with_=("cut at 4",)),)),
        {**WELL, "job": "19"},
    ),
    "the controller is away for longer than a lost job is waited for": (
        Life((SPEC,), fates=(Fate(takes=500),), acts=(Act(30, "controller down", span=400),)),
        {**WELL, "job": "19"},
    ),
    "squeue and sacct answer nothing, with an exit code of 0, for longer than that": (
        Life((SPEC,), fates=(Fate(takes=500),), acts=(Act(30, "programs silent", span=400),)),
        {**WELL, "job": "19"},
    ),
    "they do, and the log of its job is quiet all the while": (
        Life((SPEC,), fates=(Fate(takes=1400),), acts=(Act(10, "programs silent", span=340),)),
        {**WELL, "job": "19"},
    ),
    "they do, and an old claim is looked up": (
        Life(
            (SPEC,),
            fates=(Fate(waits=700),),
            acts=(
                Act(0, "commands", with_=("left",)),
                Act(0, "sbatch", with_=("taken",)),
                Act(3, "programs silent", 500),
            ),
        ),
        {**WELL, "job": "19"},
    ),
    "the login is away for longer than that": (
        Life((SPEC,), fates=(Fate(takes=500),), acts=(Act(30, "login down", span=400),)),
        {**WELL, "job": "19"},
    ),
    "a node fails, squeue forgets the job at once, and accounting is late": (
        Life(({**SPEC, "backoffLimit": 0},), fates=(Fate(trouble="node"),), min_age=3, lag=90),
        {"phase": "Failed", "reason": "NodeFailure"},
    ),
    "it is preempted, squeue forgets the job at once, and accounting is late": (
        Life(({**SPEC, "backoffLimit": 0},), fates=(Fate(trouble="preempt"),), min_age=3, lag=90),
        {"phase": "Failed", "reason": "Preempted"},
    ),
    "preempted, and tried again": (Life((SPEC,), fates=(Fate(trouble="preempt"),)), {**WELL, "job": "20"}),
    "the controller forgets the job": (
        Life((SPEC,), fates=(LONG,), acts=(Act(30, "controller down", 5, "forgets"),)),
        {**WELL, "job": "19"},
    ),
    "requeued, and then the controller forgets it": (
        Life((SPEC,), fates=(Fate(trouble="requeue", takes=200),), acts=(Act(50, "controller down", 5, "forgets"),)),
        {**WELL, "job": "19"},
    ),
    "a list shows nothing once": (Life((SPEC,), fates=(LONG,), acts=(Act(30, "list stale", 150),)), WELL),
    "Kopf cannot set the finalizer": (Life((SPEC,), acts=(Act(0, "Kopf stuck", 100),)), WELL),
    "suspended while sbatch takes its time and the disk is full": (
        Life(
            (SPEC,),
            acts=(
                Act(0, "commands", with_=("left",)),
                Act(0, "sbatch", with_=("slow",)),
                Act(3, "disk full", 100),
                Act(0, "suspended", 400, "mine"),
            ),
        ),
        {**WELL, "job": "20"},
    ),
    "sbatch stood still for longer than a claim stands: two jobs, and the first to start is the one": (
        Life(
            ({**SPEC, "backoffLimit": 0},),
            fates=(Fate(takes=300, trouble="preempt", after=150),),
            acts=(Act(0, "commands", with_=("left",)), Act(0, "sbatch", span=420, with_=("stopped",))),
        ),
        {"phase": "Failed", "reason": "Preempted"},
    ),
    "its job comes late, and goes before anybody looked: it is waited for from then on": (
        Life(
            (SPEC,),
            fates=(Fate(waits=0, takes=1, trouble="node", after=0.5),),
            acts=(Act(0, "commands", with_=("left",)), Act(0, "sbatch", with_=("slow",))),
            min_age=3,
            accounting="off",
        ),
        {**WELL, "job": "20"},
    ),
    "a status comes late, from an operator that is gone": (
        Life(
            (SPEC,),
            fates=(Fate(takes=20),),
            acts=(Act(12, "requests", with_=("slow",)), Act(5, "operator killed", 1, "stops")),
        ),
        WELL,
    ),
    "the operator's clock is ten minutes ahead of the cluster's, and then the same": (
        Life((SPEC,), fates=(LONG,), acts=(Act(0, "clocks apart", 100, "mine"),)),
        {**WELL, "job": "19"},
    ),
    "ten minutes behind, and its submission hangs": (
        Life(
            (SPEC,),
            fates=(LONG,),
            acts=(Act(0, "clocks apart", 400, "other"), Act(0, "commands", with_=("lost",))),
        ),
        {**WELL, "job": "19"},
    ),
    "a back-up takes it to before its job, which has its result by now": (
        Life((SPEC,), acts=(Act(60, "restored", with_="mine"),)),
        {**WELL, "job": "19"},
    ),
    "a back-up takes it back as its job runs": (
        Life((SPEC,), fates=(LONG,), acts=(Act(100, "restored", with_="mine"),)),
        {**WELL, "job": "19"},
    ),
    "annotations and finalizer are stripped as its job runs": (
        Life(
            (SPEC,),
            fates=(LONG,),
            acts=(Act(100, "annotations stripped", with_="mine"), Act(0, "finalizer changed", with_="mine")),
        ),
        {**WELL, "job": "19"},
    ),
    "the operator is killed as it submits": (
        Life((SPEC,), acts=(Act(0.15, "operator killed", 5, "goes on"),)),
        {**WELL, "job": "19"},
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


def test_only_what_two_lists_show_without_its_finalizer_is_touched() -> None:
    """Kopf sees to a new Speedrun by itself; one that it could not see to waits for a change from outside."""

    async def whole() -> None:
        world = World()
        world.api.create("mine", SPEC)
        world.start()
        await world.wait(60)
        assert world.raw("mine")["metadata"].get("annotations") is None
        world.stream.stuck = True
        world.api.create("other", SPEC)
        await world.wait(RESYNC * 1.2)
        world.stream.stuck = False
        assert world.raw("other")["metadata"].get("annotations") is None
        await world.wait(RESYNC * 1.2)
        assert TOUCH in world.raw("other")["metadata"]["annotations"]
        await world.rests()
        world.close()

    virtual.run(whole)
