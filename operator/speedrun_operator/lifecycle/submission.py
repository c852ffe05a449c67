"""When a new allocation is opened, and when one is submitted (again)."""

from __future__ import annotations

from speedrun_operator.api.phases import AllocationState, Reason
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.observation import JobState
from speedrun_operator.lifecycle.situation import Situation, Submit


def needs_another(allocations: tuple[Allocation, ...], runs: tuple[Run, ...], most_lost: int) -> bool:
    """Whether the work goes on in a new allocation: the first, or one after Slurm lost a job that it had accepted.

    Never once every run has its result, however its job ended.
    """
    if all(each.counted for each in runs):
        return False
    if not allocations:
        return True
    lost = sum(each.reason == Reason.JOB_LOST.value for each in allocations)
    return _lost(allocations[-1]) and lost <= most_lost


def _lost(allocation: Allocation) -> bool:
    return allocation.state is AllocationState.ENDED and allocation.reason == Reason.JOB_LOST.value


def open_allocation(situation: Situation, allocations: tuple[Allocation, ...]) -> Allocation:
    """The next allocation's record. It is written to status before anything is submitted under its name."""
    number = len(allocations)
    return Allocation(
        id=number,
        name=situation.resource.identity.job_name(situation.cluster, number),
        state=AllocationState.SUBMITTING,
        claimed=situation.now.replace(microsecond=0),
    )


def to_submit(situation: Situation, allocations: tuple[Allocation, ...]) -> tuple[Submit, ...]:
    """Allocations whose submission has no known outcome and that no witness has seen.

    Only with our finalizer on the object just read, so that no job outlives its resource unnoticed.
    """
    if situation.waiting is not None or situation.resource.deleting or not situation.resource.protected:
        return ()
    return tuple(
        Submit(each.id)
        for each in allocations
        if each.state is AllocationState.SUBMITTING
        and each.id not in situation.outcomes
        and (each.id not in situation.observed or situation.observed[each.id].state is JobState.UNSEEN)
    )
