"""What is known of the cluster around the jobs, asked when it is needed and not more often than it must be.

Nothing is asked while nothing needs it: facts cost a remote command. They are as old as GOOD_FOR at most when a GPU job
is placed, and FRESH when one is refused, or an end is put down to a restart of the nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from speedrun_operator.api.cluster import ClusterState
from speedrun_operator.api.phases import Reason
from speedrun_operator.api.resource import Resource
from speedrun_operator.backends.base import Backend, Snapshot
from speedrun_operator.clock import Clock
from speedrun_operator.facts import ClusterFacts
from speedrun_operator.lifecycle import readiness
from speedrun_operator.lifecycle.causes import may_be_a_restart
from speedrun_operator.lifecycle.decide import is_of_another
from speedrun_operator.lifecycle.observation import Observed, Unknown
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.lifecycle.submission import keeps_off
from speedrun_operator.placement import place
from speedrun_operator.planning import Later, Refusal, RunPlan
from speedrun_operator.preparation.storage import Storage

GOOD_FOR = 60.0
FRESH = 10.0

Plan = RunPlan | Refusal | None
# What is followed by a job whose time limit depends on what the partition allows.
_BOUND_BY_TIME = frozenset({Reason.TIME_LIMIT.value, Reason.CACHE_MISSING.value})


class Surroundings:
    """See the module. Without a backend nothing is placed."""

    def __init__(self, backend: Backend | None, clock: Clock, cluster: Callable[[], ClusterState | None]) -> None:
        """`cluster`: what the cluster's provider said of it last."""
        self._backend = backend
        self._cluster = cluster
        self._clock = clock
        self._lock = asyncio.Lock()
        self._asked: float | None = None
        self._silence: Unknown | None = None
        self.facts: ClusterFacts | None = None
        self.storage: Storage | None = None
        """How full its storage was when a poll looked last."""

    def gone(self) -> Snapshot | None:
        """The answer to a poll of a cluster that has ended: nobody is asked any more, and nothing is known."""
        over = readiness.gone(self._cluster())
        return Snapshot(error=Unknown(over.reason, over.message)) if over is not None else None

    async def look(self, age: float) -> ClusterFacts | None:
        """The facts, at most `age` seconds old where the cluster answers; else the last ones, or None."""
        if self._backend is None:
            return None
        async with self._lock:
            now = self._clock.monotonic()
            if self._asked is None or now - self._asked >= age:
                answer = await self._backend.facts()
                self._asked = self._clock.monotonic()
                if isinstance(answer, ClusterFacts):
                    self.facts, self._silence = answer, None
                else:
                    self._silence = answer
            return self.facts

    async def placed(
        self, resource: Resource, plan: Plan, seen: Iterable[Observed] = ()
    ) -> tuple[Plan, Waiting | None]:
        """The plan at its place in the cluster; or what it waits for until it has one. `seen`: its jobs, now.

        What stands against it is looked at again first: a refusal is for good. A cluster whose provider says that it is
        not ready is not asked.
        """
        if unready := readiness.awaited(self._cluster(), resource.spec):
            return plan, unready
        if self._backend is None or not isinstance(plan, RunPlan):
            return plan, None
        if resource.status.allocations and not is_of_another(resource):
            facts = await self.look(GOOD_FOR) if _needs_facts(resource, plan, seen) else None
            placed = place(plan, facts, resource.status.plan)
        elif plan.gpu_count == 0:
            placed = place(plan, self.facts)
        else:
            placed = place(plan, await self.look(GOOD_FOR))
            if not isinstance(placed, RunPlan):
                placed = place(plan, await self.look(FRESH))
        if not isinstance(placed, Later):
            return placed, None
        if self._silence is not None:
            return plan, Waiting(self._silence.reason, f"{placed.message}; {self._silence.message}")
        return plan, Waiting(placed.reason, placed.message)

    async def controller_started(self, seen: Iterable[Observed]) -> datetime | None:
        """When Slurm's controller was started last, asked where a job ended as a restart of its node would end it."""
        if not any(map(may_be_a_restart, seen)):
            return None
        facts = await self.look(FRESH)
        return facts.controller_started if facts else None


def _needs_facts(resource: Resource, plan: RunPlan, seen: Iterable[Observed]) -> bool:
    """Whether what follows on its jobs depends on the cluster: a node to keep off, or a partition's longest time."""
    status = resource.status
    if plan.gpu_count > 0 and any(map(keeps_off, status.allocations)):
        return True
    ends = {*(each.reason for each in status.allocations), *(each.reason for each in seen)}
    return status.plan is not None and status.plan.partition is not None and bool(_BOUND_BY_TIME & ends)
