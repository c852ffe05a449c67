"""Whole lives that somebody suspends and resumes, and those with a deadline."""

from __future__ import annotations

import pytest

from unit.builders import REPLAY, at, unseen
from unit.lifecycle.lives import edited, saw, woken
from unit.lifecycle.rows import DONE, HELD, Row, Spec, accepted, log, over, play, play_twice, works

FENCED = unseen(0, fenced=True)
LIVES: dict[str, tuple[Spec, list[Row]]] = {
    "suspended at work and resumed: what is done stays, the rest is run again in another job": (
        {"runs": 2, "runsPerAllocation": 2},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(saw({0: works(0, DONE.trains(1))}), "Training", None, tells=["Started", "Training"]),
            Row(edited(suspend=True), "Training", "Suspended", "+Suspended", cancels=[0], tells=["Suspended"]),
            Row(saw({0: works(0, DONE.trains(1))}, gone={0}), "Training", "Suspended", "+Suspended"),
            Row(saw({0: works(0, DONE.trains(1))}), "Training", "Suspended", "+Suspended", cancels=[0]),
            Row(
                saw({0: over(0, DONE.trains(1).end("train", run=1, code=143).over(1, 143).closed(143), "Cancelled")}),
                "Suspended",
                "Suspended",
                "+Suspended -Finished",
                shows={**HELD, "progress_percentage": 50, "runs_summary": "1/2", "suspended_seconds": None},
            ),
            Row(woken(), "Suspended", "Suspended", "+Suspended", after=1000),
            Row(
                edited(suspend=False),
                "Pending",
                None,
                "-Suspended",
                submits=[1],
                tells=["Resumed"],
                shows={"suspended_seconds": 1040},
            ),
            Row(accepted(1), "Queued", None, tells=["Submitted"]),
            Row(
                saw({1: over(1, log(1).ran(1, "3.27").closed())}),
                "Succeeded",
                "TargetReached",
                tells=["Started", "TargetReached"],
                shows={"runs_summary": "2/2"},
            ),
        ],
    ),
    "suspended from the first": (
        {"suspend": True},
        [
            Row(woken(), "Suspended", "Suspended", "+Admitted +Suspended -Submitted", tells=["Suspended"]),
            Row(woken(), "Suspended", "Suspended", after=500),
            Row(edited(suspend=False), "Pending", None, submits=[0], tells=["Resumed"]),
        ],
    ),
    "suspended twice: the times add up": (
        {"suspend": True},
        [
            Row(woken(), "Suspended", "Suspended", tells=["Suspended"]),
            Row(edited(suspend=False), "Pending", None, submits=[0], tells=["Resumed"], after=100),
            Row(edited(suspend=True), "Pending", "Suspended", cancels=[0], tells=["Suspended"]),
            Row(saw({0: FENCED}, gone={0}), "Suspended", "Suspended", shows={"suspended_seconds": 100}),
            Row(
                edited(suspend=False),
                "Pending",
                None,
                submits=[1],
                tells=["Resumed"],
                shows={"suspended_seconds": 130},
                after=20,
            ),
        ],
    ),
    "suspended before the job was known, and it never was": (
        {},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(edited(suspend=True), "Pending", "Suspended", cancels=[0], tells=["Suspended"]),
            Row(woken(gone={0}), "Pending", "Suspended"),
            Row(saw({0: FENCED}, gone={0}), "Suspended", "Suspended", "-Submitted"),
            Row(edited(suspend=False), "Pending", None, submits=[1], tells=["Resumed"]),
        ],
    ),
    "resumed before its job has ended: the next is opened after that": (
        {},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(edited(suspend=True), "Queued", "Suspended", cancels=[0], tells=["Suspended"]),
            Row(edited(suspend=False), "Queued", None, cancels=[0], tells=["Resumed"]),
            Row(
                saw({0: over(0, None, "Cancelled", started=None, node=None)}),
                "Pending",
                None,
                "-Submitted",
                submits=[1],
            ),
        ],
    ),
    "suspended as its last result came in: finished is finished": (
        {},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(edited(suspend=True), "Queued", "Suspended", cancels=[0], tells=["Suspended"]),
            Row(
                saw({0: over(0, DONE, "Cancelled")}),
                "Succeeded",
                "TargetReached",
                "+Suspended +Finished",
                tells=["Started", "TargetReached"],
            ),
            Row(edited(suspend=False), "Succeeded", "TargetReached", "+Suspended +Finished"),
        ],
    ),
    "past its deadline": (
        {"runs": 3, "activeDeadlineSeconds": 100},
        [
            Row(woken(), "Pending", None, submits=[0], shows={"start_time": at(10)}),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(saw({0: works(0, DONE)}), "Pending", None, tells=["Started"], after=89),
            Row(saw({0: over(0, DONE.closed())}), "Failed", "DeadlineExceeded", tells=["DeadlineExceeded"], after=1),
        ],
    ),
    "past its deadline at work": (
        {"runs": 2, "activeDeadlineSeconds": 100},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(saw({0: works(0, log().trains(0))}), "Training", None, tells=["Started", "Training"]),
            Row(woken(), "Training", None, cancels=[0], after=80),
            Row(
                saw({0: over(0, log().trains(0), "Cancelled")}),
                "Failed",
                "DeadlineExceeded",
                "-Succeeded +Finished",
                tells=["DeadlineExceeded"],
                shows={"runs_summary": "0/2"},
            ),
        ],
    ),
    "a deadline that suspended time does not use up": (
        {"activeDeadlineSeconds": 100},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"]),
            Row(edited(suspend=True), "Queued", "Suspended", cancels=[0], tells=["Suspended"]),
            Row(woken(gone={0}), "Queued", "Suspended", after=5000),
            Row(saw({0: over(0, None, "Cancelled", started=None)}), "Suspended", "Suspended"),
            Row(edited(suspend=False), "Pending", None, submits=[1], tells=["Resumed"]),
            Row(accepted(1), "Queued", None, tells=["Submitted"], after=79),
            Row(woken(), "Queued", None, cancels=[1], after=1),
        ],
    ),
    "a deadline that was set later, and one that was put off": (
        {},
        [
            Row(woken(), "Pending", None, submits=[0]),
            Row(accepted(0), "Queued", None, tells=["Submitted"], after=500),
            Row(edited(activeDeadlineSeconds=1000), "Queued", None),
            Row(edited(activeDeadlineSeconds=2000), "Queued", None, after=990),
            Row(edited(activeDeadlineSeconds=60), "Queued", None, cancels=[0]),
        ],
    ),
}


@pytest.mark.parametrize(("spec", "rows"), LIVES.values(), ids=LIVES)
def test_life(spec: Spec, rows: list[Row]) -> None:
    play(rows, {**REPLAY, **spec})


@pytest.mark.parametrize(("spec", "rows"), LIVES.values(), ids=LIVES)
def test_the_same_again_changes_nothing_and_tells_nothing(spec: Spec, rows: list[Row]) -> None:
    play_twice(rows, {**REPLAY, **spec})
