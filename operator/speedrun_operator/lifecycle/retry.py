"""Which runs of an ended allocation are run again, and when.

Only what the infrastructure did is tried again: a failed node, a preemption, a job that Slurm lost. What a program did
is a result or a failure. Lost jobs and suspensions are outside `backoffLimit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.situation import Policy

INFRASTRUCTURE = frozenset({Reason.NODE_FAILURE.value, Reason.PREEMPTED.value, Reason.LAUNCH_FAILED.value})


@dataclass(frozen=True, slots=True)
class Retries:
    """All allocations so far, and the limits. `fresh`: those whose end is news, by id."""

    allocations: tuple[Allocation, ...]
    fresh: frozenset[int]
    spec: Spec
    policy: Policy

    @classmethod
    def after(
        cls, before: tuple[Allocation, ...], allocations: tuple[Allocation, ...], spec: Spec, policy: Policy
    ) -> Retries:
        """`allocations` as they are now, `before` as they were when it was last decided."""
        known = {each.id for each in before if each.state is AllocationState.ENDED}
        ended = {each.id for each in allocations if each.state is AllocationState.ENDED}
        return cls(allocations, frozenset(ended - known), spec, policy)

    def given_back(self, run: Run, allocation: Allocation) -> Run:
        """`run` after `allocation` ended without a result of it: to be run again, or failed for good."""
        failures = self._failures_up_to(allocation)
        limit = self.spec.backoff_limit
        if self._again(run, allocation, failures):
            return Run(index=run.index, arm=run.arm, phase=Phase.PENDING)
        if allocation.reason in INFRASTRUCTURE and limit:
            message = f"{failures} allocations failed, and backoffLimit is {limit}; the last: "
            message += run.message or allocation.reason or ""
            return run.model_copy(update={"reason": Reason.BACKOFF_LIMIT_EXCEEDED.value, "message": message})
        return run

    def not_before(self, before: datetime | None, now: datetime) -> datetime | None:
        """The earliest time of the next allocation, by our own clock; `before` as it was when it was last decided.

        An exponential wait after the newest failure of the infrastructure.
        """
        failed = [each.id for each in self.allocations if _failed(each)]
        if not self.fresh & {*failed}:
            return before
        doubled: timedelta = self.policy.retry_first * int(2 ** min(len(failed) - 1, 20))
        return (now + min(doubled, self.policy.retry_longest)).replace(microsecond=0)

    def _again(self, run: Run, allocation: Allocation, failures: int) -> bool:
        if allocation.reason == Reason.SUSPENDED.value:
            return True
        if allocation.reason == Reason.JOB_LOST.value:
            lost = [each for each in self.allocations if each.reason == Reason.JOB_LOST.value]
            return sum(run.index in each.runs for each in lost) <= self.policy.most_lost
        return _failed(allocation) and failures <= self.spec.backoff_limit

    def _failures_up_to(self, allocation: Allocation) -> int:
        """How many allocations count against `backoffLimit`; of those that end at once the lower ids come first."""
        earlier = [each for each in self.allocations if each.id not in self.fresh or each.id <= allocation.id]
        return sum(_failed(each) for each in earlier)


def _failed(allocation: Allocation) -> bool:
    return allocation.state is AllocationState.ENDED and allocation.reason in INFRASTRUCTURE
