"""What a Speedrun comes to once all its runs are finished: the mean decides, too few results are a failure."""

from __future__ import annotations

from decimal import Decimal

import pytest

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.outcome import Outcome, outcome
from unit.builders import NOON

TARGET = Decimal("3.28")
OVER = Allocation(id=0, name="sr-0", state=AllocationState.ENDED, claimed=NOON)


def result(loss: float, time: int = 1000) -> Run:
    phase = Phase.SUCCEEDED if loss <= 3.28 else Phase.MISSED
    made = {"reason": "OfTheRun", "message": "words of the run", "counted": True}
    return Run(index=0, arm="A", phase=phase, val_loss=loss, train_time="", train_time_ms=time, **made)


def diverged(time: int | None = 7777) -> Run:
    words = {"reason": "Diverged", "message": "the validation loss was no number at step 5", "counted": True}
    return Run(index=0, arm="A", phase=Phase.MISSED, train_time_ms=time, **words)


def failed(reason: str | None = "JobFailed", message: str | None = "stage train ended with exit code 1") -> Run:
    return Run(index=0, arm="A", phase=Phase.FAILED, reason=reason, message=message)


def came_to(*runs: Run) -> Outcome | None:
    return outcome(tuple(each.model_copy(update={"index": n}) for n, each in enumerate(runs)), (OVER,), TARGET)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param(
            [result(3.27, 58432)], Outcome(Phase.SUCCEEDED, "OfTheRun", "words of the run", 3.27, 58432), id="one run"
        ),
        pytest.param(
            [diverged()],
            Outcome(Phase.MISSED, "Diverged", "the validation loss was no number at step 5", None, 7777),
            id="one that diverged",
        ),
        pytest.param(
            [failed()], Outcome(Phase.FAILED, "JobFailed", "stage train ended with exit code 1"), id="one that failed"
        ),
        pytest.param([failed(None, None)], Outcome(Phase.FAILED, "NoResult", "None"), id="one that nobody explained"),
        pytest.param(
            [result(3.27, 1000), result(3.28, 2000), result(3.275, 3001)],
            Outcome(
                Phase.SUCCEEDED,
                "TargetReached",
                "mean val_loss 3.275 of 3 runs: target 3.28 reached",
                3.275,
                2000,
            ),
            id="all reach it",
        ),
        pytest.param(
            [result(3.29), result(3.26)],
            Outcome(
                Phase.SUCCEEDED, "TargetReached", "mean val_loss 3.275 of 2 runs: target 3.28 reached", 3.275, 1000
            ),
            id="one misses it, the mean reaches it",
        ),
        pytest.param(
            [result(3.27), result(3.29)],
            Outcome(Phase.SUCCEEDED, "TargetReached", "mean val_loss 3.28 of 2 runs: target 3.28 reached", 3.28, 1000),
            id="exactly the target, which floats would miss",
        ),
        pytest.param(
            [result(3.2799), result(3.2802)],
            Outcome(
                Phase.MISSED,
                "TargetMissed",
                "mean val_loss 3.28005 of 2 runs: target 3.28 missed by 0.00005",
                3.28005,
                1000,
            ),
            id="missed by the mean, though one reached it",
        ),
        pytest.param(
            [result(3.28), result(3.28), result(3.280001)],
            Outcome(
                Phase.MISSED, "TargetMissed", "mean val_loss 3.28 of 3 runs: target 3.28 missed by 3.3e-7", 3.28, 1000
            ),
            id="missed by less than the shown digits",
        ),
        pytest.param(
            [result(9e122), result(1.0)],
            Outcome(
                Phase.MISSED,
                "TargetMissed",
                "mean val_loss 4.5e+122 of 2 runs: target 3.28 missed by 4.5e+122",
                4.5e122,
                1000,
            ),
            id="a loss beyond measure",
        ),
        pytest.param(
            [result(3.27, 1000), diverged(), result(3.25, 2000)],
            Outcome(
                Phase.MISSED,
                "Diverged",
                "run 1 diverged: the validation loss was no number at step 5",
                3.26,
                1500,
            ),
            id="one diverged: the means are those of the others",
        ),
        pytest.param(
            [diverged(), diverged()],
            Outcome(Phase.MISSED, "Diverged", "run 0 diverged: the validation loss was no number at step 5"),
            id="all diverged",
        ),
        pytest.param(
            [result(3.27), failed(), failed("TimeLimit")],
            Outcome(
                Phase.FAILED,
                "JobFailed",
                "2 of 3 runs have no result; run 1: stage train ended with exit code 1",
                3.27,
                1000,
            ),
            id="too few results",
        ),
        pytest.param(
            [diverged(), failed("TimeLimit", None)],
            Outcome(Phase.FAILED, "TimeLimit", "1 of 2 runs have no result; run 1: TimeLimit"),
            id="too few results says more than diverged",
        ),
        pytest.param(
            [result(3.5), failed("DeadlineExceeded", "too late")],
            Outcome(Phase.FAILED, "DeadlineExceeded", "1 of 2 runs have no result; run 1: too late", 3.5, 1000),
            id="and more than missed",
        ),
    ],
)
def test_what_it_comes_to(runs: list[Run], expected: Outcome) -> None:
    assert came_to(*runs) == expected


@pytest.mark.parametrize("state", [AllocationState.SUBMITTING, AllocationState.QUEUED, AllocationState.RUNNING])
def test_not_while_a_job_is_live(state: AllocationState) -> None:
    live = OVER.model_copy(update={"id": 1, "state": state})
    assert outcome((result(3.27),), (OVER, live), TARGET) is None


@pytest.mark.parametrize("phase", [each for each in Phase if not each.finished])
def test_not_while_a_run_is_not_finished(phase: Phase) -> None:
    assert came_to(result(3.27), Run(index=1, arm="A", phase=phase)) is None


def test_not_without_runs() -> None:
    assert outcome((), (), TARGET) is None


def test_without_a_job() -> None:
    late = failed("DeadlineExceeded", "too late")
    assert outcome((late,), (), TARGET) == Outcome(Phase.FAILED, "DeadlineExceeded", "too late")


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (Outcome(Phase.MISSED, "", "", 3.3, 58432), (3.3, "58.432s", 58432)),
        (Outcome(Phase.FAILED, "", ""), (None, None, None)),
        (Outcome(Phase.MISSED, "", "", 3.3, 0), (3.3, "0.000s", 0)),
    ],
)
def test_numbers_of_status(found: Outcome, shown: tuple[float | None, str | None, int | None]) -> None:
    assert tuple(found.numbers().values()) == shown
    assert list(found.numbers()) == ["val_loss", "train_time", "train_time_ms"]
