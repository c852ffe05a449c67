"""Several runs in one job, one after the other: what each came to, whatever its neighbours and the job came to."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pytest

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.runs import advance, ended_by_itself
from unit.builders import NOON, JobLog

TARGET = Decimal("3.28")
STARTED = JobLog().job()
FIRST_DONE = STARTED.ran(0, "3.27")
KILLED = {"code": 143}


def allocation(state: AllocationState, reason: str | None = None, runs: Sequence[int] = (0, 1, 2)) -> Allocation:
    message = f"words for {reason}" if reason else None
    made = {"id": 4, "name": "sr-4", "state": state, "claimed": NOON, "runs": tuple(runs)}
    return Allocation(**made, reason=reason, message=message)


def moved(one: Allocation, log: JobLog | None) -> list[Run]:
    read = log.read() if log is not None else None
    runs = [Run(index=index, arm="A", phase=Phase.PENDING, allocation=one.id) for index in one.runs]
    return [advance(each, one, read, TARGET) for each in runs]


def phases(runs: Sequence[Run]) -> list[str]:
    return [each.phase.value for each in runs]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(None, "Preparing Pending Pending", id="the log was not read yet"),
        pytest.param(JobLog(), "Preparing Pending Pending", id="nothing there yet"),
        pytest.param(STARTED, "Preparing Pending Pending", id="the job began"),
        pytest.param(STARTED.begun(0), "Preparing Pending Pending", id="the first began"),
        pytest.param(STARTED.trains(0), "Training Pending Pending", id="the first trains"),
        pytest.param(STARTED.trains(0).validation("3.27"), "Training Pending Pending", id="its result is there"),
        pytest.param(FIRST_DONE, "Succeeded Preparing Pending", id="the first is done: the second is next"),
        pytest.param(FIRST_DONE.begun(1), "Succeeded Preparing Pending", id="the second began"),
        pytest.param(FIRST_DONE.begun(1).begin("train", run=1), "Succeeded Compiling Pending", id="it compiles"),
        pytest.param(FIRST_DONE.trains(1), "Succeeded Training Pending", id="it trains"),
        pytest.param(FIRST_DONE.ran(1, "3.5").trains(2), "Succeeded Missed Training", id="the third trains"),
        pytest.param(
            STARTED.ran(0, None, code=1), "Training Pending Pending", id="failed, or killed with its job: nobody knows"
        ),
        pytest.param(STARTED.ran(0, None, code=1).begun(1), "Failed Preparing Pending", id="failed: the next goes on"),
        pytest.param(STARTED.ran(0, "nan").begun(1), "Missed Preparing Pending", id="diverged: the next goes on"),
        pytest.param(STARTED.ran(0, "3.27", code=3), "Succeeded Preparing Pending", id="a result, whatever its code"),
        pytest.param(FIRST_DONE.job(18), "Preparing Pending Pending", id="the job began again"),
    ],
)
def test_while_the_job_runs(log: JobLog | None, expected: str) -> None:
    assert phases(moved(allocation(AllocationState.RUNNING), log)) == expected.split()


@pytest.mark.parametrize(
    ("state", "phase"), [(AllocationState.QUEUED, "Queued"), (AllocationState.SUBMITTING, "Pending")]
)
def test_before_the_job_runs_all_of_them_wait(state: AllocationState, phase: str) -> None:
    assert phases(moved(allocation(state), None)) == [phase] * 3


def test_numbers_are_each_runs_own() -> None:
    log = STARTED.ran(0, "3.27", time=58432).trains(1).validation("4.5", 10)
    first, second, third = moved(allocation(AllocationState.RUNNING), log)
    assert (first.val_loss, first.train_time, first.counted) == (3.27, "58.432s", True)
    assert (second.val_loss, second.train_time, second.counted) == (4.5, "0.500s", False)
    assert (third.val_loss, third.train_time, third.counted) == (None, None, False)


@pytest.mark.parametrize("reason", ["Completed", "JobFailed", "NodeFailure", "TimeLimit", "Cancelled", "Suspended"])
def test_a_result_stands_when_its_job_fails_later(reason: str) -> None:
    ended = allocation(AllocationState.ENDED, reason)
    first, second, _ = moved(ended, FIRST_DONE.trains(1))
    assert (first.phase, first.reason, first.val_loss, first.counted) == ("Succeeded", "TargetReached", 3.27, True)
    assert (second.phase, second.counted) == ("Failed", False)


OWN = ["Completed", "JobFailed"]
OTHERS = ["NodeFailure", "Preempted", "Cancelled", "TimeLimit", "Suspended", "Stalled", "DeadlineExceeded", "JobLost"]


@pytest.mark.parametrize("reason", OTHERS)
def test_the_last_run_goes_with_its_job_even_if_the_script_still_marked_its_end(reason: str) -> None:
    log = FIRST_DONE.trains(1).end("train", run=1, **KILLED).over(1, **KILLED).closed(143)
    ended = allocation(AllocationState.ENDED, reason)
    _, second, third = moved(ended, log)
    assert (second.reason, second.message) == (reason, f"words for {reason}; it was in stage train")
    assert (third.reason, third.message) == (reason, f"words for {reason}")
    assert not ended_by_itself(second, ended, log.read())


@pytest.mark.parametrize("reason", OWN + OTHERS)
def test_a_run_that_failed_before_another_began_failed_by_itself(reason: str) -> None:
    log = STARTED.begun(0).begin("data").end("data", code=2).over(0, 2).trains(1)
    ended = allocation(AllocationState.ENDED, reason)
    first, _, _ = moved(ended, log)
    assert (first.phase, first.reason) == (Phase.FAILED, "JobFailed")
    assert first.message == "stage data ended with exit code 2; the log says why"
    assert ended_by_itself(first, ended, log.read())


def test_its_own_words_stay_while_the_job_goes_on() -> None:
    log = STARTED.begun(0).begin("data").end("data", code=2).over(0, 2).trains(1)
    first, _, _ = moved(allocation(AllocationState.RUNNING, "JobFailed"), log)
    assert (first.reason, first.message) == ("JobFailed", "stage data ended with exit code 2; the log says why")


@pytest.mark.parametrize("reason", OWN)
def test_the_last_run_failed_by_itself_where_its_job_did_not_end_for_another_reason(reason: str) -> None:
    log = FIRST_DONE.ran(1, None, code=1).closed(1)
    ended = allocation(AllocationState.ENDED, reason, (0, 1))
    _, second = moved(ended, log)
    assert (second.reason, second.message) == ("JobFailed", "stage train ended with exit code 1; the log says why")
    assert ended_by_itself(second, ended, log.read())


STOPPED = "a stop file in the ledger ended the series before this run"
CRASHED = "words for JobFailed; the log says why"


@pytest.mark.parametrize(
    ("log", "reason", "said"),
    [
        pytest.param(
            FIRST_DONE.mark("job stopped").closed(), "Completed", ["TargetReached", "Stopped", "Stopped"], id="stopped"
        ),
        pytest.param(
            STARTED.ran(0, None, code=1).mark("job stopped").closed(1),
            "JobFailed",
            ["JobFailed", "Stopped", "Stopped"],
            id="stopped after a failed run",
        ),
        pytest.param(STARTED.mark("job stopped").closed(), "Completed", ["Stopped"] * 3, id="stopped before the first"),
        pytest.param(FIRST_DONE.closed(), "Completed", ["TargetReached", "NoResult", "NoResult"], id="not stopped"),
        pytest.param(
            FIRST_DONE.trains(1), "JobFailed", ["TargetReached", "JobFailed", "JobFailed"], id="the script crashed"
        ),
        pytest.param(
            FIRST_DONE.mark("job stopped"),
            "Cancelled",
            ["TargetReached", "Cancelled", "Cancelled"],
            id="cancelled says more than stopped",
        ),
    ],
)
def test_runs_that_were_never_begun(log: JobLog, reason: str, said: list[str]) -> None:
    runs = moved(allocation(AllocationState.ENDED, reason), log)
    assert [each.reason for each in runs] == said
    messages = {"Stopped": STOPPED, "JobFailed": CRASHED}
    for each in runs[1:]:
        if log.read().run(each.index) is None and each.reason in messages:
            assert each.message == messages[each.reason]


def test_lines_after_the_end_of_a_run_do_not_take_its_result_back() -> None:
    log = FIRST_DONE.line("step:3/20 train_time:7ms step_avg:7ms").validation("9.9", 4)
    first, *_ = moved(allocation(AllocationState.RUNNING), log)
    assert (first.phase, first.val_loss, first.train_time) == ("Succeeded", 3.27, "58.432s")
