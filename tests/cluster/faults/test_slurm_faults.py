"""Nodes, jobs and disks fail, and other people handle them, while Speedruns wait and run.

What takes long begins with the module and is looked at by its last tests (`long_waits`); it keeps to the second node,
so that the first is free to fail.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from cluster.faults.slurm_nodes import FIRST, SECOND, declare_dead, drained, on
from cluster.faults.story import ORDER, Story
from cluster.faults.world import World
from cluster.speedruns import Speedruns, condition, quick, slow, speedrun
from cluster.waiting import until
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm

Follow = Callable[[str], Story]


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    operator = Operator(place, bed, {"SPEEDRUN_SLURM__NEVER_AFTER_SECONDS": "15"})
    operator.install()
    operator.start()
    yield operator
    operator.kill()
    assert "Traceback" not in operator.log.read_text()


@pytest.fixture(scope="module")
def long_waits(operator: Operator, kubectl: Kubectl, place: Place) -> Iterator[Speedruns]:
    """`never`, whose time limit is more than its partition allows, and `limit`, which trains longer than it may."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    kubectl("create", "namespace", name)
    runs, world = Speedruns(kubectl, name), World(Slurm(place))
    world.admin("scontrol", "update", "PartitionName=compute-h100", "MaxTime=1")
    never = slow("never") | {"spec": slow("never")["spec"] | {"slurm": {"partition": "compute-h100"}}}
    limit = on(SECOND, slow("limit", 900), timeLimitSeconds=60)
    runs.apply(never, limit)
    runs.wait_phase("limit", "Training")
    yield runs
    world.admin("scontrol", "update", "PartitionName=compute-h100", "MaxTime=UNLIMITED")
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(autouse=True)
def _begun(long_waits: Speedruns) -> None:
    """See the module."""


@pytest.mark.full
def test_a_node_that_is_declared_dead_is_followed_by_another_allocation(
    runs: Speedruns, world: World, story: Follow
) -> None:
    """By an administrator, which Slurm takes for a failure of the node's jobs at once."""
    with story("node") as told:
        runs.apply(on(FIRST, slow("node", 8)))
        first = runs.wait("node", "under way", lambda each: (each.get("step") or 0) >= 2)["job"]
        declare_dead(world, FIRST)
        retried(runs, world, first, "0.421s")
    assert told.phases()[-1] == "Succeeded" and "Failed" not in told.phases()


def test_what_was_finished_before_a_node_died_is_kept(runs: Speedruns, world: World) -> None:
    """Three runs in one allocation, of which the second sees the node die: the next has the second and the third."""
    wanted = slow("series", 4, valLoss="3.2$(RUN)", intervalMilliseconds=600)
    runs.apply(on(FIRST, wanted, runs=3, runsPerAllocation=3))
    first = runs.wait(
        "series", "in its second run", lambda each: (each.get("runsSummary"), each["phase"]) == ("1/3", "Training")
    )["job"]
    declare_dead(world, FIRST)
    waits = runs.wait("series", "waiting for another", lambda each: bool(each.get("nextAttemptTime")))
    assert (waits["phase"], waits["runsSummary"], waits["runs"][0]["val_loss"]) == ("Pending", "1/3", 3.2)
    status = runs.wait_finished("series", timeout=90)
    assert (status["phase"], status["runsSummary"], status["val_loss"]) == ("Succeeded", "3/3", 3.21)
    assert [(each["reason"], each["runs"]) for each in status["allocations"]] == [
        ("NodeFailure", [0, 1, 2]),
        ("Completed", [1, 2]),
    ]
    results = [(each["index"], each["allocation"], each["val_loss"], each["counted"]) for each in status["runs"]]
    assert results == [(0, 0, 3.2, True), (1, 1, 3.21, True), (2, 1, 3.22, True)]
    assert {each["train_time"] for each in status["runs"]} == {"0.221s"}
    uid = runs.get("series")["metadata"]["uid"]
    assert world.starts(uid) == [[first], [status["job"]]]
    assert world.jobs_ever(uid) == sorted([first, status["job"]])
    kept, again = ((each / "log").read_text() for each in world.ledgers(uid))
    began = [re.findall(r"^SPEEDRUN run=(\d) begin", text, re.MULTILINE) for text in (kept, again)]
    assert began == [["0", "1"], ["1", "2"]]
    assert [text.count("val_loss:") for text in (kept, again)] == [1, 2]


@pytest.mark.full
def test_a_node_that_fails_is_followed_by_another_allocation(
    runs: Speedruns, slurm: Slurm, world: World, story: Follow
) -> None:
    """It comes back at once, which Slurm takes for a failure of its jobs."""
    with story("node") as told:
        runs.apply(on(FIRST, slow("node", 12)))
        first = runs.wait("node", "well under way", lambda each: (each.get("step") or 0) >= 10)["job"]
        slurm.fail_node(FIRST)
        slurm.start(FIRST)
        retried(runs, world, first, "0.621s")
    assert told.phases()[-1] == "Succeeded" and "Failed" not in told.phases()


def retried(runs: Speedruns, world: World, first: str, train_time: str) -> None:
    """What a user sees of a retry: the failure, the wait, and a second allocation with the result."""
    waits = runs.wait("node", "waiting for another", lambda each: bool(each.get("nextAttemptTime")))
    assert (waits["phase"], waits["allocations"][0]["reason"]) == ("Pending", "NodeFailure")
    status = runs.wait_finished("node", timeout=90)
    assert (status["phase"], status["train_time"]) == ("Succeeded", train_time)
    assert [each["reason"] for each in status["allocations"]] == ["NodeFailure", "Completed"]
    warned = [text for _, reason, text in runs.events("node") if reason == "NodeFailure"]
    assert warned and warned[0].startswith("the node failed: ") and "; tried again from " in warned[0]
    assert world.starts(runs.get("node")["metadata"]["uid"]) == [[first], [status["job"]]]
    assert seconds_between(status["allocations"][0]["ended"], status["allocations"][1]["claimed"]) >= 9


def seconds_between(one: str, other: str) -> float:
    return (datetime.fromisoformat(other) - datetime.fromisoformat(one)).total_seconds()


@pytest.mark.full
def test_a_node_that_stays_dead_and_no_retries_left(runs: Speedruns, slurm: Slurm) -> None:
    """Slurm says NODE_FAIL after SlurmdTimeout; until then the run is as it was."""
    runs.apply(on(FIRST, slow("dead", 90), backoffLimit=0))
    runs.wait("dead", "under way", lambda each: (each.get("step") or 0) >= 2)
    slurm.fail_node(FIRST)
    status = runs.wait_finished("dead", timeout=120)
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "NodeFailure", 1)
    assert "the node failed" in condition(status, "Finished")["message"]


@pytest.mark.full
def test_a_node_that_fails_each_time_ends_at_the_limit(runs: Speedruns, slurm: Slurm, world: World) -> None:
    runs.apply(on(FIRST, slow("unlucky", 90), backoffLimit=1))
    for number in (0, 1):
        runs.wait(
            "unlucky",
            f"under way in allocation {number}",
            lambda each, number=number: len(each["allocations"]) == number + 1 and (each.get("step") or 0) >= 11,  # type: ignore[misc]
            timeout=90,
        )
        slurm.fail_node(FIRST)
        slurm.start(FIRST)
    status = runs.wait_finished("unlucky", timeout=60)
    assert (status["phase"], status["reason"]) == ("Failed", "BackoffLimitExceeded")
    message = condition(status, "Finished")["message"]
    assert "the node failed" in message and "1" in message
    assert [len(each) for each in world.starts(runs.get("unlucky")["metadata"]["uid"])] == [1, 1]


@pytest.mark.full
def test_a_node_that_is_drained_lets_its_job_end(runs: Speedruns, world: World, story: Follow) -> None:
    with story("drained") as told:
        runs.apply(on(FIRST, slow("drained", 3)))
        runs.wait_phase("drained", "Training")
        with drained(world, FIRST):
            status = runs.wait_finished("drained")
    assert (status["phase"], len(status["allocations"])) == ("Succeeded", 1)
    assert told.never_went_back()


@pytest.mark.full
def test_a_preempted_job_is_followed_by_another_allocation(runs: Speedruns, slurm: Slurm, world: World) -> None:
    slurm.configure(
        "PartitionName=urgent Nodes=slurm-h100-[0-1] PriorityTier=10 Hidden=YES",
        PreemptType="preempt/partition_prio",
        PreemptMode="CANCEL",
    )
    runs.apply(on(FIRST, slow("yields", 8), gpus={"count": 8}, backoffLimit=1))
    runs.wait_phase("yields", "Training")
    world.admin("sbatch", "-p", "urgent", "-w", FIRST, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")
    status = runs.wait("yields", "preempted", lambda each: bool(each.get("nextAttemptTime")))
    assert status["allocations"][0]["reason"] == "Preempted"
    assert runs.wait_finished("yields", timeout=90)["phase"] == "Succeeded"


# Jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("what", ["script", "training"])
def test_killed_processes_are_a_failure_that_is_not_tried_again(what: str, runs: Speedruns, world: World) -> None:
    runs.apply(slow("killed"))
    job = runs.wait_phase("killed", "Training")["job"]
    pids = world.processes(job)
    victims = pids if what == "script" else pids[-1:] if is_sleep(pids[-1]) else pids[-2:]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    status = runs.wait_finished("killed")
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "JobFailed", 1)
    assert "stage train" in condition(status, "Finished")["message"]
    assert "val_loss" not in status


def is_sleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


def test_a_held_job_says_so_and_heals_when_it_is_released(runs: Speedruns, world: World, story: Follow) -> None:
    with story("held") as told:
        with drained(world, FIRST):
            runs.apply(on(FIRST, quick("held")))
            job = runs.wait("held", "submitted", lambda each: bool(each.get("job")))["job"]
            world.admin("scontrol", "hold", job)
            status = runs.wait("held", "held", lambda each: each.get("reason") == "JobHeldAdmin")
            assert status["phase"] == "Queued"
            assert (
                condition(status, "Started")["message"]
                == f"job {job} waits: it is held by an administrator, who must release it"
            )
        world.admin("scontrol", "release", job)
        assert runs.wait_finished("held")["phase"] == "Succeeded"
    assert told.never_went_back()


def test_cancelled_by_somebody_else_is_final(runs: Speedruns, world: World) -> None:
    """BR-014: whoever did it, it is not tried again."""
    runs.apply(slow("stopped"))
    job = runs.wait_phase("stopped", "Training")["job"]
    world.admin("scancel", job)
    status = runs.wait_finished("stopped")
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "Cancelled", 1)
    assert "the job was cancelled" in condition(status, "Finished")["message"]
    assert world.jobs_ever(runs.get("stopped")["metadata"]["uid"]) == [job]


@pytest.mark.full
def test_requeued_by_an_administrator_it_starts_again_from_nothing(
    runs: Speedruns, world: World, story: Follow
) -> None:
    """BR-018: one job, two attempts of its own in one log; the numbers are those of the second."""
    with story("again") as told:
        runs.apply(slow("again", 8))
        job = runs.wait("again", "under way", lambda each: (each.get("step") or 0) >= 2)["job"]
        world.admin("scontrol", "update", f"JobId={job}", "Requeue=1")
        world.admin("scontrol", "requeue", job)
        status = runs.wait_phase("again", "Queued")
        assert "step" not in status and "val_loss" not in status
        until("it may start", lambda: world.state(job) == "PENDING")
        world.slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now")
        status = runs.wait_finished("again")
    assert status["allocations"][0]["requeues"] == 1
    assert f"job {job} ran on " in (words := condition(status, "Started")["message"]) and "requeued 1 time" in words
    told_of = [(type_, text) for type_, reason, text in runs.events("again") if reason == "Requeued"]
    assert told_of == [("Warning", f"job {job} was requeued, not by the operator: it starts again from nothing")]
    assert (status["phase"], status["train_time"], len(status["allocations"])) == ("Succeeded", "0.421s", 1)
    uid = runs.get("again")["metadata"]["uid"]
    assert world.jobs_ever(uid) == [job] and world.starts(uid) == [[job, job]]
    phases = told.phases()
    second = phases[phases.index("Training") + 1 :]
    assert second[0] == "Queued" and second == [each for each in ORDER if each in second], phases
    assert second[-2:] == ["Training", "Succeeded"]


@pytest.mark.full
def test_a_log_that_ends_before_the_last_step_is_no_result(runs: Speedruns, world: World) -> None:
    """BR-024: accounting calls the job completed; the last loss in the log is no result all the same."""
    log = world.write(
        "short.log",
        "step:1200/1750 val_loss:3.2412 train_time:143003ms step_avg:119.17ms\n"
        "slurmstepd: error: *** STEP 48240.0 ON gpu-07 CANCELLED AT 2025-04-02T03:11:09 DUE TO TASK FAILURE ***\n"
        "srun: error: gpu-07: tasks 0-6: Terminated\n",
    )
    runs.apply(speedrun("short", parameters={"log": str(log), "intervalMilliseconds": 10}))
    status = runs.wait_finished("short")
    log.unlink()
    assert (status["phase"], status["reason"]) == ("Failed", "NoResult")
    assert "val_loss" not in status and "result" not in status
    assert status["allocations"][0]["reason"] == "Completed"


# Disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(world: World, operator: Operator) -> Iterator[Path]:
    """A disk of a megabyte of its own where the ledgers go, instead of the one that is there."""
    root = world.home / "speedruns"
    owner = world.home.stat()
    world.admin("mount", "-t", "tmpfs", "-o", f"size=1m,uid={owner.st_uid},gid={owner.st_gid}", "tmpfs", str(root))
    yield root
    until("nobody to use the disk", lambda: world.slurm.command("umount", str(root)).returncode == 0)


@pytest.mark.parametrize("fault", ["full", pytest.param("read-only", marks=pytest.mark.full)])
def test_a_ledger_that_cannot_be_written_is_waited_for(
    fault: str, runs: Speedruns, disk: Path, world: World, story: Follow
) -> None:
    ballast = disk / "ballast"
    if fault == "full":
        fill(ballast)
    else:
        world.admin("mount", "-o", "remount,ro", str(disk))
    with story("written") as told:
        runs.apply(quick("written"))
        status = runs.wait("written", "told", lambda each: each.get("reason") == "StorageUnwritable")
        assert status["phase"] == "Pending"
        said = condition(status, "Submitted")
        assert (said["status"], said["reason"]) == ("False", "StorageUnwritable")
        assert ("No space left" if fault == "full" else "Read-only file system") in said["message"]
        uid = runs.get("written")["metadata"]["uid"]
        assert world.jobs_ever(uid) == []
        if fault == "full":
            ballast.unlink()
        else:
            world.admin("mount", "-o", "remount,rw", str(disk))
        assert runs.wait_finished("written")["phase"] == "Succeeded"
    assert told.never_went_back() and len(world.jobs_ever(uid)) == 1


@pytest.mark.full
def test_a_disk_that_fills_while_it_trains_gives_no_false_result(runs: Speedruns, disk: Path, world: World) -> None:
    """What the log does not hold is no result; the job's end is still seen."""
    runs.apply(quick("fills", steps=2000, intervalMilliseconds=20))
    runs.wait("fills", "under way", lambda each: (each.get("step") or 0) >= 2)
    fill(disk / "ballast")
    log = world.ledgers(runs.get("fills")["metadata"]["uid"])[0] / "log"
    status = runs.wait_finished("fills")
    assert b"val_loss" not in log.read_bytes()
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "JobFailed", 1)
    assert "val_loss" not in status


def fill(path: Path) -> None:
    """Take all space that is left."""
    with pytest.raises(OSError, match="No space left"), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096) if file.tell() < 900_000 else b"\0")


# What takes a minute ----------------------------------------------------------------------------------------------


def test_a_job_that_can_never_run_is_given_up(long_waits: Speedruns, world: World) -> None:
    status = long_waits.wait_finished("never", timeout=90)
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "NeverRuns", 1)
    assert "Slurm will never run this job (PartitionTimeLimit)" in condition(status, "Finished")["message"]
    assert not world.live(status["allocations"][0]["name"])


@pytest.mark.full
def test_a_time_limit_is_told_from_a_failure(long_waits: Speedruns) -> None:
    status = long_waits.wait_finished("limit", timeout=150)
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "TimeLimit", 1)
    assert "raise spec.timeLimitSeconds" in condition(status, "Finished")["message"]
    assert "val_loss" not in status


@pytest.mark.full
def test_ahead_of_the_limit_a_job_is_told_and_says_so_itself(runs: Speedruns, world: World) -> None:
    """From five minutes on Slurm signals the script before the end, so that the log says what ended it."""
    runs.apply(speedrun("told", parameters={"steps": 900, "intervalMilliseconds": 1000}, timeLimitSeconds=300))
    status = runs.wait_phase("told", "Training")
    world.admin("scontrol", "update", f"JobId={status['job']}", "TimeLimit=2")
    status = runs.wait_finished("told", timeout=150)
    assert (status["phase"], status["reason"]) == ("Failed", "TimeLimit")
    log = (world.ledgers(runs.get("told")["metadata"]["uid"])[0] / "log").read_text()
    assert re.search(r"^SPEEDRUN job limit ", log, re.MULTILINE)
