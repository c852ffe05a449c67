"""Whole lives in which jobs stall, can never run, or cannot be made any more."""

from __future__ import annotations

from datetime import timedelta

import pytest

from speedrun_operator.lifecycle.observation import Rejected
from unit.builders import REPLAY, queued, unseen
from unit.lifecycle.lives import edited, saw, woken
from unit.lifecycle.rows import DONE, Row, Spec, accepted, log, over, play, play_twice, works

LIVES: dict[str, tuple[Spec, list[Row]]] = {
    "a stall that is only said, and goes away": (
        {},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(saw({0: works(0, log().trains(0))}), "Training", None, tells=["Started", "Training"]),
            Row(saw({0: works(0, log().trains(0), quiet_for=timedelta(seconds=899))}), "Training", None),
            Row(
                saw({0: works(0, log().trains(0), quiet_for=timedelta(seconds=900))}),
                "Training",
                None,
                "+Stalled",
                tells=["Stalled"],
            ),
            Row(saw({0: works(0, log().trains(0), quiet_for=timedelta(seconds=9000))}), "Training", None, "+Stalled"),
            Row(saw({0: unseen(10)}), "Training", None, "+Stalled"),
            Row(woken(), "Training", None, "+Stalled"),
            Row(saw({0: works(0, log().trains(0, 6))}), "Training", None, "-Stalled", tells=["Progressing"]),
        ],
    ),
    "a stall that ends the job": (
        {"stallTimeoutSeconds": 60},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(saw({0: works(0, log().trains(0))}), "Training", None, tells=["Started", "Training"]),
            Row(saw({0: works(0, log().trains(0), quiet_for=timedelta(seconds=61))}), "Training", None, cancels=[0]),
            Row(
                saw({0: over(0, log().trains(0), "Cancelled")}),
                "Failed",
                "Stalled",
                "-Succeeded +Finished",
                tells=["Stalled"],
            ),
        ],
    ),
    "a stall that was said goes with its job": (
        {"stallTimeoutSeconds": 1200},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(
                saw({0: works(0, log(), quiet_for=timedelta(seconds=1000))}),
                "Preparing",
                None,
                "+Stalled",
                tells=["Started", "Stalled"],
            ),
            Row(
                saw({0: over(0, log(), "JobFailed")}), "Failed", "JobFailed", "-Stalled +Finished", tells=["JobFailed"]
            ),
        ],
    ),
    "a stall that was said goes with a lost job": (
        {},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(
                saw({0: works(0, log(), quiet_for=timedelta(seconds=1000))}),
                "Preparing",
                None,
                "+Stalled",
                tells=["Started", "Stalled"],
            ),
            Row(saw({0: unseen(300)}), "Pending", None, "-Stalled", submits=[1], tells=["JobLost"]),
        ],
    ),
    "a job that Slurm will never run": (
        {"runs": 2},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(
                saw({0: queued("PartitionTimeLimit", waited_for=timedelta(seconds=59))}), "Queued", "PartitionTimeLimit"
            ),
            Row(
                saw({0: queued("PartitionTimeLimit", waited_for=timedelta(seconds=60))}),
                "Queued",
                "PartitionTimeLimit",
                cancels=[0],
            ),
            Row(
                saw({0: over(0, None, "Cancelled", started=None, node=None)}),
                "Failed",
                "NeverRuns",
                "-Started +Finished",
                tells=["NeverRuns"],
                shows={"runs_summary": "0/2"},
            ),
        ],
    ),
    "sbatch refuses the first of many: the others are not tried": (
        {"runs": 100},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(
                woken(outcomes={0: Rejected("SubmissionRejected", "sbatch refused the job: Invalid qos")}),
                "Failed",
                "SubmissionRejected",
                "-Admitted -Succeeded +Finished",
                tells=["SubmissionRejected"],
                shows={"runs_summary": "0/100"},
            ),
        ],
    ),
    "the recipe goes with an upgrade: what is at work goes on, what waits fails": (
        {"runs": 3, "parallelism": 2},
        [
            Row(woken(), "Pending", None, submits=[0, 1]),
            Row(accepted(0, 1), "Queued", None, tells=["Submitted", "Submitted"]),
            Row(
                edited(recipe={"name": "gone-with-an-upgrade"}),
                "Queued",
                None,
                "-Admitted -Finished",
                tells=["UnknownRecipe"],
            ),
            Row(saw({0: over(0, DONE.closed()), 1: queued(job_id="18")}), "Queued", None, tells=["Started"]),
            Row(
                saw({1: over(1, log(1).ran(1, "3.2").closed())}),
                "Failed",
                "UnknownRecipe",
                "-Succeeded +Finished",
                tells=["Started", "UnknownRecipe"],
                shows={"runs_summary": "2/3", "val_loss": 3.235},
            ),
        ],
    ),
}


@pytest.mark.parametrize(("spec", "rows"), LIVES.values(), ids=LIVES)
def test_life(spec: Spec, rows: list[Row]) -> None:
    play(rows, {**REPLAY, **spec})


@pytest.mark.parametrize(("spec", "rows"), LIVES.values(), ids=LIVES)
def test_the_same_again_changes_nothing_and_tells_nothing(spec: Spec, rows: list[Row]) -> None:
    play_twice(rows, {**REPLAY, **spec})
