"""The state machine: one situation → the next status, what to submit and cancel, the events to post. Pure.

Order: move allocations on, then their runs; give back what is to be run again; mark what is to end; give up what can
never be run; open new allocations; sum up. A finished Speedrun is final; a live status that another object wrote counts
for nothing.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TypeVar

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase, PreparationState
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend, RecipeRef, Spec
from speedrun_operator.api.status import Allocation, PlanSummary, Run, Status
from speedrun_operator.diagnosis import for_pods, rule_of
from speedrun_operator.lifecycle import (
    admission,
    code,
    ending,
    giving_up,
    notices,
    preparing,
    retry,
    submission,
    summary,
)
from speedrun_operator.lifecycle.allocations import after_observation, after_outcome
from speedrun_operator.lifecycle.conditions import Say, update
from speedrun_operator.lifecycle.evidence import with_evidence
from speedrun_operator.lifecycle.outcome import outcome
from speedrun_operator.lifecycle.runs import advance, ended_by_itself
from speedrun_operator.lifecycle.situation import Ask, Decision, Situation, Submit
from speedrun_operator.lifecycle.suspend import suspension
from speedrun_operator.planning import FIRST_ARM, RunPlan

Told = TypeVar("Told", Allocation, Run)


def is_finished(status: Status) -> bool:
    condition = status.condition(ConditionType.FINISHED)
    return condition is not None and condition.status == "True"


def is_settled(status: Status) -> bool:
    """Whether polls tell the rest. They look at jobs: what could not be asked for has none, and is asked for again."""
    submitting = any(each.state is AllocationState.SUBMITTING for each in status.allocations)
    return not submitting and not any(
        each.state is PreparationState.WAITING and each.reason and not each.not_before for each in status.preparing
    )


def decide(situation: Situation) -> Decision:
    """What follows from `situation`."""
    old = situation.resource.status
    if is_finished(old) or situation.resource.deleting:
        return Decision(old)
    if is_of_another(situation.resource):
        old = Status()
    spec = situation.resource.spec or Spec(recipe=RecipeRef(name="unknown"))
    plan = old.plan
    if isinstance(situation.plan, RunPlan) and (plan is None or not old.allocations):
        plan = situation.plan.summary()
    old = old.model_copy(update={"plan": code.with_commit(plan, situation.observed.values())})
    if not old.allocations:
        verdict = admission.admit(situation)
        if verdict.refused:
            refused = summary.refused(old, verdict, situation.now)
            return _decision(situation, refused, [verdict.say(), *summary.refusal(verdict)])
        if not verdict.admitted:
            waiting = old.model_copy(update={"reason": verdict.reason, "phase": Phase.PENDING})
            return _decision(situation, waiting, [verdict.say(), *summary.open_says()])
        old = old.model_copy(update={"start_time": old.start_time or situation.now.replace(microsecond=0)})
    return _live(situation, old, spec)


def is_of_another(resource: Resource) -> bool:
    """Whether the status tells of another object's jobs, as one that was restored from a back-up does."""
    return any(resource.identity.uid not in each.name for each in resource.status.allocations)


def _live(situation: Situation, old: Status, spec: Spec) -> Decision:
    now, verdict = situation.now, admission.admit(situation)
    says = [] if old.allocations else [verdict.say()]
    old, suspended_says = suspension(old, spec, now)
    late = ending.overdue(old, spec, now)
    allocations = tuple(_moved(each, situation) for each in old.allocations)
    planned = situation.plan if isinstance(situation.plan, RunPlan) else None
    retries = retry.Retries.after(old.allocations, allocations, spec, situation.policy, planned)
    runs = _runs(situation, old, allocations, retries, spec)
    allocations = ending.marked(allocations, situation, spec, late)
    made = preparing.prepared(situation, old, allocations, spec)
    kept = giving_up.given_up(runs, allocations, late, verdict, made.failed)
    if kept != runs and late is None and verdict.refused:
        says = [verdict.say()]
    runs = kept
    not_before = retries.not_before(old.next_attempt_time, now)
    may = situation.waiting is None and not spec.suspend
    if may and made.ready and (not_before is None or now >= not_before):
        allocations, runs = submission.open_allocations(situation, allocations, runs, spec)
    waits = not_before is not None and now < not_before and any(map(giving_up.is_waiting, runs))
    old = old.model_copy(update={"next_attempt_time": not_before if waits else None})
    end = outcome(runs, allocations, _target(old.plan))
    status, summed = summary.summed_up(situation, old, allocations, runs, end, spec)
    status = preparing.shown(status, made, live=end is None)
    if not allocations and (held := made.refused or made.waits) is not None:
        says = [admission.held(held).say()]
    needed = may and end is None and any(map(giving_up.is_waiting, runs))
    times = [] if end is not None else [old.next_attempt_time, ending.deadline(old, spec), *made.not_before()]
    return _decision(
        situation,
        status,
        [*says, *suspended_says, *summed],
        submit=submission.to_submit(situation, allocations),
        cancel=ending.to_cancel(allocations, situation),
        prepare=made.asks if needed else (),
        wake_at=min((each for each in times if each is not None and each > now), default=None),
    )


def _moved(allocation: Allocation, situation: Situation) -> Allocation:
    now = situation.now.replace(microsecond=0)
    if tried := situation.outcomes.get(allocation.id):
        allocation = after_outcome(allocation, tried, now)
    if seen := situation.observed.get(allocation.id):
        allocation = after_observation(allocation, seen, situation.policy.lost_after, situation.controller_started)
    return _in_its_words(allocation, situation)


def _runs(
    situation: Situation, old: Status, allocations: tuple[Allocation, ...], retries: retry.Retries, spec: Spec
) -> tuple[Run, ...]:
    """Every run as it stands: as many as are wanted, moved on by their allocations, given back where those failed."""
    known = old.runs
    if not known and allocations:  # somebody took them out of the status: they are those of the jobs that are there
        known = tuple(
            Run(index=index, arm=FIRST_ARM, phase=Phase.PENDING, allocation=each.id)
            for index, each in sorted({index: each for each in allocations for index in each.runs}.items())
        )
    more = range(len(known), max(len(known), spec.runs))
    runs = (*known, *(Run(index=each, arm=FIRST_ARM, phase=Phase.PENDING) for each in more))
    target = _target(old.plan)
    if target is None:
        return runs
    by_id = {each.id: each for each in allocations}
    runs = tuple(
        each if each.phase.finished or each.allocation in by_id else each.model_copy(update={"allocation": None})
        for each in runs
    )
    return tuple(_run(each, by_id, situation, retries, target) for each in runs)


def _run(run: Run, by_id: dict[int, Allocation], situation: Situation, retries: retry.Retries, target: Decimal) -> Run:
    allocation = by_id.get(run.allocation) if run.allocation is not None else None
    if allocation is None or run.phase.finished:
        return run
    seen = situation.observed.get(allocation.id)
    log = seen.log if seen else None
    run = _in_its_words(with_evidence(advance(run, allocation, log, target), log), situation)
    if run.phase is not Phase.FAILED:
        return run
    record = log.run(run.index) if log is not None else None
    trained = record is not None and record.trained
    if log is None or not ended_by_itself(run, allocation, log):
        return retries.given_back(run, allocation, trained=trained)
    rule = rule_of(run.reason)
    if rule is None or not rule.runs_again(trained=trained):
        return run
    if allocation.state is not AllocationState.ENDED:  # others of its series go on first
        return run.model_copy(update={"phase": Phase.PENDING})
    return retries.given_back(run, allocation, trained=trained)


def _in_its_words(record: Told, situation: Situation) -> Told:
    """`record` with a remedy that fits the place that it is of."""
    spec = situation.resource.spec
    if spec is None or spec.backend is not Backend.PODS:
        return record
    return record.model_copy(update={"message": for_pods(record.reason, record.message)})


def _target(plan: PlanSummary | None) -> Decimal | None:
    return None if plan is None or plan.target is None else Decimal(repr(plan.target))


def _decision(
    situation: Situation,
    status: Status,
    says: list[Say],
    *,
    submit: tuple[Submit, ...] = (),
    cancel: tuple[int, ...] = (),
    prepare: tuple[Ask, ...] = (),
    wake_at: datetime | None = None,
) -> Decision:
    generation = situation.resource.generation
    conditions = update(status.conditions, says, generation=generation, now=situation.now)
    status = status.model_copy(update={"conditions": conditions, "observed_generation": generation})
    return Decision(status, submit, cancel, prepare, notices.between(situation.resource.status, status), wake_at)
