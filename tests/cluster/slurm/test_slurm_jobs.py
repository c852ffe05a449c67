"""Jobs on a real Slurm: who owns an allocation, how jobs end, and what is said of each end."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from cluster.slurm.private import PrivateSlurm, remove
from contract.steps import (
    a_ref,
    accepted,
    ended,
    gone,
    observed,
    replay,
    run_of,
    step_of,
    submitted,
    trains,
    until,
)
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.lifecycle.observation import JobState, Rejected
from speedrun_operator.recipes.recipe import Stage, Step

STUBBORN = Step(
    name="stubborn",
    stage=Stage.TRAIN,
    run="trap '' TERM\necho step:1/9 train_time:1ms step_avg:1.00ms\nwhile :; do sleep 0.2; done",
)


async def test_a_second_job_of_an_allocation_ends_at_its_first_line(world: PrivateSlurm) -> None:
    ref = a_ref()
    owner = await submitted(world, ref, steps=999, intervalMilliseconds=1000)
    await until(world, ref, trains)
    second = await world.a_second_job(ref)
    await world.job_ends(second)
    assert world.state(second) == "COMPLETED"
    log = world.log(ref).decode()
    assert f"job {second} ends at once: the owner of this allocation is {owner}" in log
    assert log.count("SPEEDRUN attempt") == 1
    seen = await observed(world.backend, ref)
    assert (seen.job_id, seen.state) == (owner, JobState.RUNNING)
    third = await world.a_second_job(ref)
    world.kill_script(owner)
    await world.job_ends(owner)
    await world.job_ends(third)
    last = await until(world, ref, ended)
    assert (last.job_id, last.reason) == (owner, "JobFailed")
    assert accepted(await world.backend.submit(ref, replay())) == owner


async def test_a_second_job_that_waits_says_nothing_of_the_first_ones_end(world: PrivateSlurm) -> None:
    ref = a_ref()
    owner = await submitted(world, ref)
    last = await until(world, ref, ended)
    second = await world.a_second_job(ref, "--hold")
    assert world.state(second) == "PENDING"
    seen = await until(world, ref, ended)
    assert (seen.job_id, seen.reason, seen.ended) == (owner, "Completed", last.ended)
    assert await world.backend.cancel([a_ref()]) is not None and world.state(second) == "PENDING"
    await gone(world, ref)
    assert world.state(second) == "CANCELLED"


async def test_a_job_that_starts_after_the_cancellation_ends_at_once(world: PrivateSlurm) -> None:
    """A submission that was under way when its Speedrun was deleted."""
    ref = a_ref()
    await submitted(world, ref, partition=world.held())
    await gone(world, ref)
    late = await world.a_second_job(ref)
    await world.job_ends(late)
    assert world.state(late) == "COMPLETED"
    log = world.log(ref).decode()
    assert "the owner of this allocation is cancelled" in log and "SPEEDRUN" not in log
    assert "exit" not in world.left(ref)


async def test_a_submission_that_comes_after_the_cancellation_submits_nothing(world: PrivateSlurm) -> None:
    ref = a_ref()
    await world.ran(f"mkdir -p '{world.ledger(ref)}/claim-1'")
    await gone(world, ref)
    outcome = await world.backend.submit(ref, replay())
    assert isinstance(outcome, Rejected) and outcome.reason == "Cancelled"
    assert world.numbers(ref) == []


async def test_a_cancelled_training_ends_soon_and_says_so(world: PrivateSlurm) -> None:
    """The script's trap writes the marker, though a step is running."""
    ref = a_ref()
    number = await submitted(world, ref, steps=999, intervalMilliseconds=1000)
    await until(world, ref, trains)
    world.slurm("scancel", number)
    last = await until(world, ref, ended)
    assert (last.reason, last.message) == ("Cancelled", "the job was cancelled")
    assert last.log and last.log.exit_code == 143
    assert "exit=143" in (world.ledger(ref) / "exit").read_text()


async def test_a_job_that_ignores_its_cancellation_is_gone_when_it_was_killed(world: PrivateSlurm) -> None:
    ref = a_ref()
    number = accepted(await world.backend.submit(ref, replace(replay(), steps=(STUBBORN,))))
    await until(world, ref, trains)
    first = await world.backend.cancel([ref])
    # On a busy machine the kill may have come first: then Slurm says so, too.
    assert first == {world.backend.name_of(ref): False} or world.state(number) == "CANCELLED"
    seen = await observed(world.backend, ref)
    assert seen.job_id == number
    # COMPLETING is no end.
    assert seen.state is JobState.RUNNING or world.state(number) != "COMPLETING"
    await gone(world, ref)
    assert (await until(world, ref, ended)).reason == "Cancelled"


async def test_a_killed_job_has_failed(world: PrivateSlurm) -> None:
    ref = a_ref()
    number = await submitted(world, ref, steps=999, intervalMilliseconds=1000)
    await until(world, ref, trains)
    world.kill_script(number)
    last = await until(world, ref, ended)
    assert (last.job_id, last.reason) == (number, "JobFailed")
    assert last.log and last.log.exit_code is None and run_of(last).exit_code is None


async def test_a_job_whose_training_was_killed_tells_how(world: PrivateSlurm) -> None:
    ref = a_ref()
    dies = Step(name="dies", stage=Stage.TRAIN, run="kill -9 $$")
    await world.backend.submit(ref, replace(replay(), steps=(dies,)))
    last = await until(world, ref, ended)
    assert last.reason == "JobFailed"
    assert last.log and (last.log.exit_code, run_of(last).exit_code) == (137, 137)


async def test_a_failing_run_gives_its_exit_code(world: PrivateSlurm) -> None:
    ref = a_ref()
    await submitted(world, ref, exitCode=7)
    last = await until(world, ref, ended)
    assert last.reason == "JobFailed" and last.log and last.log.exit_code == 7


async def test_a_job_without_its_ledger_fails_without_a_log(world: PrivateSlurm) -> None:
    """The shared file system is not there on the node, or was swept."""
    ref = a_ref()
    await submitted(world, ref, partition=world.held())
    remove(world.ledger(ref))
    world.release()
    last = await until(world, ref, ended)
    assert last.reason == "JobFailed"
    assert last.log is not None and last.log.runs == ()


async def test_a_ledger_that_the_node_cannot_write_ends_the_job(world: PrivateSlurm) -> None:
    ref = a_ref()
    await submitted(world, ref, partition=world.held())
    (world.ledger(ref) / "log").touch()
    await world.ran(f"rm -f '{world.ledger(ref)}/log'; : >'{world.ledger(ref)}/log'; chmod 500 '{world.ledger(ref)}'")
    world.release()
    last = await until(world, ref, ended)
    assert last.reason == "JobFailed"
    assert f"cannot write to {world.ledger(ref)}" in world.log(ref).decode()


async def test_a_log_that_was_replaced_is_read_anew(world: PrivateSlurm) -> None:
    ref = a_ref()
    await submitted(world, ref, steps=300, intervalMilliseconds=20, valLoss="3.2700")
    await until(world, ref, lambda seen: step_of(seen) >= 5)
    os.truncate(world.ledger(ref) / "log", 0)
    (world.ledger(ref) / "log").write_bytes(b"SPEEDRUN run=0 begin\n")
    last = await until(world, ref, ended)
    final = run_of(last).progress.final
    assert final and final.text == "3.2700"
    assert last.log and last.log.exit_code == 0


async def test_every_reason_to_wait_comes_through(world: PrivateSlurm) -> None:
    ref = a_ref()
    number = await submitted(world, ref, partition=world.held())
    await until(world, ref, lambda seen: seen.reason == "PartitionDown")
    world.slurm("scontrol", "hold", number)
    world.release()
    held = await until(world, ref, lambda seen: seen.reason == "JobHeldAdmin")
    assert held.state is JobState.QUEUED
    world.slurm("scontrol", "release", number)
    assert (await until(world, ref, ended)).reason == "Completed"


@pytest.mark.full
async def test_a_job_at_its_time_limit_says_so(world: PrivateSlurm) -> None:
    ref = a_ref()
    await world.backend.submit(ref, replace(replay(steps=999, intervalMilliseconds=1000), time_limit_minutes=1))
    last = await until(world, ref, ended, limit=150)
    assert last.reason == "TimeLimit" and last.log and last.log.exit_code == 143


async def test_many_poll_as_one(world: PrivateSlurm) -> None:
    """Twenty allocations in all states; nothing of one is told of another, though a marker cannot be read."""
    waiting = [a_ref() for _ in range(6)]
    done = [a_ref() for _ in range(6)]
    unknown = [a_ref() for _ in range(6)]
    partition = world.held()
    await asyncio.gather(*(submitted(world, ref, partition=partition) for ref in waiting))
    numbers = await asyncio.gather(*(submitted(world, ref) for ref in done))
    for ref in done:
        await until(world, ref, ended)
    for ref in unknown:
        await world.ran(f"mkdir -p '{world.ledger(ref)}/exit' '{world.ledger(ref)}/owner'")
    everything: list[AllocationRef] = [each for three in zip(done, unknown, waiting, strict=True) for each in three]
    before = world.backend.remote_commands
    snapshot = await world.backend.observe(everything)
    assert world.backend.remote_commands - before == 1
    states = [[snapshot.observed[world.backend.name_of(ref)] for ref in refs] for refs in (waiting, done, unknown)]
    assert {each.state for each in states[0]} == {JobState.QUEUED}
    assert [(each.state, each.job_id, each.log_complete) for each in states[1]] == [
        (JobState.ENDED, number, True) for number in numbers
    ]
    assert {(each.state, each.job_id) for each in states[2]} == {(JobState.UNSEEN, None)}
