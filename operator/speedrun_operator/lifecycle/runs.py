"""One run's record, from its allocation and from what the log says of it.

A result is what the log's last step says, and nothing else: an exit code of 0 without it is `NoResult`, and a result
stands whatever the job's exit code was. A run that diverged is a result above the target without a number.
"""

from __future__ import annotations

from decimal import Decimal

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle import causes
from speedrun_operator.progress.allocation import AllocationProgress, RunRecord
from speedrun_operator.progress.fold import Progress, Stage
from speedrun_operator.progress.records import Validation

TRAIN_STAGE = "train"
_NO_NUMBERS: dict[str, object] = dict.fromkeys(("val_loss", "train_time", "train_time_ms"))


def seconds_text(milliseconds: int) -> str:
    """`58432` → `58.432s`."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}s"


def advance(run: Run, allocation: Allocation, log: AllocationProgress | None, target: Decimal) -> Run:
    """`run`, which belongs to `allocation`, as it stands now. `log` None: nothing new was read.

    Numbers of an attempt that a requeue ended go with it.
    """
    record = log.run(run.index) if log is not None else None
    if log is not None and _is_over(run.index, log):  # what its job came to later says nothing of it
        return _ended(run, allocation.model_copy(update={"reason": None, "message": None}), log, target)
    if allocation.state is AllocationState.ENDED:
        return _ended(run, allocation, log, target)
    shown = run.model_copy(update={"allocation": allocation.id})
    if allocation.state is AllocationState.SUBMITTING:
        return shown.model_copy(update={"phase": Phase.PENDING, **_NO_NUMBERS})
    if allocation.state is AllocationState.QUEUED:
        return shown.model_copy(update={"phase": Phase.QUEUED, **_NO_NUMBERS})
    if log is None:
        before = run.phase in (Phase.PENDING, Phase.QUEUED)
        return shown.model_copy(update={"phase": _phase_in_turn(run, allocation, None)}) if before else shown
    if record is None:
        return shown.model_copy(update={"phase": _phase_in_turn(run, allocation, log), **_NO_NUMBERS})
    return shown.model_copy(update={"phase": _live_phase(record), **_numbers(record.progress)})


def ended_by_itself(run: Run, allocation: Allocation, log: AllocationProgress) -> bool:
    """Whether the run came to its own end, whatever its allocation came to later.

    A job that is cancelled or preempted takes its run with it, and that run may still be marked as ended with an error:
    a last run that has no result is its allocation's affair, unless that ended as programs do.
    """
    if _is_over(run.index, log):
        return True
    record = log.run(run.index)
    if record is None or record.exit_code is None or allocation.state is not AllocationState.ENDED:
        return False
    return causes.ended_by_itself(allocation.reason)


def _is_over(index: int, log: AllocationProgress) -> bool:
    """Whether the log alone says that the run came to its own end: with a result, or since another one follows."""
    record = log.run(index)
    if record is None or record.exit_code is None:
        return False
    return record.progress.final is not None or record is not log.runs[-1]


def _phase_in_turn(run: Run, allocation: Allocation, log: AllocationProgress | None) -> Phase:
    """The phase of a run that its running job has not begun: it prepares it, or has others to do first."""
    earlier = [each for each in allocation.runs if each < run.index]
    over = all(log is not None and _is_over(each, log) for each in earlier)
    return Phase.PREPARING if over else Phase.PENDING


def _live_phase(record: RunRecord) -> Phase:
    stage = record.stage
    if stage is None or stage.name != TRAIN_STAGE:
        return Phase.PREPARING
    return Phase.TRAINING if record.progress.stage is Stage.TRAINING else Phase.COMPILING


def _numbers(progress: Progress) -> dict[str, object]:
    said, spent = progress.last_validation, progress.train_time_ms
    return {
        "val_loss": _loss(said) if said else None,
        "train_time": seconds_text(spent) if spent is not None else None,
        "train_time_ms": spent,
    }


def _loss(said: Validation) -> float | None:
    return None if said.val_loss is None else float(said.val_loss)


def _ended(run: Run, allocation: Allocation, log: AllocationProgress | None, target: Decimal) -> Run:
    record = log.run(run.index) if log is not None else None
    progress = record.progress if record else Progress()
    final = progress.final
    update: dict[str, object] = {"allocation": allocation.id, **_NO_NUMBERS}
    if final is not None:
        update |= {"train_time": seconds_text(final.train_time_ms), "train_time_ms": final.train_time_ms}
    if final is not None and final.val_loss is not None:
        reached = final.val_loss <= target
        by = abs(final.val_loss - target)
        update |= {
            "phase": Phase.SUCCEEDED if reached else Phase.MISSED,
            "val_loss": float(final.val_loss),
            "reason": (Reason.TARGET_REACHED if reached else Reason.TARGET_MISSED).value,
            "message": f"val_loss {final.text}: target {target} {'reached' if reached else f'missed by {by}'}",
            "counted": True,
        }
    elif final is not None or progress.diverged_step is not None:
        update |= {
            "phase": Phase.MISSED,
            "reason": Reason.DIVERGED.value,
            "message": f"the validation loss was no number at step {progress.diverged_step}",
            "counted": True,
        }
    else:
        update |= {
            "phase": Phase.FAILED,
            "counted": False,
            **_failure(allocation, record, log),
        }
    return run.model_copy(update=update)


def _failure(allocation: Allocation, record: RunRecord | None, log: AllocationProgress | None) -> dict[str, object]:
    stage = record.stage if record else None
    where = f"stage {stage.name}" if stage else "the job"
    inside = f"; it was in {where}" if stage else ""
    code = record.exit_code if record else None
    if _was_ended(allocation) or not causes.ended_by_itself(allocation.reason):
        return {"reason": allocation.reason, "message": f"{allocation.message or allocation.reason}{inside}"}
    if record is None and log is not None and log.stopped:
        return {"reason": Reason.STOPPED.value, "message": "a stop file in the ledger ended the series before this run"}
    if rule := causes.of_run(record, log):
        return {"reason": rule.reason, "message": f"{rule.message}{inside}"}
    if code not in (0, None):
        return {"reason": Reason.JOB_FAILED.value, "message": f"{where} ended with exit code {code}; the log says why"}
    if allocation.reason == Reason.JOB_FAILED.value:
        said = allocation.message or "the job's script failed"
        return {"reason": Reason.JOB_FAILED.value, "message": f"{said}{inside}; the log says why"}
    said = f"there is no result: the log ends {_how_far(record)}"
    if log is None or log.exit_code is None:
        said += "; the job's own last line could not be read, so there may be more in it (status.logPath)"
    return {"reason": Reason.NO_RESULT.value, "message": said}


def _was_ended(allocation: Allocation) -> bool:
    """Whether the operator ended it, and nothing came before that."""
    return allocation.ending is not None and allocation.ending == allocation.reason


def _how_far(record: RunRecord | None) -> str:
    progress = record.progress if record else Progress()
    without = "without a validation at the last step"
    return without if progress.step is None else f"at step {progress.step}/{progress.total_steps}, {without}"
