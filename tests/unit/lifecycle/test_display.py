"""What sums up allocations and runs: the columns, how far it is, where the time went."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Clock, Run
from speedrun_operator.lifecycle import display
from speedrun_operator.progress.fold import Progress, Stage
from speedrun_operator.progress.records import Validation
from unit.builders import NOON, STARTED, JobLog, at, finished_log

FINAL = Validation(20, 20, Decimal("3.27"), "3.27", 1000, 50.0)
NOTHING = dict.fromkeys(["step", "total_steps", "step_avg", "progress_percentage", "estimated_remaining_seconds"])


def run(phase: str = "Training", index: int = 0, **fields: Any) -> Run:
    return Run(index=index, arm="A", phase=Phase(phase), **fields)


def allocation(state: AllocationState = AllocationState.RUNNING, **fields: Any) -> Allocation:
    return Allocation(id=0, name="sr-0", state=state, claimed=NOON, **fields)


@pytest.mark.parametrize(
    ("phases", "shown"),
    [
        (["Training"], 0),
        (["Succeeded", "Training", "Pending"], 1),
        (["Succeeded", "Missed"], 1),
        (["Queued", "Training"], 0),
        (["Pending", "Training"], 1),
        (["Succeeded", "Pending", "Queued"], 2),
        (["Succeeded", "Pending", "Pending"], 1),
    ],
)
def test_the_first_run_with_a_job_is_shown_else_the_first_unfinished_else_the_last(
    phases: list[str], shown: int
) -> None:
    """Here, a pending run has no allocation."""
    runs = [run(each, index, allocation=None if each == "Pending" else 0) for index, each in enumerate(phases)]
    found = display.shown_run(tuple(runs))
    assert found is not None
    assert found.index == shown


@pytest.mark.parametrize(
    ("phases", "current", "percentage"),
    [
        pytest.param(["Queued"], None, None, id="nothing known"),
        pytest.param(["Training"], 25, 25, id="one run"),
        pytest.param(["Succeeded"], 100, 100, id="with its result"),
        pytest.param(["Missed"], 50, 100, id="diverged half way: nothing is left to do"),
        pytest.param(["Failed"], 25, 25, id="failed where it was"),
        pytest.param(["Failed"], None, None, id="failed before it trained"),
        pytest.param(["Training", "Queued", "Queued", "Queued"], 50, 12, id="half of the first of four"),
        pytest.param(["Succeeded", "Missed", "Training", "Queued"], 50, 62, id="two done, half of the third"),
        pytest.param(["Succeeded", "Queued"], None, 50, id="one done, the other has not begun"),
        pytest.param(["Failed", "Training"], 50, 25, id="a failed run has done nothing"),
        pytest.param(["Succeeded", "Failed"], 99, 99, id="the last failed"),
        pytest.param(["Failed", "Succeeded"], 100, 50, id="the first failed"),
    ],
)
def test_percentage_is_over_all_runs(phases: list[str], current: int | None, percentage: int | None) -> None:
    runs = [run(each, n, allocation=0, counted=each in ("Succeeded", "Missed")) for n, each in enumerate(phases)]
    assert display.percentage(tuple(runs), current) == percentage


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        pytest.param(Progress(), {}, id="nothing known"),
        pytest.param(Progress(Stage.COMPILING), {}, id="compiling"),
        pytest.param(
            Progress(step=5, total_steps=20, step_avg_ms=100.0),
            {
                "step": 5,
                "total_steps": 20,
                "step_avg": 100.0,
                "progress_percentage": 25,
                "estimated_remaining_seconds": 2,
            },
            id="a quarter",
        ),
        pytest.param(
            Progress(step=0, total_steps=20), {"step": 0, "total_steps": 20, "progress_percentage": 0}, id="no pace yet"
        ),
        pytest.param(
            Progress(step=1669, total_steps=1670, step_avg_ms=97.92),
            {
                "step": 1669,
                "total_steps": 1670,
                "step_avg": 97.92,
                "progress_percentage": 99,
                "estimated_remaining_seconds": 0,
            },
            id="not quite there is not 100",
        ),
        pytest.param(
            Progress(step=20, total_steps=20, step_avg_ms=50.0, final=FINAL),
            {"step": 20, "total_steps": 20, "step_avg": 50.0, "progress_percentage": 100},
            id="with its result nothing remains",
        ),
        pytest.param(
            Progress(step=30, total_steps=20, step_avg_ms=1.0),
            {
                "step": 30,
                "total_steps": 20,
                "step_avg": 1.0,
                "progress_percentage": 100,
                "estimated_remaining_seconds": 0,
            },
            id="a step beyond the last",
        ),
        pytest.param(
            Progress(step=1, total_steps=999_999_999, step_avg_ms=1e18),
            {"step": 1, "total_steps": 999_999_999, "step_avg": 1e18, "progress_percentage": 0},
            id="a pace without end gives no estimate",
        ),
    ],
)
def test_training(progress: Progress, expected: dict[str, Any]) -> None:
    assert display.training(progress) == {**NOTHING, **expected}


STAGES = STARTED.begin("image", 3).end("image", 8).begin("code", 8).end("code", 9).begin("data", 9).end("data", 30)


@pytest.mark.parametrize(
    ("times", "log", "one", "before", "expected"),
    [
        pytest.param({}, None, run(), None, {}, id="nothing known"),
        pytest.param(
            {"submitted": at(1), "started": at(6)}, None, run(), None, {"queue_milliseconds": 5000}, id="queue"
        ),
        pytest.param(
            {"started": at(6), "ended": at(100)}, None, run(), None, {"wall_milliseconds": 94000}, id="wall time"
        ),
        pytest.param(
            {"submitted": at(9), "started": at(6)}, None, run(), None, {"queue_milliseconds": 0}, id="clocks apart"
        ),
        pytest.param({}, STAGES, run(), None, {"image_milliseconds": 5000, "data_milliseconds": 22000}, id="stages"),
        pytest.param(
            {},
            STAGES.begin("train", 30),
            run(train_time_ms=77),
            None,
            {"image_milliseconds": 5000, "data_milliseconds": 22000, "train_milliseconds": 77},
            id="compiling is known once the stage has ended",
        ),
        pytest.param(
            {},
            finished_log("3.2", time=50_000),
            run(train_time_ms=50_000),
            None,
            {"train_milliseconds": 50_000, "compile_milliseconds": 30_000},
            id="it is what training took beyond its clock",
        ),
        pytest.param(
            {},
            finished_log("3.2", time=99_000),
            run(train_time_ms=99_000),
            None,
            {"train_milliseconds": 99_000, "compile_milliseconds": 0},
            id="never less than nothing",
        ),
        pytest.param(
            {},
            None,
            run(train_time_ms=9),
            Clock(queue_milliseconds=5000, data_milliseconds=3),
            {"queue_milliseconds": 5000, "data_milliseconds": 3, "train_milliseconds": 9},
            id="what is not known now stays",
        ),
        pytest.param(
            {},
            JobLog()
            .attempt()
            .line("", "SPEEDRUN run=0 stage=data begin time=nan", "SPEEDRUN run=0 stage=data end exit=0 time=-5"),
            run(),
            None,
            {},
            id="times that are none",
        ),
        pytest.param(
            {}, STARTED.begin("data", 9).end("data", 5), run(), None, {"data_milliseconds": 0}, id="a clock that fell"
        ),
    ],
)
def test_clock(
    times: dict[str, Any], log: JobLog | None, one: Run, before: Clock | None, expected: dict[str, int]
) -> None:
    found = display.clock(allocation(**times), log.read() if log else None, one, before)
    assert found.model_dump(exclude_none=True) == expected


@pytest.mark.parametrize(
    ("runs", "summary"),
    [
        ([run()], "0/1"),
        ([run("Succeeded", counted=True, val_loss=3.27849)], "1/1"),
        ([run("Missed", counted=True)], "1/1"),
        ([run("Failed")], "0/1"),
        ([run("Succeeded", counted=True, val_loss=3.28), run("Training", 1)], "1/2"),
        ([run("Failed"), run("Missed", 1, counted=True), run("Pending", 2)], "1/3"),
    ],
)
def test_columns(runs: list[Run], summary: str) -> None:
    allocations = (allocation(job_id="16", node="node-b"), allocation(job_id="17", node="node-a"))
    found = display.columns(allocations, tuple(runs))
    assert found == {"runs_summary": summary, "job": "17", "node": "node-a"}


def test_columns_without_an_allocation() -> None:
    assert display.columns((), (run("Pending"),)) == {"runs_summary": "0/1", "job": None, "node": None}


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (AllocationState.SUBMITTING, "Pending"),
        (AllocationState.QUEUED, "Training"),
        (AllocationState.RUNNING, "Training"),
    ],
)
def test_phase_is_pending_until_the_job_is_known(state: AllocationState, phase: str) -> None:
    assert display.phase_of((run(allocation=0),), (allocation(state),), suspended=False) == phase
    assert display.phase_of((run(),), (), suspended=False) == "Pending"


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (AllocationState.SUBMITTING, "Pending"),
        (AllocationState.RUNNING, "Training"),
        (AllocationState.ENDED, "Suspended"),
    ],
)
def test_phase_is_suspended_once_no_job_is_left(state: AllocationState, phase: str) -> None:
    assert display.phase_of((run(allocation=0),), (allocation(state),), suspended=True) == phase
    assert display.phase_of((run(),), (), suspended=True) == "Suspended"


def test_phase_while_the_job_of_all_results_is_not_over() -> None:
    done = run("Succeeded", allocation=0, counted=True)
    assert display.phase_of((done,), (allocation(),), suspended=False) == "Training"
