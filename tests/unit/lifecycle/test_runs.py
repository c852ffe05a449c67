"""One run's record: a result is what the log's last step says, and nothing else."""

from __future__ import annotations

from decimal import Decimal

import pytest

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.runs import advance, seconds_text
from unit.builders import COMPILING, NOON, STARTED, TRAINING, JobLog, finished_log

TARGET = Decimal("3.28")
PENDING = Run(index=0, arm="A", phase=Phase.PENDING)
TRAINED = Run(
    index=0, arm="A", allocation=0, phase=Phase.TRAINING, val_loss=4.5, train_time="9.000s", train_time_ms=9000
)


def allocation(state: AllocationState, reason: str | None = None, message: str | None = None) -> Allocation:
    return Allocation(id=0, name="sr-0", state=state, claimed=NOON, reason=reason, message=message)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0.000s"),
        (7, "0.007s"),
        (58432, "58.432s"),
        (1000, "1.000s"),
        (3_600_000, "3600.000s"),
        (10**15, "1000000000000.000s"),
    ],
)
def test_times_have_one_form(milliseconds: int, text: str) -> None:
    assert seconds_text(milliseconds) == text


@pytest.mark.parametrize(
    ("log", "phase"),
    [
        pytest.param(JobLog(), "Preparing", id="nothing yet"),
        pytest.param(STARTED, "Preparing", id="the script began"),
        pytest.param(STARTED.begin("code").end("code").begin("data"), "Preparing", id="code and data"),
        pytest.param(STARTED.begin("train"), "Compiling", id="the program has said nothing"),
        pytest.param(COMPILING, "Compiling", id="it compiles"),
        pytest.param(COMPILING.line("Resetting Model"), "Training", id="the warm-up is over"),
        pytest.param(TRAINING, "Training", id="it trains"),
        pytest.param(TRAINING.end("train"), "Training", id="the program has ended, the job not yet"),
        pytest.param(STARTED.line("step:1/20 train_time:50ms step_avg:50.00ms"), "Preparing", id="a step of no stage"),
        pytest.param(TRAINING.attempt(18), "Preparing", id="the job started over"),
    ],
)
@pytest.mark.parametrize("before", [PENDING, TRAINED], ids=["new", "trained before"])
def test_phase_of_a_live_run(log: JobLog, phase: str, before: Run) -> None:
    assert advance(before, allocation(AllocationState.RUNNING), log.read(), TARGET).phase == phase


@pytest.mark.parametrize(
    ("before", "phase"),
    [
        (Phase.PENDING, "Preparing"),
        (Phase.QUEUED, "Preparing"),
        (Phase.COMPILING, "Compiling"),
        (Phase.TRAINING, "Training"),
    ],
)
def test_while_the_log_is_not_read_nothing_runs_backwards(before: Phase, phase: str) -> None:
    run = TRAINED.model_copy(update={"phase": before})
    after = advance(run, allocation(AllocationState.RUNNING), None, TARGET)
    assert (after.phase, after.val_loss, after.train_time) == (phase, 4.5, "9.000s")


@pytest.mark.parametrize(
    ("state", "phase"), [(AllocationState.SUBMITTING, "Pending"), (AllocationState.QUEUED, "Queued")]
)
def test_before_the_start_there_are_no_numbers(state: AllocationState, phase: str) -> None:
    after = advance(TRAINED, allocation(state), TRAINING.read(), TARGET)
    assert (after.phase, after.val_loss, after.train_time, after.train_time_ms) == (phase, None, None, None)


def test_numbers_of_a_live_run() -> None:
    after = advance(
        PENDING, allocation(AllocationState.RUNNING), TRAINING.validation("4.25", 10).step(11).read(), TARGET
    )
    assert (after.val_loss, after.train_time, after.train_time_ms) == (4.25, "0.550s", 550)
    assert (after.allocation, after.counted, after.reason) == (0, False, None)


RESULTS = [
    ("3.2799", "Succeeded", "TargetReached", "val_loss 3.2799: target 3.28 reached", 3.2799),
    ("3.28", "Succeeded", "TargetReached", "val_loss 3.28: target 3.28 reached", 3.28),
    ("3.2800", "Succeeded", "TargetReached", "val_loss 3.2800: target 3.28 reached", 3.28),
    ("3.2801", "Missed", "TargetMissed", "val_loss 3.2801: target 3.28 missed by 0.0001", 3.2801),
    ("3.28000000000000000001", "Missed", "TargetMissed", "missed by 1E-20", 3.28),
    ("nan", "Missed", "Diverged", "the validation loss was no number at step 20", None),
    ("-inf", "Missed", "Diverged", "the validation loss was no number at step 20", None),
]


@pytest.mark.parametrize(("printed", "phase", "reason", "message", "loss"), RESULTS, ids=[each[0] for each in RESULTS])
@pytest.mark.parametrize("said", ["Completed", "JobFailed", "NodeFailure", "Cancelled", "JobLost", "TimeLimit"])
def test_a_result_counts_however_the_job_ended(
    printed: str, phase: str, reason: str, message: str, loss: float | None, said: str
) -> None:
    after = advance(TRAINED, allocation(AllocationState.ENDED, said), finished_log(printed).read(), TARGET)
    assert (after.phase, after.reason, after.val_loss, after.counted) == (phase, reason, loss, True)
    assert (after.train_time, after.train_time_ms) == ("58.432s", 58432)
    assert message in (after.message or "")


def test_a_run_that_diverged_and_stopped_has_no_time() -> None:
    log = TRAINING.validation("nan", 10).validation("nan", 15)
    after = advance(TRAINED, allocation(AllocationState.ENDED, "JobFailed"), log.read(), TARGET)
    assert (after.phase, after.reason, after.counted) == (Phase.MISSED, "Diverged", True)
    assert (after.val_loss, after.train_time, after.train_time_ms) == (None, None, None)
    assert after.message == "the validation loss was no number at step 10"


SCRIPT_FAILED = "the job's script ended with exit code 3"
NOT_BEGUN, IN_DATA = JobLog(), STARTED.begin("data").end("data", code=2).mark("run=0 end exit=2")


@pytest.mark.parametrize(
    ("log", "said", "words", "reason", "message"),
    [
        pytest.param(
            TRAINING, "TimeLimit", "raise it", "TimeLimit", "raise it; it was in stage train", id="time limit"
        ),
        pytest.param(NOT_BEGUN, "Cancelled", None, "Cancelled", "Cancelled", id="cancelled before it began"),
        pytest.param(None, "JobLost", "nobody knows it", "JobLost", "nobody knows it", id="lost, log never read"),
        pytest.param(
            IN_DATA,
            "JobFailed",
            SCRIPT_FAILED,
            "JobFailed",
            "stage data ended with exit code 2; the log says why",
            id="a step failed",
        ),
        pytest.param(
            IN_DATA,
            "Completed",
            None,
            "JobFailed",
            "stage data ended with exit code 2; the log says why",
            id="even if the job did not",
        ),
        pytest.param(
            NOT_BEGUN,
            "JobFailed",
            SCRIPT_FAILED,
            "JobFailed",
            f"{SCRIPT_FAILED}; the log says why",
            id="the script itself",
        ),
        pytest.param(
            TRAINING,
            "JobFailed",
            None,
            "JobFailed",
            "the job's script failed; it was in stage train; the log says why",
            id="no words",
        ),
        pytest.param(
            TRAINING.end("train").mark("run=0 end exit=0"),
            "JobFailed",
            None,
            "JobFailed",
            "the job's script failed; it was in stage train; the log says why",
            id="a run that ended well in a job that did not",
        ),
        pytest.param(
            TRAINING.step(20).end("train").finish(),
            "Completed",
            None,
            "NoResult",
            "there is no result: the log ends at step 20/20, without a validation at the last step",
            id="an exit code of 0 is no result",
        ),
        pytest.param(
            TRAINING.validation("3.1", 19),
            None,
            None,
            "NoResult",
            "there is no result: the log ends at step 19/20",
            id="nor a validation before the last step",
        ),
    ],
)
def test_no_result(log: JobLog | None, said: str | None, words: str | None, reason: str, message: str) -> None:
    after = advance(TRAINED, allocation(AllocationState.ENDED, said, words), log.read() if log else None, TARGET)
    assert (after.phase, after.reason, after.counted) == (Phase.FAILED, reason, False)
    assert (after.val_loss, after.train_time, after.train_time_ms) == (None, None, None)
    assert (after.message or "").startswith(message)
