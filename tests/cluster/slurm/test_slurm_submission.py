"""Submitting to a real Slurm: one job whatever happens on the way, and refusals in words that a person can act on."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.slurm.private import PrivateSlurm, closed_port
from contract.steps import a_ref, accepted, any_answer, ended, replay, submitted, until
from contract.wire import Wire
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.lifecycle.observation import Accepted, Busy, JobState, Rejected, Unknown
from speedrun_operator.recipes.recipe import Stage, Step

SLOW = '#!/bin/sh\nsleep 0.3\nexec /usr/bin/sbatch "$@"\n'  # so that the other one comes in the middle


async def install(world: PrivateSlurm, sbatch: str) -> None:
    """Put a site's own sbatch before Slurm's. It counts for connections opened after."""
    world.sshd.account.write("bin/sbatch", sbatch).chmod(0o755)
    world.profile('PATH="$HOME/bin:$PATH"\n')


async def claim(world: PrivateSlurm, ref: AllocationRef, age: float) -> Path:
    """What a submission leaves that died after its claim."""
    claim = world.ledger(ref) / "claim-1"
    await world.ran(f"mkdir -p '{claim}'")
    os.utime(claim, (time.time() - age,) * 2)
    return claim


@pytest.mark.parametrize("age", [0, 250])
async def test_a_claim_without_a_job_stands_for_300_seconds(world: PrivateSlurm, age: int) -> None:
    ref = a_ref()
    await claim(world, ref, age)
    outcome = await world.backend.submit(ref, replay())
    assert isinstance(outcome, Unknown) and outcome.reason == "SubmissionUnknown"
    left = int(outcome.message.split()[-2])
    assert 290 - age <= left <= 300 - age
    assert await world.jobs(ref) == []


async def test_an_old_claim_without_a_job_is_followed_by_one_submission(world: PrivateSlurm) -> None:
    """BR-021: where the look-up finds none."""
    """Though two operators find it at the same instant."""
    await install(world, SLOW)
    refs = [a_ref() for _ in range(4)]
    for ref in refs:
        await claim(world, ref, 301)
    other = world.another()
    plan = replay(partition=world.held())
    await asyncio.gather(world.backend.observe([]), other.observe([]))  # both connect
    outcomes = await asyncio.gather(*(each.submit(ref, plan) for ref in refs for each in (world.backend, other)))
    for ref, pair in zip(refs, zip(outcomes[::2], outcomes[1::2], strict=True), strict=True):
        numbers = await world.jobs(ref)
        assert len(numbers) == 1
        assert any(isinstance(each, Accepted) for each in pair)
        assert all(isinstance(each, Unknown) or accepted(each) == numbers[0] for each in pair)
        assert accepted(await world.backend.submit(ref, plan)) == numbers[0]


async def test_two_submissions_at_the_same_instant_make_one_job(world: PrivateSlurm) -> None:
    await install(world, SLOW)
    refs = [a_ref() for _ in range(4)]
    other = world.another()
    plan = replay(partition=world.held())
    await asyncio.gather(world.backend.observe([]), other.observe([]))
    outcomes = await asyncio.gather(*(each.submit(ref, plan) for ref in refs for each in (world.backend, other)))
    assert all(isinstance(each, Accepted | Unknown) for each in outcomes)
    for ref in refs:
        [number] = await world.jobs(ref)
        assert accepted(await other.submit(ref, plan)) == number


@pytest.mark.parametrize("pace", [1])  # or the rest is over before it is looked at
async def test_a_submission_that_times_out_but_was_taken_is_found(world: PrivateSlurm) -> None:
    """BR-021: sbatch says `Socket timed out`, and the job is there."""
    ref, plan = a_ref(), replay(partition=world.held())
    wire = Wire(world.port_of("SlurmctldPort"))
    await wire.open()
    wire.deaf_after = 4000  # only what carries a batch script is longer
    world.configure(SlurmctldPort=wire.port, MessageTimeout=2)
    outcome = await world.backend.submit(ref, plan)
    assert isinstance(outcome, Unknown) and outcome.reason == "SubmissionUnknown"
    assert "Socket timed out" in outcome.message
    again = await world.backend.submit(ref, plan)
    [number] = await world.jobs(ref)
    assert isinstance(again, Busy) and again.reason == "SlurmBusy", "a controller that times out is left alone"
    assert accepted(await world.another().submit(ref, plan)) == number
    assert await world.jobs(ref) == [number]
    await wire.close()


async def test_a_submission_cut_in_the_middle_of_its_files_submits_nothing(world: PrivateSlurm) -> None:
    ref = a_ref()
    plan = replace(replay(), package="asyncssh")
    await world.backend.observe([])
    world.wire.mute_after = 100_000  # past the scripts, within the package
    submitting = asyncio.create_task(world.backend.submit(ref, plan))
    await world.eventually("half the package", lambda: bool(list(world.path(world.root).glob(".incoming-*.0"))))
    world.wire.cut()
    outcome = await submitting
    assert isinstance(outcome, Unknown) and not outcome.reachable
    await world.eventually("the end of what was cut", lambda: not list(world.path(world.root).glob(".incoming-*")))
    assert await world.jobs(ref) == []
    number = accepted(await world.backend.submit(ref, plan))
    last = await until(world, ref, ended)
    assert (last.job_id, last.reason) == (number, "Completed")
    assert (world.ledger(ref) / "run-0/code/asyncssh/client.py").exists()


async def test_without_a_controller_nothing_is_submitted_and_nothing_said(world: PrivateSlurm) -> None:
    ref, other = a_ref(), a_ref()
    number = await submitted(world, ref, partition=world.held())
    world.configure(SlurmctldPort=closed_port(), MessageTimeout=2)
    outcome, snapshot, gone = await asyncio.gather(
        world.backend.submit(other, replay()), world.backend.observe([ref]), world.backend.cancel([ref])
    )
    assert isinstance(outcome, Busy) and isinstance(gone, Unknown)
    for said in (outcome, snapshot.error, gone):
        assert said and (said.reason, said.reachable) == ("SlurmUnreachable", False)
        assert "Unable to contact slurm controller" in said.message
    assert snapshot.observed == {}
    world.configure()
    accepted(await world.backend.submit(other, replay()))
    assert (await until(world, ref, any_answer)).job_id == number


TWO_NODES = replay().slurm.model_copy(update={"node_list": ("slurm-h100-0", "slurm-h100-1")})  # planning refuses it
REFUSED = {
    "partition": (replay(partition="compute-h200"), "Invalid partition name specified"),
    "constraint": (replay(slurm={"constraint": "cu131"}), "Invalid feature specification"),
    "reservation": (replay(slurm={"reservation": "nobodys"}), "Requested reservation is invalid"),
    "nodeList": (replay(slurm={"nodeList": ["node-9"]}), "Invalid node name specified"),
    "exclude": (replay(slurm={"exclude": ["slurm-h100-[0-1]"]}), "Requested node configuration is not available"),
    "two nodes": (replace(replay(), slurm=TWO_NODES), "invalid number of nodes"),
    "GPUs": (replace(replay(), gpu_count=9), "Requested node configuration is not available"),
    "memory": (replace(replay(), memory_mib=2_000_000), "Requested node configuration is not available"),
    "CPUs": (replace(replay(), cpus=65), "Requested node configuration is not available"),
}


async def test_what_slurm_refuses_is_rejected_in_its_words(world: PrivateSlurm) -> None:
    for what, (plan, text) in REFUSED.items():
        ref = a_ref()
        outcome = await world.backend.submit(ref, plan)
        assert isinstance(outcome, Rejected) and text in outcome.message, (what, outcome)
        assert world.left(ref) == [], what
        for number in await world.jobs(ref):  # Slurm 22.05 keeps a row of some of them
            assert world.state(number) == "FAILED", what
        assert not isinstance(await world.backend.submit(ref, plan), Accepted), what


async def test_every_option_reaches_slurm(world: PrivateSlurm) -> None:
    options = {
        "account": "default",
        "qos": "normal",
        "constraint": "gpu&cu128",
        "nodeList": ["slurm-h100-0"],
        "exclude": ["slurm-h100-1"],
        "nice": 7,
    }
    ref = a_ref(name="with.dots")
    plan = replace(replay(partition=world.held(), slurm=options), gpu_count=2)
    number = accepted(await world.backend.submit(ref, plan))
    shown = world.slurm("scontrol", "show", "job", "-o", number)
    for text in (
        f"JobName={world.backend.name_of(ref)}",
        "Comment=speedrun lab/with.dots",
        f"Partition={world.held()}",
        "Account=default",
        "QOS=normal",
        "Features=gpu&cu128",
        "ReqNodeList=slurm-h100-0",
        "ExcNodeList=slurm-h100-1",
        "Nice=7",
        "Requeue=0",
        "TimeLimit=00:11:00",
        "NumNodes=1",
        "MinMemoryNode=64M",
        "gres:gpu:2",
    ):
        assert text in shown, (text, shown)


@pytest.mark.parametrize("root", ["~/speed runs @ 1+1", "~", "{home}/a b/c"])
async def test_roots_may_have_spaces_and_a_tilde(world: PrivateSlurm, root: str) -> None:
    world.root = root.format(home=world.home)
    backend = world.another()
    ref = a_ref()
    accepted(await backend.submit(ref, replay()))
    last = await until(world, ref, ended, backend)
    assert last.reason == "Completed" and last.log and last.log.exit_code == 0
    assert backend.log_path(ref) == f"{world.root}/lab/mine-{ref.identity.uid8}/alloc-0/log"
    assert world.ledger(ref).stat().st_mode & 0o777 == 0o700
    world.root = "~/speedruns"  # the account's home is emptied anyhow; this one is removed


async def test_a_root_that_cannot_be_written_is_said(world: PrivateSlurm) -> None:
    world.root = f"{world.sshd.directory}/not-yours"
    outcome = await world.another().submit(a_ref(), replay())
    assert isinstance(outcome, Busy) and (outcome.reason, outcome.reachable) == ("StorageUnwritable", True)
    assert "not-yours" in outcome.message and "Permission denied" in outcome.message


async def test_a_script_that_cannot_be_written_whole_is_not_submitted(world: PrivateSlurm) -> None:
    ref = a_ref()
    world.profile("ulimit -f 2\n")  # blocks of 1 KiB: as if the disk were full
    outcome = await world.backend.submit(ref, replay())
    assert isinstance(outcome, Busy) and outcome.reason == "StorageUnwritable"
    world.profile("")
    world.sshd.drop_connections()
    await world.eventually("a new connection", lambda: True)
    accepted(await world.another().submit(ref, replay()))


HOSTILE = """
export SBATCH_PARTITION=nowhere SBATCH_TIMELIMIT=99-0 SBATCH_EXCLUSIVE=true SBATCH_REQUEUE=1 SBATCH_EXPORT=NONE
export SQUEUE_FORMAT=%j SQUEUE_STATES=SUSPENDED SQUEUE_PARTITION=all SQUEUE_USERS=root SQUEUE_NAMES=none
export SACCT_FORMAT=JobID SCANCEL_INTERACTIVE=1 SCANCEL_STATE=SUSPENDED SLURM_TIME_FORMAT=relative TZ=Asia/Tokyo
echo '*** Welcome *** 4711'
echo 'sr-noise' >&2
squeue() { echo "4711|RUNNING"; }
export -f squeue
"""


async def test_a_profile_changes_nothing(world: PrivateSlurm) -> None:
    world.profile(HOSTILE)
    ref, other = a_ref(), a_ref()
    look = Step(name="look", stage=Stage.TRAIN, run="env >../env")
    number = accepted(await world.backend.submit(ref, replace(replay(), steps=(look,))))
    last = await until(world, ref, ended)
    assert (last.job_id, last.reason) == (number, "Completed")
    assert last.submitted and last.ended and abs((last.asked - last.submitted).total_seconds()) < 60
    assert "Requeue=0" in world.slurm("scontrol", "show", "job", "-o", number)
    # ours would change what a user's program prints
    environment = (world.ledger(ref) / "env").read_text().splitlines()
    assert {"TZ=Asia/Tokyo", "SLURM_TIME_FORMAT=relative"} <= set(environment)
    await submitted(world, other, partition=world.held())
    gone = await world.backend.cancel([other])
    assert gone == {world.backend.name_of(other): True}


CHATTER = """#!/bin/sh
echo 'Budget check: 1200 GPU hours left'
echo '--> 4 nodes, 32 GPUs: OK' >&2
/usr/bin/sbatch "$@" || exit
echo '8 GPUs are yours'
"""


async def test_a_sites_chatter_around_the_number_is_left_out(world: PrivateSlurm) -> None:
    await install(world, CHATTER)
    ref = a_ref()
    number = accepted(await world.backend.submit(ref, replay(partition=world.held())))
    assert await world.jobs(ref) == [number]


async def test_an_answer_without_a_number_is_quoted_and_looked_up(world: PrivateSlurm) -> None:
    """BR-013: no number is guessed, and the job that there is is found by its name."""
    await install(world, '#!/bin/sh\n/usr/bin/sbatch "$@" >/dev/null && echo request accepted\n')
    ref, plan = a_ref(), replay(partition=world.held())
    outcome = await world.backend.submit(ref, plan)
    assert isinstance(outcome, Unknown) and "request accepted" in outcome.message
    number = accepted(await world.backend.submit(ref, plan))
    assert await world.jobs(ref) == [number]


async def test_another_users_job_of_the_same_name_is_not_ours(world: PrivateSlurm) -> None:
    ref = a_ref()
    name, partition = world.backend.name_of(ref), world.held()
    options = ("--parsable", f"--job-name={name}", f"--partition={partition}", "--wrap=true")
    theirs = world.slurm("sbatch", *options).strip()
    snapshot = await world.backend.observe([ref])
    assert snapshot.observed[name].state is JobState.UNSEEN
    ours = await submitted(world, ref, partition=partition)
    assert ours != theirs
    assert await world.backend.cancel([ref]) == {name: True}
    assert world.state(theirs) == "PENDING"
