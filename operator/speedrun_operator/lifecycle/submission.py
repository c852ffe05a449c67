"""When a new allocation is opened and for which runs, and when one is submitted (again)."""

from __future__ import annotations

import re

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.spec import SLURM_WORD, Backend, Spec
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.diagnosis import rule_of
from speedrun_operator.lifecycle.code import is_open
from speedrun_operator.lifecycle.observation import JobState
from speedrun_operator.lifecycle.retry import more_minutes
from speedrun_operator.lifecycle.situation import Situation, Submit
from speedrun_operator.planning import RunPlan


def open_allocations(
    situation: Situation, allocations: tuple[Allocation, ...], runs: tuple[Run, ...], spec: Spec
) -> tuple[tuple[Allocation, ...], tuple[Run, ...]]:
    """New allocations for runs that have none, as far as `parallelism` lets; lowest indices first.

    Their records are written to status before anything is submitted under their names.
    """
    most = 1 if is_open(situation.plan) else spec.parallelism
    while sum(each.state is not AllocationState.ENDED for each in allocations) < most:
        waiting = [each.index for each in runs if each.allocation is None and not each.phase.finished]
        if not waiting:
            break
        number = len(allocations)
        taken = frozenset(waiting[: spec.runs_per_allocation])
        opened = Allocation(
            id=number,
            name=situation.resource.identity.job_name(situation.cluster, number),
            state=AllocationState.SUBMITTING,
            runs=tuple(sorted(taken)),
            claimed=situation.now.replace(microsecond=0),
            avoids=_avoided(situation, allocations, taken, spec),
            time_limit_seconds=_more_time(situation, allocations, taken, spec),
            login=situation.login,
        )
        allocations = (*allocations, opened)
        runs = tuple(
            Run(index=each.index, arm=each.arm, phase=Phase.PENDING, allocation=number) if each.index in taken else each
            for each in runs
        )
    return allocations, runs


def _avoided(
    situation: Situation, allocations: tuple[Allocation, ...], runs: frozenset[int], spec: Spec
) -> tuple[str, ...] | None:
    """Nodes that were broken under earlier allocations of these runs; None: none, or there would be no other left.

    A pod keeps off them only where there is another, which its scheduler knows.
    """
    plan, pods = situation.plan, spec.backend is Backend.PODS
    if not isinstance(plan, RunPlan) or (plan.slurm.node_list and not pods):
        return None
    failed = [each for each in allocations if runs & {*each.runs} and keeps_off(each)]
    nodes = tuple(sorted({each.node for each in failed if each.node and re.fullmatch(SLURM_WORD, each.node)}))
    others = pods or (plan.usable_nodes is not None and len(nodes) < plan.usable_nodes)
    return nodes if nodes and others else None


def keeps_off(allocation: Allocation) -> bool:
    """Whether an allocation ended for a fault of its node."""
    rule = rule_of(allocation.reason)
    return allocation.state is AllocationState.ENDED and rule is not None and rule.avoids


def _more_time(
    situation: Situation, allocations: tuple[Allocation, ...], runs: frozenset[int], spec: Spec
) -> int | None:
    """The time limit of an allocation for runs that the recipe's own limit ended before; None: the plan's."""
    if spec.time_limit_seconds is not None or not isinstance(situation.plan, RunPlan):
        return None
    ended = any(each.reason == Reason.TIME_LIMIT.value and runs & {*each.runs} for each in allocations)
    minutes = more_minutes(situation.plan)
    return 60 * minutes if ended and minutes else None


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
        and each.ending is None
        and each.id not in situation.outcomes
        and (each.id not in situation.observed or situation.observed[each.id].state is JobState.UNSEEN)
    )
