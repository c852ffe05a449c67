"""Status summed up from allocations and runs, and what the conditions shall say of them."""

from __future__ import annotations

from datetime import datetime, timedelta

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase, Reason
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Run, Status, rfc3339
from speedrun_operator.diagnosis.pending import waits_for
from speedrun_operator.lifecycle import display
from speedrun_operator.lifecycle.admission import Admission
from speedrun_operator.lifecycle.allocations import has_started, started_words, submitted_words
from speedrun_operator.lifecycle.conditions import Say, word
from speedrun_operator.lifecycle.giving_up import ended_for
from speedrun_operator.lifecycle.observation import Busy, JobState, Observed, Unknown
from speedrun_operator.lifecycle.outcome import Outcome
from speedrun_operator.lifecycle.situation import Situation
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.storage import Storage, gib
from speedrun_operator.progress.fold import Progress


def open_says() -> list[Say]:
    """The conditions of what has no job yet."""
    return [
        Say(ConditionType.SUBMITTED, "False", Reason.NOT_SUBMITTED.value),
        Say(ConditionType.STARTED, "False", Reason.NOT_STARTED.value),
        Say(ConditionType.SUCCEEDED, "Unknown", Reason.IN_PROGRESS.value),
        Say(ConditionType.FINISHED, "False", Reason.IN_PROGRESS.value),
    ]


def refusal(verdict: Admission) -> list[Say]:
    """The conditions of what only another spec can heal."""
    return [
        *open_says()[:2],
        Say(ConditionType.SUCCEEDED, "False", verdict.reason, verdict.message),
        Say(ConditionType.FINISHED, "True", verdict.reason, verdict.message),
    ]


def refused(old: Status, verdict: Admission, now: datetime) -> Status:
    """The status of what is finished before it began."""
    at = now.replace(microsecond=0)
    return old.model_copy(update={"phase": Phase.FAILED, "reason": verdict.reason, "completion_time": at})


def summed_up(
    situation: Situation,
    old: Status,
    allocations: tuple[Allocation, ...],
    runs: tuple[Run, ...],
    end: Outcome | None,
    spec: Spec,
) -> tuple[Status, list[Say]]:
    """The next status but for its conditions, and what those shall say."""
    run = display.shown_run(runs)
    newest = allocations[-1] if allocations else None
    shown = next((each for each in allocations if run is not None and each.id == run.allocation), newest)
    says = [
        *_backend_says(situation),
        *_stall_says(situation, old, allocations),
        *_storage_says(situation, old),
        *_job_says(newest, situation, old),
    ]
    update: dict[str, object] = {
        "allocations": allocations,
        "runs": runs,
        "phase": end.phase if end else display.phase_of(runs, allocations, spec.suspend),
        "reason": end.reason if end else _live_reason(old, says, shown, spec),
        **display.columns(allocations, runs),
        **_numbers(situation, old, shown, run, runs),
    }
    if end is not None:
        metric = old.plan.metric if old.plan else "val_loss"
        result = f"{metric}={end.val_loss}" if end.val_loss is not None else None
        update |= {**end.numbers(), "result": result, "estimated_remaining_seconds": None}
        update["completion_time"] = situation.now.replace(microsecond=0)
        says += [
            Say(ConditionType.SUCCEEDED, "True" if end.phase is Phase.SUCCEEDED else "False", end.reason, end.message),
            Say(ConditionType.FINISHED, "True", end.reason, end.message),
        ]
        if rejected := ended_for(allocations, Reason.SUBMISSION_REJECTED):
            reason = Reason.SUBMISSION_REJECTED.value
            says.append(Say(ConditionType.ADMITTED, "False", reason, rejected.message or ""))
    else:
        says += open_says()[2:]
    return old.model_copy(update=update), says


def _numbers(
    situation: Situation, old: Status, allocation: Allocation | None, run: Run | None, runs: tuple[Run, ...]
) -> dict[str, object]:
    """Loss, time, progress and clock of the shown run; what was not looked at stays as it was."""
    if run is None:
        return {}
    seen = situation.observed.get(allocation.id) if allocation else None
    log = seen.log if seen else None
    if run.phase in (Phase.PENDING, Phase.QUEUED):
        log, afresh = None, True  # numbers of an earlier start are gone
    else:
        afresh = not _is_shown_still(run, old)  # and so are those of another run
    numbers: dict[str, object] = {
        "val_loss": run.val_loss,
        "train_time": run.train_time,
        "train_time_ms": run.train_time_ms,
    }
    if allocation is not None:
        numbers["clock"] = display.clock(allocation, log, run, None if afresh else old.clock)
    if log is not None or afresh:
        record = log.run(run.index) if log else None
        shown = display.training(record.progress if record else Progress())
        percentage = shown["progress_percentage"]
        current = percentage if isinstance(percentage, int) else None
        numbers |= {**shown, "progress_percentage": display.percentage(runs, current)}
    return numbers


def _is_shown_still(run: Run, old: Status) -> bool:
    """Whether the run is the one that was shown before, in the same allocation."""
    before = display.shown_run(old.runs)
    return before is not None and (before.index, before.allocation) == (run.index, run.allocation)


def _live_reason(old: Status, says: list[Say], shown: Allocation | None, spec: Spec) -> str | None:
    """While the backend is out of reach, that; it is so until it answers, whatever else wakes us meanwhile."""
    before = old.condition(ConditionType.BACKEND_REACHABLE)
    reachable = next((each for each in says if each.type is ConditionType.BACKEND_REACHABLE), before)
    if reachable is not None and reachable.status == "False":
        return reachable.reason
    if spec.suspend:
        return Reason.SUSPENDED.value
    if shown is None or shown.reason in (None, Reason.COMPLETED.value):
        return None
    return word(shown.reason or "")


def _backend_says(situation: Situation) -> list[Say]:
    silent: list[Busy | Unknown] = [situation.unanswered] if situation.unanswered else []
    silent += [each for each in situation.outcomes.values() if isinstance(each, Busy | Unknown) and not each.reachable]
    if silent:
        return [Say(ConditionType.BACKEND_REACHABLE, "False", silent[0].reason, silent[0].message)]
    if situation.observed or situation.outcomes:
        return [Say(ConditionType.BACKEND_REACHABLE, "True", Reason.REACHABLE.value)]
    return []


def _stall_says(situation: Situation, old: Status, allocations: tuple[Allocation, ...]) -> list[Say]:
    """Said while a running job's log has not grown for the recipe's stall time; taken back when no job is so.

    A poll in which nobody knew a job takes nothing back.
    """
    plan = situation.plan
    if not isinstance(plan, RunPlan) or not situation.observed:
        return []
    limit = timedelta(seconds=plan.stall_seconds)
    live = [each.id for each in allocations if each.state is not AllocationState.ENDED]
    seen = [situation.observed[each] for each in live if each in situation.observed]
    quiet = [each for each in seen if _is_quiet(each, limit)]
    if quiet:
        seconds = int(max(each.quiet_for for each in quiet).total_seconds()) // 60 * 60
        return [Say(ConditionType.STALLED, "True", Reason.STALLED.value, f"no new line in the log for {seconds} s")]
    before = old.condition(ConditionType.STALLED)
    if before is None or before.status != "True" or any(each.state is JobState.UNSEEN for each in seen):
        return []
    running = any(each.state is JobState.RUNNING for each in seen)
    return [Say(ConditionType.STALLED, "False", (Reason.PROGRESSING if running else Reason.NOT_RUNNING).value)]


def _storage_says(situation: Situation, old: Status) -> list[Say]:
    """Said while the shared storage is nearly full, and taken back when it is not any more."""
    storage, before = situation.storage, old.condition(ConditionType.STORAGE_LOW)
    said = before is not None and before.status == "True"
    if storage is None or (not storage.low and not said):
        return []
    if storage.low:
        if said and before is not None and before.message == _storage_words(storage):
            return []
        return [Say(ConditionType.STORAGE_LOW, "True", Reason.STORAGE_LOW.value, _storage_words(storage))]
    return [Say(ConditionType.STORAGE_LOW, "False", Reason.STORAGE_SUFFICES.value)]


def _storage_words(storage: Storage) -> str:
    """Whole percents: a number that moves with every poll would be a write with every poll."""
    return (
        f"{storage.share:.0%} of {gib(storage.size)} below slurm.root are used: `speedrun-operator cache prune` helps"
    )


def _is_quiet(seen: Observed, limit: timedelta) -> bool:
    return seen.state is JobState.RUNNING and seen.quiet_for >= limit


def _job_says(newest: Allocation | None, situation: Situation, old: Status) -> list[Say]:
    if newest is None:
        return open_says()[:2]
    ended = newest.state is AllocationState.ENDED
    if ended and old.next_attempt_time is not None:
        words = f"{newest.message or newest.reason}; tried again from {rfc3339(old.next_attempt_time)}"
        says = [Say(ConditionType.SUBMITTED, "False", newest.reason or Reason.NOT_SUBMITTED.value, words)]
    elif newest.job_id is None:
        reason = newest.reason or Reason.SUBMITTING.value
        says = [Say(ConditionType.SUBMITTED, "False", reason, newest.message or "")]
    else:
        says = [Say(ConditionType.SUBMITTED, "True", Reason.SUBMITTED.value, submitted_words(newest))]
    if has_started(newest):
        return [*says, Say(ConditionType.STARTED, "True", Reason.STARTED.value, started_words(newest))]
    message = ""
    if newest.job_id is not None and ended:
        message = f"job {newest.job_id} ended before it started"
    elif newest.job_id is not None and newest.reason:
        gpu_type = situation.plan.gpu_type if isinstance(situation.plan, RunPlan) else None
        message = f"job {newest.job_id} waits: {waits_for(newest.reason, gpu_type)}"
    return [*says, Say(ConditionType.STARTED, "False", newest.reason or Reason.NOT_STARTED.value, message)]
