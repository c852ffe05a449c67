"""What changed between two statuses, as Kubernetes events."""

from __future__ import annotations

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase, PreparationState, Reason
from speedrun_operator.api.status import Condition, Status, rfc3339
from speedrun_operator.lifecycle.allocations import has_started, started_words, submitted_words
from speedrun_operator.lifecycle.display import shown_run
from speedrun_operator.lifecycle.situation import Notice

# Reasons of the login (`login.errors`) that do not pass by themselves.
NEEDS_A_PERSON = frozenset(
    {"HostKeyMismatch", "HostKeyUnknown", "KnownHostsUnusable", "LoginKeyUnusable", "LoginAuthenticationFailed"}
)


def between(old: Status, new: Status) -> tuple[Notice, ...]:
    """Events for the transitions from `old` to `new`, in the order in which a person would tell them."""
    told = [*_prepared(old, new), *_jobs(old, new), *_endings(old, new), *_conditions(old, new), *_phases(old, new)]
    return tuple(notice for notice in told if notice is not None)


def _prepared(old: Status, new: Status) -> list[Notice]:
    """Cache entries that a job makes, that are there, that were broken, whose job failed."""
    before = {each.stage: each for each in old.preparing}
    told = []
    for each in new.preparing:
        was = before.get(each.stage)
        if was is not None and (was.state, was.attempt, was.failures) == (each.state, each.attempt, each.failures):
            continue
        what = f"{each.stage} {each.key}"
        if each.message and (each.failures, each.rebuilt) != ((was.failures, was.rebuilt) if was else (None, None)):
            again = f"; tried again from {rfc3339(each.not_before)}" if each.not_before else ""
            told.append(Notice(True, each.reason or Reason.PREPARE_FAILED.value, f"{each.message}{again}"))
        if each.job_id is not None and (was is None or was.attempt != each.attempt):
            told.append(Notice(False, Reason.PREPARING.value, f"job {each.job_id} makes {what}"))
        if each.state is PreparationState.READY and each.job_id is not None:
            told.append(Notice(False, Reason.PREPARED.value, f"{what} is there ({each.bytes or 0} bytes)"))
    return told


def _endings(old: Status, new: Status) -> list[Notice]:
    """Allocations that something else than their program ended, while the work goes on."""
    if new.phase is not None and new.phase.finished:
        return []
    before = {each.id: each for each in old.allocations}
    ended = [
        each
        for each in new.allocations
        if each.state is AllocationState.ENDED
        and (each.id not in before or before[each.id].state is not AllocationState.ENDED)
        and each.reason not in (None, Reason.COMPLETED.value, Reason.JOB_FAILED.value, Reason.SUSPENDED.value)
    ]
    following = "; tried again" + (f" from {rfc3339(new.next_attempt_time)}" if new.next_attempt_time else "")
    again = {each.index for each in new.runs if not each.phase.finished}
    return [
        Notice(True, each.reason or "", f"{each.message or each.reason}{following if again & {*each.runs} else ''}")
        for each in ended
    ]


def _jobs(old: Status, new: Status) -> list[Notice]:
    """Allocations that became a job, and jobs that started."""
    before = {each.id: each for each in old.allocations}
    told = []
    for each in new.allocations:
        was = before.get(each.id)
        if was is None and each.time_limit_seconds is not None:
            minutes = each.time_limit_seconds // 60
            told.append(
                Notice(False, "MoreTime", f"the next job gets {minutes} min, since the spec sets no time limit")
            )
        if each.job_id is not None and (was is None or was.job_id is None):
            told.append(Notice(False, Reason.SUBMITTED.value, submitted_words(each)))
        if each.requeues and (was is None or was.requeues != each.requeues):
            what = f"job {each.job_id} was requeued, not by the operator: it starts again from nothing"
            told.append(Notice(True, "Requeued", what))
        if has_started(each) and (was is None or not has_started(was)):
            told.append(Notice(False, Reason.STARTED.value, started_words(each)))
    return told


def _conditions(old: Status, new: Status) -> list[Notice | None]:
    return [
        _admitted(old.condition(ConditionType.ADMITTED), new.condition(ConditionType.ADMITTED)),
        _turned(old, new, ConditionType.SUSPENDED, warn=False),
        _turned(old, new, ConditionType.STALLED, warn=True),
        _turned(old, new, ConditionType.STORAGE_LOW, warn=True),
        _reachable(old.condition(ConditionType.BACKEND_REACHABLE), new.condition(ConditionType.BACKEND_REACHABLE)),
    ]


def _admitted(old: Condition | None, new: Condition | None) -> Notice | None:
    if new is None or new.status == "True":
        return None
    if old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return None
    return Notice(True, new.reason, new.message)


def _turned(old: Status, new: Status, type_: ConditionType, *, warn: bool) -> Notice | None:
    """A condition that came, or went again."""
    before, after = old.condition(type_), new.condition(type_)
    if after is None or (before.status if before else "False") == after.status:
        return None
    if after.reason == Reason.NOT_RUNNING.value:
        return None  # what ended the job was told
    return Notice(warn and after.status == "True", after.reason, after.message or after.reason)


def _reachable(old: Condition | None, new: Condition | None) -> Notice | None:
    """That it went or came back; and while it is away, what somebody must do about it."""
    if new is None:
        return None
    if old is not None and old.status == new.status and (new.reason == old.reason or new.reason not in NEEDS_A_PERSON):
        return None
    if new.status == "False":
        return Notice(True, new.reason, new.message)
    return Notice(False, new.reason, new.message) if old is not None and old.status == "False" else None


def _phases(old: Status, new: Status) -> list[Notice | None]:
    if old.phase == new.phase:
        return []
    finished = new.condition(ConditionType.FINISHED)
    if new.phase is not None and new.phase.finished and finished is not None:
        if _admitted(old.condition(ConditionType.ADMITTED), new.condition(ConditionType.ADMITTED)) is not None:
            return []  # the refusal tells it
        return [Notice(new.phase is not Phase.SUCCEEDED, finished.reason, finished.message)]
    if new.phase in (Phase.COMPILING, Phase.TRAINING):
        return [Notice(False, new.phase.value, f"{_what_runs(new)} is {new.phase.value.lower()}")]
    return []


def _what_runs(status: Status) -> str:
    """The job of the run that phase and numbers speak of."""
    run = shown_run(status.runs)
    job = next((each.job_id for each in status.allocations if run and each.id == run.allocation), status.job)
    return f"run {run.index} (job {job})" if run is not None and len(status.runs) > 1 else f"job {job}"
