"""Many submissions at once on a real Slurm: one remote command, an outcome for each, and one job whatever is cut."""

from __future__ import annotations

import asyncio
import time

from cluster.slurm.private import PrivateSlurm
from cluster.slurm.test_slurm_submission import SLOW, install
from contract.steps import a_ref, accepted, replay, submitted
from speedrun_operator.backends.slurm.backend import SlurmBackend
from speedrun_operator.backends.slurm.submitter import AT_ONCE, BATCH
from speedrun_operator.lifecycle.observation import Accepted, Rejected, Unknown

DEADLINE_SECONDS = 60.0


async def test_one_refused_and_one_known_among_many(world: PrivateSlurm) -> None:
    plan = replay(partition=world.held())
    known, refused = a_ref(), a_ref()
    number = await submitted(world, known, partition=world.held())
    others = [a_ref() for _ in range(BATCH - 2)]
    backend = world.another()
    await backend.observe([])  # connects
    before = backend.remote_commands
    async with asyncio.TaskGroup() as group:
        ahead = [group.create_task(backend.submit(a_ref(), plan)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)  # these go alone, whatever comes now goes together
        tasks = [group.create_task(backend.submit(ref, plan)) for ref in (*others[:20], known)]
        bad = group.create_task(backend.submit(refused, replay(partition="compute-h200")))
        tasks += [group.create_task(backend.submit(ref, plan)) for ref in others[20:]]
    assert backend.remote_commands - before <= AT_ONCE + 2
    outcome = bad.result()
    assert isinstance(outcome, Rejected) and "Invalid partition name specified" in outcome.message
    assert world.left(refused) == []
    for ref, task in zip((*others[:20], known, *others[20:]), tasks, strict=True):
        assert await world.jobs(ref) == [accepted(task.result())]
    assert await world.jobs(known) == [number]
    assert all(isinstance(each.result(), Accepted) for each in ahead)


async def test_a_connection_cut_in_the_middle_loses_none_and_doubles_none(world: PrivateSlurm) -> None:
    await install(world, SLOW)
    plan = replay(partition=world.held())
    refs = [a_ref() for _ in range(16)]
    backend = world.another()
    await backend.observe([])
    tasks = [asyncio.create_task(backend.submit(ref, plan)) for ref in refs]
    await world.eventually("a part of the jobs", lambda: len(list(world.path(world.root).glob("*/*/*/jobid"))) >= 7)
    world.sshd.drop_connections()
    outcomes = await asyncio.gather(*tasks)
    for ref, outcome in zip(refs, outcomes, strict=True):
        if isinstance(outcome, Accepted):
            assert await world.jobs(ref) == [outcome.job_id]
        else:
            assert isinstance(outcome, Unknown) and not outcome.reachable
    assert any(isinstance(each, Accepted) for each in outcomes) and any(isinstance(each, Unknown) for each in outcomes)
    again = world.another()
    numbers = await asyncio.gather(*(until_accepted(again, ref, plan) for ref in refs))
    for ref, number in zip(refs, numbers, strict=True):
        assert await world.jobs(ref) == [number]


async def until_accepted(backend: SlurmBackend, ref: object, plan: object) -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not isinstance(outcome := await backend.submit(ref, plan), Accepted):  # type: ignore[arg-type]
        assert time.monotonic() < deadline, outcome
        await asyncio.sleep(0.2)
    return outcome.job_id
