"""What must hold of every decision, whatever was seen before it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from speedrun_operator.api.phases import FINISHED, AllocationState, Phase
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Status
from speedrun_operator.diagnosis import Retry
from speedrun_operator.diagnosis.diagnose import RULES
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.situation import Decision, Policy
from speedrun_operator.progress.allocation import AllocationProgress

TARGET = Decimal("3.28")
MOST_LOST = Policy().most_lost
LIMITED = frozenset(rule.reason for rule in RULES if rule.retry is Retry.LIMITED)
OUTSIDE = frozenset({"JobLost", "NodesRestarted", "Suspended", "TimeLimit"})


def live(status: Status) -> list[Allocation]:
    return [each for each in status.allocations if each.state is not AllocationState.ENDED]


class Witness:
    """Follows one life: what the logs ever said of each run, and the highest limit of retries that there was."""

    def __init__(self) -> None:
        self.losses: dict[int, set[float]] = defaultdict(set)
        self.finals: dict[int, set[tuple[float | None, int]]] = defaultdict(set)
        self.diverged: set[int] = set()
        self.limit = 0

    def holds(
        self,
        before: Status,
        decision: Decision,
        changes: Mapping[str, Any],
        spec: Spec,
        now: datetime,
        *,
        protected: bool,
    ) -> None:
        """Raises AssertionError where `decision`, made on `before` and `changes`, is not as it must be."""
        after = decision.status
        self.limit = max(self.limit, spec.backoff_limit)
        self._read(before, changes)
        finished_is_final(before, after)
        allocations_go_on(before, after, spec)
        runs_have_one_job(after, spec, before)
        actions_are_allowed(decision, changes, spec, now, protected=protected)
        conditions_move(before, after)
        assert is_finished(after) == (after.phase in FINISHED)
        self._attempts_are_bounded(after)
        failures_are_for_good(before, after, spec)
        self._numbers_are_of_logs(after)
        if is_finished(after):
            end_is_what_the_runs_came_to(after, spec)

    def _read(self, before: Status, changes: Mapping[str, Any]) -> None:
        for number, seen in changes.get("observed", {}).items():
            if seen.log is None or number >= len(before.allocations):
                continue
            for index in before.allocations[number].runs:
                self._read_run(index, seen.log)

    def _read_run(self, index: int, log: AllocationProgress) -> None:
        record = log.run(index)
        if record is None:
            return
        said, final = record.progress.last_validation, record.progress.final
        if said is not None and said.val_loss is not None:
            self.losses[index].add(float(said.val_loss))
        if final is not None:
            loss = None if final.val_loss is None else float(final.val_loss)
            self.finals[index].add((loss, final.train_time_ms))
        if record.progress.diverged_step is not None:
            self.diverged.add(index)

    def _numbers_are_of_logs(self, after: Status) -> None:
        for run in after.runs:
            assert run.val_loss is None or run.val_loss in self.losses[run.index]
            if run.counted and run.val_loss is not None:
                assert (run.val_loss, run.train_time_ms) in self.finals[run.index], "a result that no log has"
                assert (run.phase is Phase.SUCCEEDED) == (Decimal(repr(run.val_loss)) <= TARGET)
            elif run.counted:
                assert run.index in self.diverged
                assert run.phase is Phase.MISSED
        if not is_finished(after):
            assert after.val_loss is None or after.val_loss in {each.val_loss for each in after.runs}

    def _attempts_are_bounded(self, after: Status) -> None:
        tried_again = set()
        for run in after.runs:
            attempts = [each for each in after.allocations if run.index in each.runs]
            for attempt in attempts[:-1]:
                assert attempt.state is AllocationState.ENDED
                assert attempt.reason in LIMITED | OUTSIDE, "run again without a reason"
                tried_again |= {attempt.id} if attempt.reason in LIMITED else set()
            assert sum(each.reason == "JobLost" for each in attempts[:-1]) <= MOST_LOST
        assert len(tried_again) <= self.limit


def failures_are_for_good(before: Status, after: Status, spec: Spec) -> None:
    """No run fails for what is to be run again."""
    old = {each.index: each for each in before.runs}
    failed = [each for each in after.runs if each.phase is Phase.FAILED and old.get(each.index) != each]
    broken = sum(each.state is AllocationState.ENDED and each.reason in LIMITED for each in after.allocations)
    for run in failed:
        assert run.reason != "Suspended"
        assert run.reason not in LIMITED or spec.backoff_limit == 0
        assert run.reason != "BackoffLimitExceeded" or broken > spec.backoff_limit > 0
        lost = [each for each in after.allocations if each.reason == "JobLost" and run.index in each.runs]
        assert run.reason != "JobLost" or len(lost) > MOST_LOST


def finished_is_final(before: Status, after: Status) -> None:
    if is_finished(before):
        assert after == before
    for old, new in zip(before.runs, after.runs, strict=False):
        assert old == new or not old.phase.finished, "what a run came to never changes"
        assert not old.counted or new.counted
    for was, now in zip(before.allocations, after.allocations, strict=False):
        assert was == now or was.state is not AllocationState.ENDED, "Ended is final"
        assert was.ending is None or now.ending == was.ending, "the first reason for an end stays"


def allocations_go_on(before: Status, after: Status, spec: Spec) -> None:
    names = [each.name for each in after.allocations]
    assert len(set(names)) == len(names)
    assert [each.id for each in after.allocations] == list(range(len(names)))
    assert names[: len(before.allocations)] == [each.name for each in before.allocations]
    assert len(live(after)) <= max(spec.parallelism, len(live(before)))
    opened = after.allocations[len(before.allocations) :]
    assert not opened or (len(live(after)) <= spec.parallelism and not spec.suspend)
    assert all(1 <= len(each.runs) <= spec.runs_per_allocation for each in opened)


def runs_have_one_job(after: Status, spec: Spec, before: Status) -> None:
    if not after.allocations:
        return
    assert [each.index for each in after.runs] == list(range(max(len(before.runs), spec.runs))) or is_finished(before)
    taken = [index for each in live(after) for index in each.runs]
    assert len(set(taken)) == len(taken), "a run in two live jobs"
    alive = {each.id: each for each in live(after)}
    for run in after.runs:
        if not run.phase.finished and run.allocation is not None:
            assert run.index in alive[run.allocation].runs, "a run of a job that has ended, or is another's"


def actions_are_allowed(
    decision: Decision, changes: Mapping[str, Any], spec: Spec, now: datetime, *, protected: bool
) -> None:
    after = decision.status
    assert decision.wake_at is None or decision.wake_at > now
    may_submit = protected and "waiting" not in changes and not is_finished(after) and not spec.suspend
    assert not decision.submit or may_submit
    for submit in decision.submit:
        one = after.allocations[submit.allocation]
        assert (one.state, one.ending) == (AllocationState.SUBMITTING, None)
    for number in decision.cancel:
        one = after.allocations[number]
        assert one.ending is not None and one.state is not AllocationState.ENDED, "cancelled, and status says nothing"
        assert number not in changes.get("gone", ())
    marked = {each.id for each in live(after) if each.ending is not None}
    assert marked <= {*decision.cancel, *changes.get("gone", ())} or is_finished(after), "one that nobody cancels"
    assert not spec.suspend or marked == {each.id for each in live(after)} or is_finished(after)


def conditions_move(before: Status, after: Status) -> None:
    old = {each.type: each for each in before.conditions}
    for condition in after.conditions:
        was = old.pop(condition.type, None)
        if was is not None and was.status == condition.status:
            assert condition.last_transition_time == was.last_transition_time
    assert not old, "a condition that was said is never taken back"


def end_is_what_the_runs_came_to(after: Status, spec: Spec) -> None:
    assert not live(after)
    counted = [each for each in after.runs if each.counted]
    losses = [Decimal(repr(each.val_loss)) for each in counted if each.val_loss is not None]
    mean = sum(losses, Decimal(0)) / len(losses) if losses else None
    assert (after.val_loss is None) == (mean is None)
    assert after.val_loss is None or mean is None or math.isclose(after.val_loss, float(mean), abs_tol=1e-6)
    if len(counted) < max(len(after.runs), 1):
        assert after.phase is Phase.FAILED
    else:
        reached = mean is not None and len(losses) == len(counted) and mean <= TARGET
        assert after.phase is (Phase.SUCCEEDED if reached else Phase.MISSED)
