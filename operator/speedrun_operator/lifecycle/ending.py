"""Which live allocations the operator ends, and why: suspended, past the deadline, stalled, or never to run.

The reason is written to status before anything is cancelled, so that a restart in between tells our cancellation from
somebody else's.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from speedrun_operator.api.phases import AllocationState, ConditionType, Reason
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Status
from speedrun_operator.diagnosis.pending import NEVER, waits_for
from speedrun_operator.lifecycle.allocations import with_ending
from speedrun_operator.lifecycle.observation import JobState, Observed
from speedrun_operator.lifecycle.situation import Situation


def deadline(status: Status, spec: Spec) -> datetime | None:
    """When `activeDeadlineSeconds` is over; None: never, or it does not count since the Speedrun is suspended.

    `status` has the suspended time up to the last resumption; the condition of one just made may still be there.
    """
    if spec.active_deadline_seconds is None or status.start_time is None:
        return None
    suspended = status.condition(ConditionType.SUSPENDED)
    if spec.suspend and suspended is not None and suspended.status == "True":
        return None
    allowed = spec.active_deadline_seconds + (status.suspended_seconds or 0)
    return status.start_time + timedelta(seconds=allowed)


def overdue(status: Status, spec: Spec, now: datetime) -> str | None:
    """What to say when the deadline is over; None: it is not."""
    end = deadline(status, spec)
    if end is None or now < end:
        return None
    return f"not finished within activeDeadlineSeconds ({spec.active_deadline_seconds} s)"


def marked(
    allocations: tuple[Allocation, ...], situation: Situation, spec: Spec, late: str | None
) -> tuple[Allocation, ...]:
    """`allocations` with the reason written on those that are to end. `late`: what `overdue` says."""
    return tuple(_marked(each, situation.observed.get(each.id), situation, spec, late) for each in allocations)


def _marked(
    allocation: Allocation, seen: Observed | None, situation: Situation, spec: Spec, late: str | None
) -> Allocation:
    if allocation.state is AllocationState.ENDED:
        return allocation
    if late is not None:
        return with_ending(allocation, Reason.DEADLINE_EXCEEDED, late)
    if spec.suspend:
        return with_ending(allocation, Reason.SUSPENDED, "suspended by spec.suspend")
    if seen is None:
        return allocation
    limit = spec.stall_timeout_seconds
    if limit is not None and seen.state is JobState.RUNNING and seen.quiet_for >= timedelta(seconds=limit):
        quiet = int(seen.quiet_for.total_seconds())
        return with_ending(allocation, Reason.STALLED, f"no new line in the log for {quiet} s (stallTimeoutSeconds)")
    if seen.give_up_after is not None and seen.waited_for >= seen.give_up_after:
        why = seen.message or seen.reason or "it can never run"
        return with_ending(allocation, seen.give_up_as or Reason.NEVER_RUNS, why)
    never = seen.state is JobState.QUEUED and seen.reason in NEVER
    if never and seen.reason is not None and seen.waited_for >= situation.policy.never_after:
        message = f"Slurm will never run this job ({seen.reason}): {waits_for(seen.reason)}"
        return with_ending(allocation, Reason.NEVER_RUNS, message)
    return allocation


def to_cancel(allocations: tuple[Allocation, ...], situation: Situation) -> tuple[int, ...]:
    """Live allocations marked to end, unless they are known to be gone already."""
    return tuple(
        each.id
        for each in allocations
        if each.ending is not None and each.state is not AllocationState.ENDED and each.id not in situation.gone
    )
