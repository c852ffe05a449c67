"""Whole lives with several runs: what is kept, what is run again, and what a user sees of it."""

from __future__ import annotations

import pytest

from unit.builders import REPLAY, at, queued, unseen
from unit.lifecycle.lives import edited, saw, woken
from unit.lifecycle.rows import DONE, HELD, Row, Spec, accepted, log, over, play, play_twice, works

LIVES: dict[str, tuple[Spec, list[Row]]] = {
    "two runs, one after the other, each in a job of its own": (
        {"runs": 2},
        [
            Row(woken(), "Pending", None, "+Admitted -Finished", submits=[0], shows={"runs_summary": "0/2"}),
            Row(accepted(0), "Queued", None, tells=["Submitted"], shows={"job": "17"}),
            Row(saw({0: works(0, log().trains(0))}), "Training", None, tells=["Started", "Training"]),
            Row(saw({0: works(0, DONE)}), "Pending", None, shows={**HELD, "progress_percentage": 50}),
            Row(saw({0: over(0, DONE.closed())}), "Pending", None, submits=[1], shows={"runs_summary": "1/2"}),
            Row(accepted(1), "Queued", None, tells=["Submitted"], shows={"job": "18", "progress_percentage": 50}),
            Row(
                saw({1: works(1, log(1).trains(1, 10))}),
                "Training",
                None,
                tells=["Started", "Training"],
                shows={"step": 10, "train_time": "0.500s", "progress_percentage": 75, "result": None},
            ),
            Row(
                saw({1: over(1, log(1).ran(1, "3.2802", time=60_001).closed())}),
                "Succeeded",
                "TargetReached",
                "+Succeeded +Finished",
                tells=["TargetReached"],
                shows={
                    "val_loss": 3.2751,
                    "train_time": "55.000s",
                    "train_time_ms": 55_000,
                    "result": "val_loss=3.2751",
                    "runs_summary": "2/2",
                    "progress_percentage": 100,
                },
            ),
        ],
    ),
    "two at once: the first that is at work is shown": (
        {"runs": 3, "parallelism": 2},
        [
            Row(woken(), "Pending", None, submits=[0, 1]),
            Row(accepted(0, 1), "Queued", None, tells=["Submitted", "Submitted"], shows={"job": "18"}),
            Row(
                saw({0: queued("Priority"), 1: works(1, log(1).trains(1).validation("4.0", 10))}),
                "Queued",
                "Priority",
                "+Started",
                tells=["Started"],
                shows={**HELD, "node": "node-a"},
            ),
            Row(
                saw({0: works(0, log().trains(0)), 1: works(1, log(1).trains(1).validation("4.0", 10))}),
                "Training",
                None,
                tells=["Started", "Training"],
                shows={"step": 5, "val_loss": None, "progress_percentage": 8},
            ),
            Row(
                saw({0: over(0, DONE.closed()), 1: works(1, log(1).trains(1).validation("4.0", 10))}),
                "Training",
                None,
                submits=[2],
                shows={"step": 10, "val_loss": 4.0, "progress_percentage": 50, "runs_summary": "1/3", "job": None},
            ),
            Row(accepted(2), "Training", None, tells=["Submitted"], shows={"step": 10, "val_loss": 4.0, "job": "19"}),
            Row(
                saw({1: over(1, log(1).ran(1, "nan").closed()), 2: works(2, log(2).trains(2))}),
                "Training",
                None,
                tells=["Started"],
                shows={"step": 5, "val_loss": None, "runs_summary": "2/3"},
            ),
            Row(
                saw({2: over(2, log(2).ran(2, "3.25").closed())}),
                "Missed",
                "Diverged",
                "-Succeeded +Finished",
                tells=["Diverged"],
                shows={"val_loss": 3.26, "runs_summary": "3/3"},
            ),
        ],
    ),
    "a node fails under three runs: what is done stays, the rest is run again later": (
        {"runs": 3, "runsPerAllocation": 3},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(saw({0: works(0, DONE.trains(1))}), "Training", None, tells=["Started", "Training"]),
            Row(
                saw({0: over(0, DONE.trains(1), "NodeFailure")}),
                "Pending",
                "NodeFailure",
                "-Finished",
                tells=["NodeFailure"],
                shows={**HELD, "progress_percentage": 33, "runs_summary": "1/3", "next_attempt_time": at(50)},
            ),
            Row(woken(), "Pending", None, submits=[1], shows={"next_attempt_time": None, "job": None}),
            Row(accepted(1), "Queued", None, tells=["Submitted"], shows={"job": "18"}),
            Row(
                saw({1: over(1, log(1).ran(1, "3.28").ran(2, "3.29").closed())}),
                "Succeeded",
                "TargetReached",
                tells=["Started", "TargetReached"],
                shows={"val_loss": 3.28, "runs_summary": "3/3"},
            ),
        ],
    ),
    "a run that fails by itself does not stop the next, and is not run again": (
        {"runs": 2, "runsPerAllocation": 2},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(
                saw({0: works(0, log().ran(0, None, code=1).trains(1))}),
                "Training",
                None,
                tells=["Started", "Training"],
                shows={"step": 5, "progress_percentage": 12, "runs_summary": "0/2"},
            ),
            Row(
                saw({0: over(0, log().ran(0, None, code=1).trains(1), "Preempted")}),
                "Pending",
                "Preempted",
                tells=["Preempted"],
            ),
            Row(woken(), "Pending", None, submits=[1]),
            Row(accepted(1), "Queued", None, tells=["Submitted"]),
            Row(
                saw({1: over(1, log(1).ran(1, "3.2").closed())}),
                "Failed",
                "JobFailed",
                "-Succeeded +Finished",
                tells=["Started", "JobFailed"],
                shows={"val_loss": 3.2, "runs_summary": "1/2", "result": "val_loss=3.2"},
            ),
        ],
    ),
    "the operator was away as a run failed by itself and the node then failed under the next": (
        {"runs": 2, "runsPerAllocation": 2},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(
                saw({0: over(0, log().ran(0, None, code=1).trains(1), "NodeFailure")}),
                "Pending",
                "NodeFailure",
                tells=["Started", "NodeFailure"],
            ),
            Row(woken(), "Pending", None, submits=[1]),
            Row(accepted(1), "Queued", None, tells=["Submitted"]),
            Row(
                saw({1: over(1, log(1).ran(1, "3.2").closed())}),
                "Failed",
                "JobFailed",
                tells=["Started", "JobFailed"],
                shows={"runs_summary": "1/2"},
            ),
        ],
    ),
    "nodes fail more often than the limit lets": (
        {"backoffLimit": 1},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(
                saw({0: over(0, log(), "NodeFailure")}),
                "Pending",
                "NodeFailure",
                tells=["Started", "NodeFailure"],
                shows={"next_attempt_time": at(40)},
            ),
            Row(woken(), "Pending", "NodeFailure", shows={"next_attempt_time": at(40)}, after=9),
            Row(woken(), "Pending", None, submits=[1], after=1),
            Row(accepted(1), "Queued", None, tells=["Submitted"]),
            Row(
                saw({1: over(1, log(1), "LaunchFailed")}),
                "Failed",
                "BackoffLimitExceeded",
                "-Succeeded +Finished",
                tells=["Started", "BackoffLimitExceeded"],
                shows={"next_attempt_time": None},
            ),
        ],
    ),
    "more runs are wanted as it goes": (
        {"runs": 1},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"], shows={"runs_summary": "0/1"}),
            Row(edited(runs=3), "Queued", None, shows={"runs_summary": "0/3"}),
            Row(saw({0: over(0, DONE.closed())}), "Pending", None, tells=["Started"], submits=[1]),
            Row(edited(parallelism=4), "Pending", None, submits=[1, 2], shows={"runs_summary": "1/3"}),
            Row(accepted(1, 2), "Queued", None, tells=["Submitted", "Submitted"]),
        ],
    ),
    "fewer at once as it goes: what is at work stays": (
        {"runs": 4, "parallelism": 2},
        [
            Row(woken(), "Pending", None, submits=[0, 1]),
            Row(accepted(0, 1), "Queued", None, tells=["Submitted", "Submitted"]),
            Row(edited(parallelism=1), "Queued", None),
            Row(saw({0: over(0, DONE.closed()), 1: queued(job_id="18")}), "Queued", None, tells=["Started"]),
            Row(saw({1: over(1, log(1).ran(1, "3.2").closed())}), "Pending", None, tells=["Started"], submits=[2]),
        ],
    ),
    "Slurm loses one of two jobs: only its run is run again": (
        {"runs": 2, "parallelism": 2},
        [
            Row(woken(), "Pending", None, submits=[0, 1]),
            Row(accepted(0, 1), "Queued", None, tells=["Submitted", "Submitted"]),
            Row(
                saw({0: unseen(300), 1: works(1, log(1).trains(1))}),
                "Pending",
                None,
                submits=[2],
                tells=["Started", "JobLost"],
            ),
            Row(accepted(2), "Queued", None, tells=["Submitted"], shows={"job": "19"}),
            Row(
                saw({2: over(2, log(2).ran(0, "3.27").closed()), 1: works(1, log(1).trains(1))}),
                "Training",
                None,
                tells=["Started", "Training"],
                shows={"runs_summary": "1/2"},
            ),
        ],
    ),
    "cancelled by somebody else: its runs are not run again, the others go on": (
        {"runs": 2},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(
                saw({0: over(0, log().trains(0), "Cancelled")}),
                "Pending",
                None,
                submits=[1],
                tells=["Started", "Cancelled"],
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
