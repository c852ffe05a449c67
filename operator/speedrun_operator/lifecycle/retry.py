"""Which runs of an ended allocation are run again, and when.

What the infrastructure did is tried again: a failed node, a preemption, a limit of a registry, a job that Slurm lost
(`diagnosis` has the rules). What a program did is a result or a failure. Lost jobs, restarts of the cluster's nodes and
suspensions are outside `backoffLimit`. A job that the recipe's own time limit ended before training began is given more
time once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.diagnosis import Retry, rule_of
from speedrun_operator.lifecycle.situation import Policy
from speedrun_operator.planning import RunPlan

MORE_TIME = 2  # so many times the recipe's own time limit


def more_minutes(plan: RunPlan) -> int | None:
    """The time limit of a job for runs that the recipe's own ended; None: their partition allows no more."""
    doubled = MORE_TIME * plan.time_limit_minutes
    most = doubled if plan.most_minutes is None else min(doubled, plan.most_minutes)
    return most if most > plan.time_limit_minutes else None


@dataclass(frozen=True, slots=True)
class Retries:
    """All allocations so far, and the limits. `fresh`: those whose end is news, by id. `plan`: as the next would be."""

    allocations: tuple[Allocation, ...]
    fresh: frozenset[int]
    spec: Spec
    policy: Policy
    plan: RunPlan | None = None

    @classmethod
    def after(
        cls,
        before: tuple[Allocation, ...],
        allocations: tuple[Allocation, ...],
        spec: Spec,
        policy: Policy,
        plan: RunPlan | None = None,
    ) -> Retries:
        """`allocations` as they are now, `before` as they were when it was last decided."""
        known = {each.id for each in before if each.state is AllocationState.ENDED}
        ended = {each.id for each in allocations if each.state is AllocationState.ENDED}
        return cls(allocations, frozenset(ended - known), spec, policy, plan)

    def given_back(self, run: Run, allocation: Allocation, *, trained: bool = False) -> Run:
        """`run` after `allocation` ended without a result of it: to be run again, or failed for good.

        `trained`: it had reached Training.
        """
        failures = self._failures_up_to(allocation)
        limit = self.spec.backoff_limit
        if self._again(run, allocation, failures, trained):
            return Run(index=run.index, arm=run.arm, phase=Phase.PENDING)
        if run.reason == Reason.TIME_LIMIT.value and (most := self._longest(allocation)):
            words = f"{run.message or ''}; its partition allows no more than {most} min: see spec.slurm.partition"
            return run.model_copy(update={"message": words})
        rule = rule_of(run.reason)
        if rule is not None and rule.retry is Retry.LIMITED and rule.runs_again(trained=trained) and limit:
            message = f"{failures} allocations failed, and backoffLimit is {limit}; the last: "
            message += run.message or allocation.reason or ""
            return run.model_copy(update={"reason": Reason.BACKOFF_LIMIT_EXCEEDED.value, "message": message})
        return run

    def not_before(self, before: datetime | None, now: datetime) -> datetime | None:
        """The earliest time of the next allocation, by our own clock; `before` as it was when it was last decided.

        An exponential wait after the newest failure of the infrastructure, or as long as its cause needs.
        """
        waits = [wait for each in self.allocations if each.id in self.fresh and (wait := self._wait(each)) is not None]
        return (now + max(waits)).replace(microsecond=0) if waits else before

    def _wait(self, allocation: Allocation) -> timedelta | None:
        rule = rule_of(allocation.reason)
        if rule is None or rule.retry is Retry.NEVER:
            return None
        needed = timedelta(seconds=rule.wait_seconds)
        if rule.retry is Retry.FREE:
            return needed
        failed = sum(_failed(each) for each in self.allocations)
        doubled: timedelta = self.policy.retry_first * int(2 ** min(failed - 1, 20))
        return max(needed, min(doubled, self.policy.retry_longest))

    def _again(self, run: Run, allocation: Allocation, failures: int, trained: bool) -> bool:
        if allocation.reason == Reason.SUSPENDED.value:
            return True
        if allocation.reason == Reason.CACHE_MISSING.value:  # what was missing is made again, once
            missed = [each for each in self.allocations if each.reason == Reason.CACHE_MISSING.value]
            return sum(run.index in each.runs for each in missed) <= 1
        if allocation.reason == Reason.JOB_LOST.value:
            return self._times(run, allocation.reason) <= self.policy.most_lost
        if run.reason == Reason.TIME_LIMIT.value and not trained:
            own = self.spec.time_limit_seconds is None and allocation.time_limit_seconds is None
            return own and (self.plan is None or more_minutes(self.plan) is not None)
        rule = rule_of(run.reason)
        if rule is None or allocation.ending not in (None, run.reason) or not rule.runs_again(trained=trained):
            return False
        if rule.retry is Retry.FREE:
            return self._times(run, rule.reason) <= self.policy.most_lost
        return failures <= self.spec.backoff_limit

    def _longest(self, allocation: Allocation) -> int | None:
        """The minutes that the partition allows, where `allocation` had all of them."""
        if self.plan is None or self.plan.most_minutes is None:
            return None
        given = allocation.time_limit_seconds or 60 * self.plan.time_limit_minutes
        return self.plan.most_minutes if given >= 60 * self.plan.most_minutes else None

    def _times(self, run: Run, reason: str) -> int:
        return sum(each.reason == reason and run.index in each.runs for each in self.allocations)

    def _failures_up_to(self, allocation: Allocation) -> int:
        """How many allocations count against `backoffLimit`; of those that end at once the lower ids come first."""
        earlier = [each for each in self.allocations if each.id not in self.fresh or each.id <= allocation.id]
        return sum(_failed(each) for each in earlier)


def _failed(allocation: Allocation) -> bool:
    rule = rule_of(allocation.reason)
    return allocation.state is AllocationState.ENDED and rule is not None and rule.retry is Retry.LIMITED
