"""What every backend promises, each test against every backend: the real ones, and the one in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from contract.steps import (
    accepted,
    any_answer,
    ended,
    gone,
    observed,
    replay,
    run_of,
    runs,
    step_of,
    submitted,
    trains,
    until,
)
from contract.worlds import World
from speedrun_operator.lifecycle.observation import Accepted, Busy, JobState, Rejected, Unknown
from speedrun_operator.progress import ParserState, feed
from speedrun_operator.progress.allocation import AllocationProgress, add


def whole(data: bytes) -> AllocationProgress:
    """What a log says when it is read in one go."""
    progress = AllocationProgress()
    for record in feed(ParserState("modded-nanogpt"), data)[1]:
        progress = add(progress, record)
    return progress


async def test_an_allocation_from_its_submission_to_its_end(world: World) -> None:
    ref = await world.ref("mine")
    outcome = await world.backend.submit(ref, replay(world.somewhere(), steps=5, valLoss="3.2791"))
    assert isinstance(outcome, Accepted)
    first = await observed(world.backend, ref)
    assert (first.job_id, first.state is JobState.UNSEEN) == (outcome.job_id, False)
    last = await until(world, ref, ended)
    assert (last.job_id, last.reason, last.message) == (outcome.job_id, "Completed", None)
    assert last.submitted and last.started and last.ended and last.node
    assert last.submitted <= last.started <= last.ended <= last.asked
    assert outcome.submitted and abs(outcome.submitted - last.submitted) <= timedelta(seconds=10)
    assert last.log and last.log.exit_code == 0
    run = run_of(last)
    assert (run.exit_code, run.progress.step) == (0, 5)
    assert run.progress.final and run.progress.final.text == "3.2791"


async def test_submitting_again_is_no_second_job(world: World) -> None:
    ref = await world.ref("mine")
    first = await submitted(world, ref, world.waits())
    assert await submitted(world, ref, world.waits()) == first
    assert accepted(await world.another().submit(ref, replay(world.waits()))) == first
    assert await world.jobs(ref) == [first]


async def test_submitting_again_after_its_end_is_no_second_job(world: World) -> None:
    ref = await world.ref("mine")
    first = await submitted(world, ref)
    await until(world, ref, ended)
    assert await submitted(world, ref) == first
    assert await world.jobs(ref) == [first]


async def test_an_answer_that_was_lost_is_looked_up(world: World) -> None:
    ref, plan = await world.ref("mine"), replay(world.waits())
    outcome = await world.submit_unheard(ref, plan)
    assert isinstance(outcome, Unknown) and not outcome.reachable
    number = accepted(await world.backend.submit(ref, plan))
    assert await world.jobs(ref) == [number]


async def test_a_lost_answer_is_seen_by_a_poll_too(world: World) -> None:
    ref, plan = await world.ref("mine"), replay(world.somewhere())
    assert isinstance(await world.submit_unheard(ref, plan), Unknown)
    seen = await until(world, ref, ended)
    assert [seen.job_id] == await world.jobs(ref)
    assert seen.reason == "Completed"


async def test_what_waits_is_queued_and_says_why(world: World) -> None:
    ref = await world.ref("mine")
    await submitted(world, ref, world.waits())
    seen = await until(world, ref, lambda seen: seen.reason is not None)
    assert (seen.state, seen.started, seen.node, seen.log_complete) == (JobState.QUEUED, None, None, False)


@pytest.mark.parametrize("moment", ["queued", "running", "ended", "unknown"])
async def test_cancelled_allocations_are_gone(world: World, moment: str) -> None:
    ref = await world.ref("mine")
    if moment == "queued":
        await submitted(world, ref, world.waits())
    elif moment == "running":
        await submitted(world, ref, steps=1000)
        await until(world, ref, runs)
    elif moment == "ended":
        await submitted(world, ref)
        await until(world, ref, ended)
    await gone(world, ref)
    await gone(world, ref)
    seen = await observed(world.backend, ref)
    if moment == "unknown":
        assert (seen.state, seen.fenced) == (JobState.UNSEEN, True)
        return
    last = await until(world, ref, ended)
    assert (last.state, last.reason) == (JobState.ENDED, "Completed" if moment == "ended" else "Cancelled")
    assert (last.started is None) == (moment == "queued")


async def test_cancelling_one_leaves_the_other_alone(world: World) -> None:
    one, other = await world.ref("mine"), await world.ref("mine")
    await submitted(world, one, world.waits())
    await submitted(world, other, world.waits())
    await gone(world, one)
    assert (await observed(world.backend, other)).state is JobState.QUEUED


async def test_an_allocation_that_nobody_knows_is_unseen_and_never_ended(world: World) -> None:
    ref, known = await world.ref("mine"), await world.ref("mine")
    await submitted(world, known)
    since = (await observed(world.backend, ref)).unseen_for
    for _ in range(3):
        await world.passes()
        seen = await observed(world.backend, ref)
        assert (seen.state, seen.job_id, seen.log_complete) == (JobState.UNSEEN, None, False)
        assert seen.unseen_for > since
        since = seen.unseen_for


async def test_another_allocation_of_the_same_speedrun_is_another_job(world: World) -> None:
    ref = await world.ref("mine")
    await submitted(world, ref)
    assert (await observed(world.backend, replace(ref, allocation=1))).state is JobState.UNSEEN


async def test_one_poll_asks_about_all_with_one_command(world: World) -> None:
    refs = [await world.ref("one"), await world.ref("other")]
    numbers = [await submitted(world, ref, world.waits()) for ref in refs]
    before = world.remote_commands()
    snapshot = await world.backend.observe([*refs, await world.ref("mine")])
    after = world.remote_commands()
    assert [snapshot.observed[world.backend.name_of(ref)].job_id for ref in refs] == numbers
    assert len(snapshot.observed) == 3
    if before is not None and after is not None:
        assert after - before == 1


async def test_polling_nothing_is_well(world: World) -> None:
    snapshot = await world.backend.observe([])
    assert (snapshot.observed, snapshot.error, snapshot.behind) == ({}, None, False)


async def test_a_refused_submission_leaves_nothing_behind_and_can_be_corrected(world: World) -> None:
    ref = await world.ref("mine")
    outcome = await world.backend.submit(ref, replay(world.nowhere()))
    assert isinstance(outcome, Rejected) and outcome.reason == "SubmissionRejected"
    assert world.refusal in outcome.message
    assert (await world.jobs(ref), world.left(ref)) == ([], [])
    assert (await observed(world.backend, ref)).state is JobState.UNSEEN
    number = await submitted(world, ref)
    assert (await until(world, ref, ended)).job_id == number


async def test_a_log_arrives_whole_and_once_however_small_the_pieces(world: World) -> None:
    ref = await world.ref("mine")
    await submitted(world, ref, steps=40, intervalMilliseconds=20)
    readers = [world.another(log_bytes=size) for size in (64, 1000, 65536)]
    seen = await asyncio.gather(*(until(world, ref, ended, reader, limit=120) for reader in readers))
    written = whole(world.log(ref))
    run = written.run(0)
    assert run and run.progress.final and run.progress.validations == 1
    assert [each.log for each in seen] == [written] * 3


async def test_what_is_shown_of_a_log_never_runs_backwards(world: World) -> None:
    """Not even after a restart: a log that was not read up to where it is shows nothing yet."""
    ref = await world.ref("mine")
    await submitted(world, ref, steps=60, intervalMilliseconds=20)
    began = await until(world, ref, trains)
    again = await until(world, ref, lambda seen: seen.log is not None, world.another(log_bytes=64), limit=120)
    assert step_of(again) >= step_of(began)


async def test_a_restarted_operator_sees_the_same_end(world: World) -> None:
    ref = await world.ref("mine")
    await submitted(world, ref, valLoss="nan")
    last = await until(world, ref, ended)
    again = await until(world, ref, ended, world.another())
    assert replace(again, asked=last.asked) == last


async def test_forgetting_loses_nothing_but_work(world: World) -> None:
    ref = await world.ref("mine")
    await submitted(world, ref)
    last = await until(world, ref, ended)
    for name in (world.backend.name_of(ref), world.backend.name_of(await world.ref("mine"))):
        world.backend.forget(name)
    again = await until(world, ref, ended)
    assert (again.log, again.reason) == (last.log, last.reason)


async def test_without_an_answer_nothing_is_said_of_anything(world: World) -> None:
    ref, other = await world.ref("mine"), await world.ref("mine")
    number = await submitted(world, ref, world.waits())
    async with world.silence():
        snapshot = await world.backend.observe([ref])
        assert (snapshot.observed, snapshot.error and snapshot.error.reachable) == ({}, False)
        outcome = await world.backend.submit(other, replay(world.somewhere()))
        assert isinstance(outcome, Busy | Unknown) and not outcome.reachable and outcome.message
        assert isinstance(await world.backend.cancel([ref]), Unknown)
    seen = await until(world, ref, any_answer)
    assert (seen.state, seen.job_id) == (JobState.QUEUED, number)
    assert await world.jobs(other) == []
