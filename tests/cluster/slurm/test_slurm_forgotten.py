"""After squeue has forgotten a job (MinJobAge): accounting tells, then the marker in the ledger, and never a guess."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cluster.slurm.private import ACCOUNTING_OFF, PrivateSlurm, closed_port
from contract.steps import a_ref, accepted, ended, observed, replay, submitted, trains, until
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.lifecycle.observation import JobState, Observed, Unknown


@pytest.mark.full
async def test_what_squeue_has_forgotten_is_told_by_others(world: PrivateSlurm) -> None:
    """One wait for MinJobAge serves three jobs: one that ended well, one that was killed, one of a wrong clock."""
    well, killed, ahead = a_ref(), a_ref(), a_ref(since=datetime.now(UTC) + timedelta(hours=14))
    numbers = [await submitted(world, ref, **kind) for ref, kind in ((well, {}), (killed, {"steps": 999}), (ahead, {}))]
    await until(world, killed, trains)
    world.kill_script(numbers[1])
    by_squeue = [await until(world, ref, ended) for ref in (well, killed, ahead)]
    assert [(seen.job_id, seen.reason) for seen in by_squeue] == [
        (numbers[0], "Completed"),
        (numbers[1], "JobFailed"),
        (numbers[2], "Completed"),
    ]
    await world.eventually(
        "squeue to forget them", lambda: not any(world.numbers(ref) for ref in (well, killed, ahead)), limit=60
    )
    await accounting_tells(world, (well, killed, ahead), by_squeue)
    await the_marker_tells(world, well, by_squeue[0])
    await nobody_tells(world, killed)
    await accounting_alone_knows_a_submission(world, well, numbers[0])


async def accounting_tells(world: PrivateSlurm, refs: tuple[AllocationRef, ...], before: list[Observed]) -> None:
    by_sacct = [await until(world, ref, ended) for ref in refs]
    for seen, known in zip(by_sacct, before, strict=True):
        assert replace(seen, asked=known.asked) == known


async def the_marker_tells(world: PrivateSlurm, ref: AllocationRef, before: Observed) -> None:
    for changes in ({"AccountingStoragePort": closed_port()}, ACCOUNTING_OFF):
        world.configure(**changes)
        seen = await observed(world.backend, ref)
        assert (seen.state, seen.job_id, seen.reason) == (JobState.ENDED, before.job_id, before.reason)
        assert seen.ended and before.ended and abs(seen.ended - before.ended) <= timedelta(seconds=2)
        assert (seen.log, seen.log_complete) == (before.log, True)


async def nobody_tells(world: PrivateSlurm, ref: AllocationRef) -> None:
    """A killed job leaves no marker. With accounting off its absence counts; with accounting down nothing is known."""
    assert not (world.ledger(ref) / "exit").exists()
    await observed(world.backend, ref)
    await asyncio.sleep(0.1)
    seen = await observed(world.backend, ref)
    assert (seen.state, seen.log_complete) == (JobState.UNSEEN, False)
    assert seen.unseen_for > timedelta(0)
    world.configure(AccountingStoragePort=closed_port())
    for _ in range(2):
        seen = await observed(world.backend, ref)
        assert (seen.state, seen.unseen_for) == (JobState.UNSEEN, timedelta(0))
    world.configure()
    assert (await until(world, ref, ended)).reason == "JobFailed"


async def accounting_alone_knows_a_submission(world: PrivateSlurm, ref: AllocationRef, number: str) -> None:
    """A submitter that died before it wrote the number down: its claim is old, and the job is long over."""
    for name in ("jobid", "owner"):
        (world.ledger(ref) / name).unlink()
    os.utime(world.ledger(ref) / "claim-1", (time.time() - 301,) * 2)
    world.configure(AccountingStoragePort=closed_port())
    outcome = await world.backend.submit(ref, replay())
    assert isinstance(outcome, Unknown) and "Connection refused" in outcome.message
    world.configure()
    assert accepted(await world.backend.submit(ref, replay())) == number
    assert world.numbers(ref) == []
