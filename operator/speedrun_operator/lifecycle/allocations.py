"""One allocation's record, moved on by what was seen of it or by the outcome of submitting it.

`Ended` is final. An allocation ends only when a witness says so and its log was read to the end, when its submission
was rejected, or when no witness has known it for `lost_after`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from speedrun_operator.api.phases import AllocationState, Reason
from speedrun_operator.api.status import Allocation
from speedrun_operator.lifecycle.conditions import MESSAGE_LIMIT
from speedrun_operator.lifecycle.observation import Accepted, Busy, JobState, Observed, Outcome, Rejected, Unknown

_ORDER = [AllocationState.SUBMITTING, AllocationState.QUEUED, AllocationState.RUNNING, AllocationState.ENDED]


def after_outcome(allocation: Allocation, outcome: Outcome, now: datetime) -> Allocation:
    """The record after a submission was tried."""
    if allocation.state is not AllocationState.SUBMITTING:
        return allocation
    match outcome:
        case Accepted(job_id=job_id, submitted=submitted):
            return allocation.model_copy(
                update={
                    "state": AllocationState.QUEUED,
                    "job_id": job_id,
                    "submitted": submitted or now,
                    "reason": None,
                    "message": None,
                }
            )
        case Rejected(reason=reason, message=message):
            return allocation.model_copy(
                update={"state": AllocationState.ENDED, "ended": now, "reason": reason, "message": _short(message)}
            )
        case Busy(reason=reason, message=message) | Unknown(reason=reason, message=message):
            return allocation.model_copy(update={"reason": reason, "message": _short(message)})


def after_observation(allocation: Allocation, seen: Observed, lost_after: timedelta) -> Allocation:
    """The record after a poll."""
    if allocation.state is AllocationState.ENDED:
        return allocation
    if seen.state is JobState.UNSEEN:
        if allocation.state is AllocationState.SUBMITTING or seen.unseen_for < lost_after:
            return allocation
        message = (
            f"no witness has known job {allocation.job_id} for {int(seen.unseen_for.total_seconds())} s: "
            "not squeue, not sacct, and it left no exit marker"
        )
        return allocation.model_copy(
            update={
                "state": AllocationState.ENDED,
                "ended": seen.asked,
                "reason": Reason.JOB_LOST.value,
                "message": message,
            }
        )
    facts = {
        "job_id": seen.job_id or allocation.job_id,
        "node": seen.node or allocation.node,
        "submitted": seen.submitted or allocation.submitted,
        "started": seen.started or allocation.started,
    }
    if seen.state is JobState.ENDED:
        if not seen.log_complete:
            known = AllocationState.RUNNING if facts["started"] else AllocationState.QUEUED
            return allocation.model_copy(update={**facts, "state": max(allocation.state, known, key=_ORDER.index)})
        return allocation.model_copy(
            update={
                **facts,
                "state": AllocationState.ENDED,
                "ended": seen.ended or seen.asked,
                **_why(seen),
            }
        )
    if seen.state is JobState.RUNNING:
        return allocation.model_copy(update={**facts, "state": AllocationState.RUNNING, **_why(seen)})
    # Where somebody requeued it, nothing of its earlier start holds any more.
    facts |= {"node": seen.node, "started": seen.started}
    return allocation.model_copy(update={**facts, "state": AllocationState.QUEUED, **_why(seen)})


def _why(seen: Observed) -> dict[str, str | None]:
    return {"reason": _short(seen.reason), "message": _short(seen.message)}


def _short(text: str | None) -> str | None:
    return text[:MESSAGE_LIMIT] if text is not None else None
