"""Runs that wait for an allocation and will never get one: they have failed.

Past the deadline; with a spec that cannot be planned any more (more runs than a parameter allows); after a job that
Slurm refused or will never run, since the next one would be the same.
"""

from __future__ import annotations

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.status import Allocation, Preparation, Run
from speedrun_operator.lifecycle.admission import Admission


def given_up(
    runs: tuple[Run, ...],
    allocations: tuple[Allocation, ...],
    overdue: str | None,
    verdict: Admission,
    unprepared: Preparation | None = None,
) -> tuple[Run, ...]:
    """`runs`, those that wait failed if none of them can ever be run.

    `overdue`: what to say past the deadline; `unprepared`: what could not be made ready.
    """
    why = _why(allocations, overdue, verdict, unprepared)
    if why is None:
        return runs
    reason, message = why
    update = {"phase": Phase.FAILED, "reason": reason, "message": message}
    return tuple(each.model_copy(update=update) if is_waiting(each) else each for each in runs)


def is_waiting(run: Run) -> bool:
    """Whether a run is to be run and has no allocation."""
    return run.allocation is None and not run.phase.finished


def ended_for(allocations: tuple[Allocation, ...], *reasons: Reason) -> Allocation | None:
    """The first allocation that ended for one of `reasons`."""
    wanted = {each.value for each in reasons}
    ended = [each for each in allocations if each.state is AllocationState.ENDED]
    return next((each for each in ended if each.reason in wanted), None)


def _why(
    allocations: tuple[Allocation, ...], overdue: str | None, verdict: Admission, unprepared: Preparation | None
) -> tuple[str, str] | None:
    if overdue is not None:
        return Reason.DEADLINE_EXCEEDED.value, overdue
    if verdict.refused:
        return verdict.reason, verdict.message
    if unprepared is not None:
        return unprepared.reason or Reason.PREPARE_FAILED.value, unprepared.message or ""
    refused = ended_for(allocations, Reason.SUBMISSION_REJECTED, Reason.NEVER_RUNS)
    return (refused.reason or "", refused.message or "") if refused is not None else None
