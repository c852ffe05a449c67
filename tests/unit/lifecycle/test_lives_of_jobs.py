"""Whole lives in which all goes its way: how a job ends, and what it comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from speedrun_operator.lifecycle.observation import Rejected
from unit.builders import COMPILING, STARTED, TRAINING, ended, finished_log, queued, running
from unit.lifecycle.lives import edited, heard, seen, woken
from unit.lifecycle.rows import ACCEPTED, AT_WORK, OPENED, RUNS, TRAINS, Row, play, play_twice

LIVES: dict[str, list[Row]] = {
    "a run that reaches its target": [
        OPENED,
        ACCEPTED,
        Row(seen(queued("Priority")), "Queued", "Priority", "-Started", shows={"job": "17"}),
        RUNS,
        Row(seen(running(STARTED.begin("data", 4))), "Preparing", None),
        Row(seen(running(COMPILING)), "Compiling", None, tells=["Compiling"], shows={"val_loss": None, "step": None}),
        TRAINS,
        Row(seen(running(TRAINING.validation("4.1", 10))), "Training", None, shows={"val_loss": 4.1, "step": 10}),
        Row(
            seen(ended(finished_log("3.2785"), log_complete=False)),
            "Training",
            None,
            "?Succeeded -Finished",
            shows={"val_loss": 3.2785, "result": None, "runs_summary": "1/1"},
        ),
        Row(
            seen(ended(finished_log("3.2785"))),
            "Succeeded",
            "TargetReached",
            "+Admitted +Submitted +Started +Succeeded +Finished",
            tells=["TargetReached"],
            shows={
                "val_loss": 3.2785,
                "train_time": "58.432s",
                "train_time_ms": 58432,
                "result": "val_loss=3.2785",
                "runs_summary": "1/1",
                "node": "node-a",
                "estimated_remaining_seconds": None,
            },
        ),
        Row(woken(), "Succeeded", "TargetReached", shows={"val_loss": 3.2785}),
    ],
    "exactly the target is reached": [
        *AT_WORK,
        Row(seen(ended(finished_log("3.28"))), "Succeeded", "TargetReached", "+Succeeded", tells=["TargetReached"]),
    ],
    "a run that misses its target": [
        *AT_WORK,
        Row(
            seen(ended(finished_log("3.2801"))),
            "Missed",
            "TargetMissed",
            "-Succeeded +Finished",
            tells=["TargetMissed"],
            shows={"val_loss": 3.2801, "runs_summary": "1/1"},
        ),
    ],
    "sbatch refuses": [
        OPENED,
        Row(
            heard(Rejected("SubmissionRejected", "sbatch refused the job: Invalid partition name specified")),
            "Failed",
            "SubmissionRejected",
            "-Admitted -Submitted -Started +BackendReachable -Succeeded +Finished",
            tells=["SubmissionRejected"],
            shows={"job": None, "runs_summary": "0/1", "val_loss": None},
        ),
    ],
    "the time limit": [
        *AT_WORK,
        Row(
            seen(ended(TRAINING, "TimeLimit", message="the job reached its time limit; raise spec.timeLimitSeconds")),
            "Failed",
            "TimeLimit",
            "+Started -Succeeded +Finished",
            tells=["TimeLimit"],
            shows={"val_loss": None, "train_time": None, "step": 5, "runs_summary": "0/1"},
        ),
    ],
    "cancelled by somebody before it started": [
        OPENED,
        ACCEPTED,
        Row(
            seen(ended(None, "Cancelled", started=None, node=None, message="the job was cancelled")),
            "Failed",
            "Cancelled",
            "+Submitted -Started +Finished",
            tells=["Cancelled"],
        ),
    ],
    "the node fails, and nothing is to be tried again": [
        replace(OPENED, step=edited(backoffLimit=0)),
        *AT_WORK[1:],
        Row(
            seen(ended(TRAINING, "NodeFailure")), "Failed", "NodeFailure", "-Succeeded +Finished", tells=["NodeFailure"]
        ),
    ],
    "diverged: the last validation is no number": [
        *AT_WORK,
        Row(
            seen(ended(finished_log("nan"))),
            "Missed",
            "Diverged",
            "-Succeeded +Finished",
            tells=["Diverged"],
            shows={"val_loss": None, "train_time": "58.432s", "result": None, "runs_summary": "1/1"},
        ),
    ],
    "diverged, and the program gave up before its last step": [
        *AT_WORK,
        Row(seen(running(TRAINING.validation("nan", 10))), "Training", None, shows={"val_loss": None, "step": 10}),
        Row(
            seen(ended(TRAINING.validation("nan", 10).end("train", 90, code=1).finish(1), "JobFailed")),
            "Missed",
            "Diverged",
            "-Succeeded +Finished",
            tells=["Diverged"],
            shows={"val_loss": None, "train_time": None, "step": 10},
        ),
    ],
    "a loss that was no number and came back counts as it ended": [
        *AT_WORK,
        Row(
            seen(ended(TRAINING.validation("nan", 10).validation("3.27", 20))),
            "Succeeded",
            "TargetReached",
            tells=["TargetReached"],
        ),
    ],
    "completed, but the log has no last validation": [
        *AT_WORK,
        Row(
            seen(ended(TRAINING.validation("3.2", 19).end("train", 90).finish())),
            "Failed",
            "NoResult",
            "-Succeeded +Finished",
            tells=["NoResult"],
            shows={"val_loss": None, "result": None},
        ),
    ],
    "the program fails": [
        *AT_WORK,
        Row(
            seen(ended(TRAINING.end("train", 90, code=1).finish(1), "JobFailed")),
            "Failed",
            "JobFailed",
            "-Succeeded +Finished",
            tells=["JobFailed"],
        ),
    ],
    "the program fails after its result: the result stands": [
        *AT_WORK,
        Row(
            seen(ended(finished_log("3.27", code=1), "JobFailed")),
            "Succeeded",
            "TargetReached",
            tells=["TargetReached"],
            shows={"val_loss": 3.27},
        ),
    ],
}


@pytest.mark.parametrize("rows", LIVES.values(), ids=LIVES)
def test_life(rows: list[Row]) -> None:
    play(rows)


@pytest.mark.parametrize("rows", LIVES.values(), ids=LIVES)
def test_the_same_again_changes_nothing_and_tells_nothing(rows: list[Row]) -> None:
    play_twice(rows)
