"""The state machine: one situation → the next status, the submissions to make, the events to post. Pure.

Order: move allocations on, then runs, then see whether the work is finished or goes on in another allocation, then sum
up. A finished Speedrun is final.
"""

from __future__ import annotations

from decimal import Decimal

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase, Reason
from speedrun_operator.api.status import Allocation, PlanSummary, Run, Status
from speedrun_operator.lifecycle import admission, display, notices, submission
from speedrun_operator.lifecycle.allocations import after_observation, after_outcome
from speedrun_operator.lifecycle.conditions import Say, update, word
from speedrun_operator.lifecycle.observation import Busy, Unknown
from speedrun_operator.lifecycle.runs import advance
from speedrun_operator.lifecycle.situation import Decision, Situation, Submit
from speedrun_operator.planning import RunPlan
from speedrun_operator.progress.fold import Progress

FIRST_ARM = "A"


def is_finished(status: Status) -> bool:
    condition = status.condition(ConditionType.FINISHED)
    return condition is not None and condition.status == "True"


def decide(situation: Situation) -> Decision:
    """What follows from `situation`."""
    old = situation.resource.status
    if is_finished(old) or situation.resource.deleting:
        return Decision(old)
    allocations = tuple(_moved(each, situation) for each in old.allocations)
    says: list[Say] = []
    plan = old.plan
    if isinstance(situation.plan, RunPlan) and (plan is None or not allocations):
        plan = situation.plan.summary()
    if not allocations:
        verdict = admission.admit(situation)
        says.append(verdict.say())
        if verdict.refused:
            return _decision(situation, _refused(situation, old, says, verdict.reason, verdict.message))
        if not verdict.admitted:
            waiting = old.model_copy(update={"plan": plan, "reason": verdict.reason, "phase": Phase.PENDING})
            return _decision(situation, _with(situation, waiting, [*says, *_open_says()]))
    runs = _runs(situation, old, allocations, plan)
    if submission.needs_another(allocations, runs, situation.policy.most_lost):
        number = None  # while submitting has to wait, the work is Pending and not Failed
        if situation.waiting is None:
            allocations = (*allocations, submission.open_allocation(situation, allocations))
            number = allocations[-1].id
        runs = tuple(
            each if each.counted else Run(index=each.index, arm=each.arm, phase=Phase.PENDING, allocation=number)
            for each in runs
        )
    status = _summed_up(situation, old, plan, allocations, runs, says)
    return _decision(situation, status, submission.to_submit(situation, allocations))


def _moved(allocation: Allocation, situation: Situation) -> Allocation:
    if outcome := situation.outcomes.get(allocation.id):
        allocation = after_outcome(allocation, outcome, situation.now.replace(microsecond=0))
    if seen := situation.observed.get(allocation.id):
        allocation = after_observation(allocation, seen, situation.policy.lost_after)
    return allocation


def _runs(
    situation: Situation, old: Status, allocations: tuple[Allocation, ...], plan: PlanSummary | None
) -> tuple[Run, ...]:
    # Where somebody took the runs out of the status, they are those of the job that is there.
    newest = allocations[-1].id if allocations else None
    runs = old.runs or (Run(index=0, arm=FIRST_ARM, phase=Phase.PENDING, allocation=newest),)
    if plan is None or plan.target is None:
        return runs
    target = Decimal(repr(plan.target))
    by_id = {each.id: each for each in allocations}
    moved = []
    for run in runs:
        allocation = by_id.get(run.allocation) if run.allocation is not None else None
        if allocation is None or run.phase.finished:
            moved.append(run)
            continue
        seen = situation.observed.get(allocation.id)
        moved.append(advance(run, allocation, seen.log if seen else None, target))
    return tuple(moved)


def _open_says() -> list[Say]:
    return [
        Say(ConditionType.SUBMITTED, "False", Reason.NOT_SUBMITTED.value),
        Say(ConditionType.STARTED, "False", Reason.NOT_STARTED.value),
        Say(ConditionType.SUCCEEDED, "Unknown", Reason.IN_PROGRESS.value),
        Say(ConditionType.FINISHED, "False", Reason.IN_PROGRESS.value),
    ]


def _refused(situation: Situation, old: Status, says: list[Say], reason: str, message: str) -> Status:
    ended = [
        Say(ConditionType.SUBMITTED, "False", Reason.NOT_SUBMITTED.value),
        Say(ConditionType.STARTED, "False", Reason.NOT_STARTED.value),
        Say(ConditionType.SUCCEEDED, "False", reason, message),
        Say(ConditionType.FINISHED, "True", reason, message),
    ]
    return _with(situation, old.model_copy(update={"phase": Phase.FAILED, "reason": reason}), [*says, *ended])


def _with(situation: Situation, status: Status, says: list[Say]) -> Status:
    generation = situation.resource.generation
    conditions = update(status.conditions, says, generation=generation, now=situation.now)
    return status.model_copy(update={"conditions": conditions, "observed_generation": generation})


def _decision(situation: Situation, status: Status, submit: tuple[Submit, ...] = ()) -> Decision:
    return Decision(status, submit, notices.between(situation.resource.status, status))


def _summed_up(
    situation: Situation,
    old: Status,
    plan: PlanSummary | None,
    allocations: tuple[Allocation, ...],
    runs: tuple[Run, ...],
    says: list[Say],
) -> Status:
    newest = allocations[-1] if allocations else None
    run = display.shown_run(runs)
    finished = all(each.phase.finished for each in runs)
    seen = situation.observed.get(newest.id) if newest else None
    log = seen.log if seen else None
    afresh = run is not None and run.phase in (Phase.PENDING, Phase.QUEUED)  # numbers of an earlier start are gone
    says += _backend_says(situation)
    update_: dict[str, object] = {
        "plan": plan,
        "allocations": allocations,
        "runs": runs,
        "phase": runs[-1].phase if finished else display.phase_of(runs, allocations),
        **display.columns(plan, allocations, runs),
    }
    if run is not None:
        update_ |= {"val_loss": run.val_loss, "train_time": run.train_time, "train_time_ms": run.train_time_ms}
        update_["reason"] = run.reason if finished else _live_reason(old, says, newest)
        if newest is not None:
            update_["clock"] = display.clock(newest, None if afresh else log, run, None if afresh else old.clock)
        record = log.run(run.index) if log and not afresh else None
        if log is not None or afresh:
            update_ |= display.training(record.progress if record else Progress())
    if finished:
        update_["estimated_remaining_seconds"] = None
    says += _job_says(newest)
    says += _end_says(run, finished)
    if finished and newest is not None and newest.reason == Reason.SUBMISSION_REJECTED.value:
        says.append(Say(ConditionType.ADMITTED, "False", newest.reason, newest.message or ""))
    return _with(situation, old.model_copy(update=update_), says)


def _live_reason(old: Status, says: list[Say], newest: Allocation | None) -> str | None:
    """While the backend is out of reach, that; it is so until it answers, whatever else wakes us meanwhile."""
    before = old.condition(ConditionType.BACKEND_REACHABLE)
    reachable = next((each for each in says if each.type is ConditionType.BACKEND_REACHABLE), before)
    if reachable is not None and reachable.status == "False":
        return reachable.reason
    return word(newest.reason) if newest and newest.reason else None


def _backend_says(situation: Situation) -> list[Say]:
    silent: list[Busy | Unknown] = [situation.unanswered] if situation.unanswered else []
    silent += [each for each in situation.outcomes.values() if isinstance(each, Busy | Unknown) and not each.reachable]
    if silent:
        return [Say(ConditionType.BACKEND_REACHABLE, "False", silent[0].reason, silent[0].message)]
    if situation.observed or situation.outcomes:
        return [Say(ConditionType.BACKEND_REACHABLE, "True", Reason.REACHABLE.value, "the backend answers")]
    return []


def _job_says(newest: Allocation | None) -> list[Say]:
    if newest is None:
        return _open_says()[:2]
    if newest.job_id is None:
        reason = newest.reason or Reason.SUBMITTING.value
        says = [Say(ConditionType.SUBMITTED, "False", reason, newest.message or "")]
    else:
        says = [
            Say(ConditionType.SUBMITTED, "True", Reason.SUBMITTED.value, f"job {newest.job_id}, named {newest.name}")
        ]
    ended = newest.state is AllocationState.ENDED
    if newest.started is not None or newest.state is AllocationState.RUNNING:
        message = f"job {newest.job_id} {'ran' if ended else 'runs'}{f' on {newest.node}' if newest.node else ''}"
        return [*says, Say(ConditionType.STARTED, "True", Reason.STARTED.value, message)]
    message = ""
    if newest.job_id is not None and ended:
        message = f"job {newest.job_id} ended before it started"
    elif newest.job_id is not None and newest.reason:
        message = f"job {newest.job_id} waits: {newest.reason}"
    return [*says, Say(ConditionType.STARTED, "False", newest.reason or Reason.NOT_STARTED.value, message)]


def _end_says(run: Run | None, finished: bool) -> list[Say]:
    if run is None or not finished:
        return _open_says()[2:]
    reason, message = run.reason or Reason.COMPLETED.value, run.message or ""
    return [
        Say(ConditionType.SUCCEEDED, "True" if run.phase is Phase.SUCCEEDED else "False", reason, message),
        Say(ConditionType.FINISHED, "True", reason, message),
    ]
