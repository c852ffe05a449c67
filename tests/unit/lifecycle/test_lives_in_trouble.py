"""Whole lives with trouble on the way: no answer, unknown outcomes, lost and requeued jobs, restarts, deletion."""

from __future__ import annotations

import pytest

from speedrun_operator.lifecycle.observation import Accepted, Busy, Unknown
from unit.builders import STARTED, TRAINING, JobLog, at, ended, finished_log, queued, running, unseen
from unit.lifecycle.lives import NO_LOGIN, SILENCE, heard, seen, woken
from unit.lifecycle.rows import ACCEPTED, AT_WORK, OPENED, Row, play, play_twice

LOST_AFTER = 300.0


def lost(number: int) -> list[Row]:
    """An allocation that Slurm takes and then knows no more; what follows is another."""
    again = Row(seen(unseen(LOST_AFTER)), "Pending", None, "-Submitted -Started", [number + 1], ["JobLost"])
    return [Row(heard(Accepted("17", at(1))), "Queued", None, tells=["Submitted"]), again]


LIVES: dict[str, list[Row]] = {
    "the login is not configured at first": [
        Row(
            NO_LOGIN,
            "Pending",
            "LoginNotConfigured",
            "-Admitted -Submitted -Started -Finished",
            tells=["LoginNotConfigured"],
        ),
        Row(NO_LOGIN, "Pending", "LoginNotConfigured"),
        OPENED,
    ],
    "the outcome of sbatch is unknown, and the job is found by its name": [
        OPENED,
        Row(
            heard(Unknown("SubmissionUnknown", "sbatch did not say whether it took the job")),
            "Pending",
            "SubmissionUnknown",
            "-Submitted +BackendReachable",
        ),
        Row(seen(unseen(400)), "Pending", "SubmissionUnknown", submits=[0]),
        Row(seen(running(STARTED)), "Preparing", None, "+Submitted +Started", tells=["Submitted", "Started"]),
    ],
    "the outcome is unknown, and the lookup of the second submission finds the job": [
        OPENED,
        Row(heard(Unknown("SubmissionUnknown", "no answer")), "Pending", "SubmissionUnknown"),
        Row(woken(), "Pending", "SubmissionUnknown", submits=[0]),
        ACCEPTED,
    ],
    "Slurm is busy for a while": [
        OPENED,
        Row(
            heard(Busy("SlurmBusy", "MaxJobCount limit reached")),
            "Pending",
            "SlurmBusy",
            "-Submitted +BackendReachable",
        ),
        Row(woken(), "Pending", "SlurmBusy", submits=[0]),
        ACCEPTED,
    ],
    "the login is away when it is to be submitted": [
        OPENED,
        Row(
            heard(Busy("ConnectionRefused", "nobody listens", reachable=False)),
            "Pending",
            "ConnectionRefused",
            "-BackendReachable",
            tells=["ConnectionRefused"],
        ),
        Row(woken(), "Pending", "ConnectionRefused", "-BackendReachable", submits=[0]),
        Row(heard(Accepted("17", at(1))), "Queued", None, "+BackendReachable", tells=["Submitted", "Reachable"]),
    ],
    "Slurm loses a job once": [
        OPENED,
        ACCEPTED,
        Row(seen(unseen(LOST_AFTER - 1)), "Queued", None, "+Submitted", shows={"job": "17"}),
        Row(
            seen(unseen(LOST_AFTER)),
            "Pending",
            None,
            "-Submitted",
            submits=[1],
            tells=["JobLost"],
            shows={"job": None, "runs_summary": "0/1"},
        ),
        Row(heard(Accepted("18", at(400))), "Queued", None, "+Submitted", tells=["Submitted"], shows={"job": "18"}),
        Row(
            seen(ended(finished_log("3.27"), job_id="18")),
            "Succeeded",
            "TargetReached",
            "+Succeeded",
            tells=["Started", "TargetReached"],
            shows={"runs_summary": "1/1"},
        ),
    ],
    "Slurm loses a job that trained: numbers and times begin afresh": [
        *AT_WORK,
        Row(
            seen(unseen(LOST_AFTER)),
            "Pending",
            None,
            submits=[1],
            tells=["JobLost"],
            shows=dict.fromkeys(["val_loss", "train_time", "step", "total_steps", "node", "job"]),
        ),
        Row(heard(Accepted("18", at(400))), "Queued", None, tells=["Submitted"], shows={"job": "18"}),
    ],
    "Slurm loses a job whose log has the result: it counts, and nothing is run again": [
        *AT_WORK,
        Row(
            seen(unseen(LOST_AFTER, log=finished_log("3.27").read())),
            "Succeeded",
            "TargetReached",
            tells=["TargetReached"],
            shows={"runs_summary": "1/1"},
        ),
        Row(woken(), "Succeeded", "TargetReached"),
    ],
    "Slurm loses five jobs and then one more": [
        OPENED,
        *(row for number in range(5) for row in lost(number)),
        ACCEPTED,
        Row(
            seen(unseen(LOST_AFTER)),
            "Failed",
            "JobLost",
            "+Submitted -Started -Succeeded +Finished",
            tells=["JobLost"],
            shows={"runs_summary": "0/1"},
        ),
    ],
    "a lost job while nothing can be submitted waits, and does not fail": [
        *AT_WORK,
        Row(
            lambda status: {**NO_LOGIN(status), **seen(unseen(LOST_AFTER))(status)},
            "Pending",
            "JobLost",
            "-Finished",
            tells=["JobLost"],
        ),
        Row(NO_LOGIN, "Pending", "JobLost", "-Finished"),
        Row(woken(), "Pending", None, "-Submitted", submits=[1]),
    ],
    "requeued by somebody: it starts afresh, and its first attempt leaves no numbers": [
        *AT_WORK,
        Row(
            seen(queued("BeginTime")),
            "Queued",
            "BeginTime",
            "-Started",
            tells=["Requeued"],
            shows=dict.fromkeys(["val_loss", "train_time", "step", "node"]),
        ),
        Row(
            seen(running(JobLog(TRAINING.lines).attempt(17), started=at(200), node="node-b")),
            "Preparing",
            None,
            "+Started",
            tells=["Started"],
            shows={"val_loss": None, "step": None, "node": "node-b"},
        ),
        Row(
            seen(ended(JobLog((*TRAINING.lines, *finished_log("3.27").lines)), node="node-b")),
            "Succeeded",
            "TargetReached",
            tells=["TargetReached"],
        ),
    ],
    "no answer to some polls: what was known stays": [
        *AT_WORK,
        Row(
            SILENCE,
            "Training",
            "LoginUnreachable",
            "+Started -BackendReachable",
            tells=["LoginUnreachable"],
            shows={"val_loss": 10.8258, "step": 5},
        ),
        Row(woken(), "Training", "LoginUnreachable", "-BackendReachable", shows={"val_loss": 10.8258, "step": 5}),
        Row(SILENCE, "Training", "LoginUnreachable", "-BackendReachable"),
        Row(
            seen(running(TRAINING.step(6))),
            "Training",
            None,
            "+BackendReachable",
            tells=["Reachable"],
            shows={"val_loss": 10.8258, "step": 6},
        ),
    ],
    "a job that no witness knows for a while, and then again": [
        *AT_WORK,
        Row(seen(unseen(200)), "Training", None, shows={"val_loss": 10.8258, "step": 5}),
        Row(seen(running(TRAINING.step(6))), "Training", None, shows={"step": 6}),
    ],
    "the operator starts again and has yet to read the log": [
        *AT_WORK,
        Row(seen(running()), "Training", None, shows={"val_loss": 10.8258, "train_time": "0.250s", "step": 5}),
        Row(seen(running(TRAINING.step(7))), "Training", None, shows={"val_loss": 10.8258, "step": 7}),
    ],
    "the operator was away for the whole job": [
        OPENED,
        ACCEPTED,
        Row(
            seen(ended(finished_log("3.27"))),
            "Succeeded",
            "TargetReached",
            "+Submitted +Started +Finished",
            tells=["Started", "TargetReached"],
        ),
    ],
    "without our finalizer nothing is submitted": [
        Row(woken(metadata={"protected": False}), "Pending", None, "+Admitted -Submitted"),
        Row(woken(metadata={"protected": True}), "Pending", None, submits=[0]),
    ],
    "while it is being deleted nothing is decided": [
        *AT_WORK,
        Row(
            lambda status: {**seen(ended(finished_log("3.27")))(status), "metadata": {"deleting": True}},
            "Training",
            None,
        ),
    ],
    "deleted before it was submitted": [
        OPENED,
        Row(woken(metadata={"deleting": True}), "Pending", None, "-Submitted"),
    ],
}


@pytest.mark.parametrize("rows", LIVES.values(), ids=LIVES)
def test_life(rows: list[Row]) -> None:
    play(rows)


@pytest.mark.parametrize("rows", LIVES.values(), ids=LIVES)
def test_the_same_again_changes_nothing_and_tells_nothing(rows: list[Row]) -> None:
    play_twice(rows)
