"""What the runs need ready before they are submitted: which cache entries are asked for, and how far they are.

Entries belong to no Speedrun. What is written here is what this Speedrun waits for: an attempt that failed while it
waited counts for it, one that failed before does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from speedrun_operator.api.phases import AllocationState, Phase, PreparationState, Reason
from speedrun_operator.api.spec import Backend, Prepare, Spec
from speedrun_operator.api.status import Allocation, Preparation, Status
from speedrun_operator.diagnosis import rule_of
from speedrun_operator.lifecycle import makers
from speedrun_operator.lifecycle.conditions import MESSAGE_LIMIT, word
from speedrun_operator.lifecycle.observation import (
    Busy,
    JobState,
    Observed,
    Prepared,
    PrepareOutcome,
    Ready,
    Rejected,
    Underway,
    Unknown,
)
from speedrun_operator.lifecycle.situation import Ask, Policy, Situation
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.manifest import Manifest
from speedrun_operator.preparation.needs import Kind, Need, kinds, needs

_LIVE = (PreparationState.QUEUED, PreparationState.RUNNING)


@dataclass(frozen=True, slots=True)
class Preparing:
    """What the entries came to. `ready`: runs may be submitted. `failed`: they never can be."""

    records: tuple[Preparation, ...] = ()
    ready: bool = True
    failed: Preparation | None = None
    asks: tuple[Ask, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether something is being prepared, or was, while something else is not ready yet."""
        return not self.ready and any(each.state in (*_LIVE, PreparationState.READY) for each in self.records)

    @property
    def waits(self) -> Preparation | None:
        """The entry that could not be asked for, with the reason."""
        return next((each for each in self.records if each.state is PreparationState.WAITING and each.reason), None)

    @property
    def refused(self) -> Preparation | None:
        """The entry whose job Slurm does not take: only another spec, or other settings, help."""
        rejected = self.failed is not None and self.failed.reason == Reason.SUBMISSION_REJECTED.value
        return self.failed if rejected else None

    def not_before(self) -> list[datetime]:
        return [each.not_before for each in self.records if each.not_before is not None]


def prepared(situation: Situation, old: Status, allocations: tuple[Allocation, ...], spec: Spec) -> Preparing:
    """The entries moved on by what was seen of them. `old`: the status as it was, `allocations` as they are now."""
    plan = situation.plan
    inline = spec.slurm.prepare is Prepare.INLINE or spec.backend is not Backend.SLURM
    if not isinstance(plan, RunPlan) or inline or not kinds(plan):
        return Preparing(old.preparing)
    known = {each.stage: each for each in old.preparing}
    if _found_missing(old.allocations, allocations):
        known = {stage: _looked_for_again(each) for stage, each in known.items()}
    records: dict[Kind, Preparation] = {}
    inputs = None
    for kind in kinds(plan):
        need = next((each for each in needs(plan, inputs) if each.kind is kind), None)
        if need is None:
            break
        records[kind] = _moved(_record(known.get(kind.value), need, situation.login), need, situation, spec)
        if kind is Kind.CODE and records[kind].state is PreparationState.READY:
            inputs = records[kind].inputs or {}
    found = tuple(records.values())
    ready = len(found) == len(kinds(plan)) and all(each.state is PreparationState.READY for each in found)
    failed = next((each for each in found if each.state is PreparationState.FAILED), None)
    asks = _asks(records, needs(plan, inputs), situation)
    return Preparing(found, ready, failed, () if failed else asks)


def shown(status: Status, preparing: Preparing, *, live: bool) -> Status:
    """`status` with what is being prepared. While nothing else goes on, that is the phase."""
    update: dict[str, object] = {"preparing": preparing.records}
    if live and status.phase is Phase.PENDING and not preparing.ready:
        waits = next((each for each in preparing.records if each.reason), None)
        update["phase"] = Phase.PREPARING if preparing.begun else Phase.PENDING
        update["reason"] = status.reason or (waits.reason if waits else None)
    return status.model_copy(update=update)


def _record(known: Preparation | None, need: Need, login: str | None) -> Preparation:
    if known is not None and known.key == need.key and login in (known.login, ""):
        return known  # another login has a cache of its own
    return Preparation(stage=need.kind.value, key=need.key, state=PreparationState.WAITING, login=login)


def _found_missing(before: tuple[Allocation, ...], now: tuple[Allocation, ...]) -> bool:
    """Whether a job that just ended missed an entry."""
    known = {each.id for each in before if each.state is AllocationState.ENDED}
    ended = [each for each in now if each.state is AllocationState.ENDED and each.id not in known]
    return any(each.reason == Reason.CACHE_MISSING.value for each in ended)


def _looked_for_again(record: Preparation) -> Preparation:
    if record.state is not PreparationState.READY:
        return record
    return record.model_copy(update={"state": PreparationState.WAITING})


def _asks(records: dict[Kind, Preparation], wanted: Iterable[Need], situation: Situation) -> tuple[Ask, ...]:
    """What to ask for now: whatever waits, has what it is made of, and was not asked for in this round."""
    asks = []
    for need in wanted:
        record = records.get(need.kind)
        if record is None or record.state is not PreparationState.WAITING or need.key in situation.ensured:
            continue
        there = all(records[kind].state is PreparationState.READY for kind in need.after if kind in records)
        due = record.not_before is None or situation.now >= record.not_before
        if there and due:
            attempt = -1 if record.attempt is None else record.attempt
            asks.append(Ask(need, attempt, _avoided(record, situation)))
    return tuple(asks)


def _avoided(record: Preparation, situation: Situation) -> tuple[str, ...]:
    """Nodes that were broken under earlier attempts, where there are others."""
    nodes, plan = record.avoids or (), situation.plan
    usable = plan.usable_nodes if isinstance(plan, RunPlan) else None
    return nodes if usable is not None and len(nodes) < usable else ()


def _moved(record: Preparation, need: Need, situation: Situation, spec: Spec) -> Preparation:
    if record.state in (PreparationState.READY, PreparationState.FAILED):
        return record
    if record.state is PreparationState.WAITING:
        outcome = situation.ensured.get(need.key)
        return record if outcome is None else _after_asking(record, outcome)
    seen = situation.prepared.get(need.key)
    return record if seen is None else _after_look(record, seen, situation, spec)


def _after_asking(record: Preparation, outcome: PrepareOutcome) -> Preparation:
    match outcome:
        case Ready(manifest=manifest):
            return _ready(record, manifest)
        case Underway(attempt=attempt, job_id=job_id, submitted=submitted, broken=broken):
            rebuilt = (record.rebuilt or 0) + (broken is not None)
            if rebuilt > 1:
                message = f"{record.stage} {record.key} was made anew and is broken again: {broken}"
                return _update(record, PreparationState.FAILED, Reason.CACHE_BROKEN.value, message)
            said = f"{record.stage} {record.key} was broken ({broken}) and is made anew" if broken else None
            reason = Reason.CACHE_BROKEN.value if broken else None
            made = _update(record, PreparationState.QUEUED, reason, said)
            update = {"attempt": attempt, "job_id": job_id, "submitted": submitted, "rebuilt": rebuilt or None}
            return made.model_copy(update={**update, "not_before": None})
        case Rejected(reason=reason, message=message):
            return _update(record, PreparationState.FAILED, reason, makers.refused(message))
        case Busy(reason=reason, message=message) | Unknown(reason=reason, message=message):
            return _update(record, PreparationState.WAITING, reason, message)


def _after_look(record: Preparation, seen: Prepared, situation: Situation, spec: Spec) -> Preparation:
    if seen.manifest is not None:
        return _ready(record, seen.manifest)
    job = seen.job
    if job.state is JobState.UNSEEN:
        if job.unseen_for < situation.policy.lost_after:
            return record
        words = f"no witness has known job {record.job_id} for {int(job.unseen_for.total_seconds())} s"
        return _failed(record, Reason.JOB_LOST.value, words, situation, spec)
    if job.state is JobState.QUEUED:
        return _queued(record, job, situation.policy)
    if job.state is JobState.RUNNING:
        stage = job.log.own.stage if job.log and job.log.own else None
        far = {"done": stage.done, "total": stage.total, "unit": stage.unit} if stage and stage.total else {}
        return _update(record, PreparationState.RUNNING, None, None).model_copy(update=far)
    if not job.log_complete:
        return record
    reason, words = makers.cause(job, situation.controller_started)
    if node := makers.broken_node(job, reason):
        record = record.model_copy(update={"avoids": tuple(sorted({*(record.avoids or ()), node}))})
    return _failed(record, reason, words, situation, spec)


def _queued(record: Preparation, job: Observed, policy: Policy) -> Preparation:
    """What will never start is given up; its job is ended by `resync` once nobody waits for it."""
    words = makers.waits(job)
    if makers.never_runs(job, policy):
        said = f"Slurm will never run job {record.job_id}, which prepares {record.stage} ({job.reason}): {words}"
        return _update(record, PreparationState.FAILED, Reason.NEVER_RUNS.value, said)
    reason = word(job.reason) if job.reason else None
    return _update(record, PreparationState.QUEUED, reason, f"job {record.job_id} waits: {words}" if words else None)


def _failed(record: Preparation, reason: str, message: str, situation: Situation, spec: Spec) -> Preparation:
    """An attempt ended without the entry: another one follows, or that was it."""
    failures = (record.failures or 0) + 1
    where = f"job {record.job_id}, log .cache/jobs/{record.key}/try-{record.attempt}/log below slurm.root"
    said = f"preparing {record.stage} failed: {message} ({where})"
    rule, uncounted = rule_of(reason), dict(record.uncounted or {})
    free = makers.is_free(reason)
    if free:
        uncounted[reason] = uncounted.get(reason, 0) + 1
    counted = failures - sum(uncounted.values())
    again = uncounted[reason] <= situation.policy.most_lost if free else counted <= max(1, spec.backoff_limit)
    again = again and makers.may_follow(reason)
    if reason == Reason.JOB_FAILED.value:
        reason = Reason.PREPARE_FAILED.value
    state = PreparationState.WAITING if again else PreparationState.FAILED
    least = timedelta(seconds=rule.wait_seconds if rule is not None else 0)
    later = max(_later(max(1, counted), situation.policy), least)
    not_before = (situation.now + later).replace(microsecond=0) if again else None
    update = {"failures": failures, "uncounted": uncounted or None, "not_before": not_before}
    return _update(record, state, reason, said).model_copy(update=update)


def _later(failures: int, policy: Policy) -> timedelta:
    doubled: timedelta = policy.retry_first * int(2 ** min(failures - 1, 20))
    return min(doubled, policy.retry_longest)


def _ready(record: Preparation, manifest: Manifest) -> Preparation:
    update: dict[str, object] = {"bytes": manifest.bytes, "inputs": manifest.inputs or None, "not_before": None}
    if record.total is not None:
        update["done"] = record.total
    return _update(record, PreparationState.READY, None, None).model_copy(update=update)


def _update(record: Preparation, state: PreparationState, reason: str | None, message: str | None) -> Preparation:
    short = message[:MESSAGE_LIMIT] if message else None
    return record.model_copy(update={"state": state, "reason": reason, "message": short})
