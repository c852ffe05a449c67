"""One allocation's record, moved on by what was seen of it or by the outcome of submitting it.

`Ended` is final. An allocation ends only when a witness says so and its log was read to the end, when its submission
was rejected, or when no witness has known it for `lost_after`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from speedrun_operator.api.phases import AllocationState, Reason
from speedrun_operator.api.status import Allocation
from speedrun_operator.diagnosis.refusals import remedy
from speedrun_operator.lifecycle import causes
from speedrun_operator.lifecycle.conditions import MESSAGE_LIMIT
from speedrun_operator.lifecycle.observation import Accepted, Busy, JobState, Observed, Outcome, Rejected, Unknown

_ORDER = [AllocationState.SUBMITTING, AllocationState.QUEUED, AllocationState.RUNNING, AllocationState.ENDED]


def after_outcome(allocation: Allocation, outcome: Outcome, now: datetime) -> Allocation:
    """The record after a submission was tried. Where the operator ends it, its reason for that stays."""
    if allocation.state is not AllocationState.SUBMITTING:
        return allocation
    words: dict[str, object] = {}
    if not isinstance(outcome, Accepted):
        words = {"reason": outcome.reason, "message": _short(outcome.message)}
    elif allocation.ending is None:
        words = {"reason": None, "message": None}
    match outcome:
        case Accepted(job_id=job_id, submitted=submitted):
            update = {"state": AllocationState.QUEUED, "job_id": job_id, "submitted": submitted or now, **words}
        case Rejected(reason=reason, message=message):
            if advice := remedy(message):
                words = {**words, "message": _short(f"{message}; {advice}")}
            if allocation.ending is not None and reason == Reason.CANCELLED.value:
                words = {"reason": allocation.ending}
            update = {"state": AllocationState.ENDED, "ended": now, **words}
        case Busy() | Unknown():
            update = {} if allocation.ending is not None else words
    return allocation.model_copy(update=update)


def after_observation(
    allocation: Allocation, seen: Observed, lost_after: timedelta, controller_started: datetime | None = None
) -> Allocation:
    """The record after a poll. `controller_started`: when Slurm's controller was started last, if that is known."""
    if allocation.state is AllocationState.ENDED:
        return allocation
    if seen.state is JobState.UNSEEN:
        allocation = _unseen(allocation, seen)
        absent = seen.unseen_for
        if allocation.submitted is not None:  # before, there was nothing to be seen
            absent = min(absent, seen.asked - allocation.submitted)
        if allocation.state in (AllocationState.SUBMITTING, AllocationState.ENDED) or absent < lost_after:
            return allocation
        lost = {"state": AllocationState.ENDED, "ended": seen.asked}
        if allocation.ending is not None:
            return allocation.model_copy(update={**lost, "reason": allocation.ending})
        message = (
            f"no witness has known job {allocation.job_id} for {int(absent.total_seconds())} s: "
            "not squeue, not sacct, and it left no exit marker"
        )
        return allocation.model_copy(update={**lost, "reason": Reason.JOB_LOST.value, "message": message})
    facts: dict[str, object] = {
        "job_id": seen.job_id or allocation.job_id,
        "node": seen.node or allocation.node,
        "submitted": seen.submitted or allocation.submitted,
        "started": seen.started or allocation.started,
    }
    if seen.state is JobState.ENDED:
        if not seen.log_complete:
            known = AllocationState.RUNNING if facts["started"] else AllocationState.QUEUED
            facts["state"] = max(allocation.state, known, key=_ORDER.index)
            if allocation.ending is None and (seen.unread or allocation.reason == Reason.LOG_UNREADABLE.value):
                facts |= _unreadable(seen)
            return allocation.model_copy(update=facts)
        reason, said = causes.of_job(allocation, seen, controller_started)
        ended = {**facts, "state": AllocationState.ENDED, "ended": seen.ended or seen.asked}
        ended |= {"reason": _short(reason), "message": _short(said)}
        if allocation.ending is not None and seen.reason != Reason.COMPLETED.value:
            ended |= {"reason": allocation.ending, "message": allocation.message}
        return allocation.model_copy(update=ended)
    why = {} if allocation.ending else _why(seen)
    if _began_anew(allocation, seen):
        facts["requeues"] = (allocation.requeues or 0) + 1
    if seen.state is JobState.RUNNING:
        return allocation.model_copy(update={**facts, "state": AllocationState.RUNNING, **why})
    # Where somebody requeued it, nothing of its earlier start holds any more.
    facts |= {"node": seen.node, "started": seen.started}
    return allocation.model_copy(update={**facts, "state": AllocationState.QUEUED, **why})


def _unseen(allocation: Allocation, seen: Observed) -> Allocation:
    """What the ledger alone tells of an allocation whose submission had no clear outcome: a job once began, or the
    cancellation came before any."""
    if allocation.state is not AllocationState.SUBMITTING:
        return allocation
    if seen.job_id is not None:
        return allocation.model_copy(update={"state": AllocationState.RUNNING, "job_id": seen.job_id})
    if not seen.fenced or allocation.ending is None:
        return allocation
    return allocation.model_copy(
        update={"state": AllocationState.ENDED, "ended": seen.asked, "reason": allocation.ending}
    )


def with_ending(allocation: Allocation, reason: str, message: str) -> Allocation:
    """The record of an allocation that the operator decides to end; the first reason stays."""
    if allocation.state is AllocationState.ENDED or allocation.ending is not None:
        return allocation
    return allocation.model_copy(update={"ending": str(reason), "message": _short(message)})


def _began_anew(allocation: Allocation, seen: Observed) -> bool:
    """Whether somebody, or Slurm after a node's death, took the same job back: seen as it waits, or only afterwards."""
    if seen.job_id not in (None, allocation.job_id) or allocation.state is not AllocationState.RUNNING:
        return False
    other = None not in (allocation.started, seen.started) and allocation.started != seen.started
    return seen.state is JobState.QUEUED or other


def has_started(allocation: Allocation) -> bool:
    return allocation.started is not None or allocation.state is AllocationState.RUNNING


def submitted_words(allocation: Allocation) -> str:
    """Which job it is."""
    return f"job {allocation.job_id}, named {allocation.name}"


def started_words(allocation: Allocation) -> str:
    """Where its job runs, or ran, and whether it is at its first attempt."""
    where = f" on {allocation.node}" if allocation.node else ""
    again = f", requeued {requeues} {'time' if requeues == 1 else 'times'}" if (requeues := allocation.requeues) else ""
    return f"job {allocation.job_id} {'ran' if allocation.state is AllocationState.ENDED else 'runs'}{where}{again}"


def _why(seen: Observed) -> dict[str, str | None]:
    if seen.reason is None and seen.unread is not None:
        return _unreadable(seen)
    return {"reason": _short(seen.reason), "message": _short(seen.message)}


def _unreadable(seen: Observed) -> dict[str, str | None]:
    reason = Reason.LOG_UNREADABLE.value if seen.unread else None
    return {"reason": reason, "message": _short(seen.unread)}


def _short(text: str | None) -> str | None:
    return text[:MESSAGE_LIMIT] if text is not None else None
