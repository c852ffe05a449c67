"""What the engine works with, and what it knows of each Speedrun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from speedrun_operator.api.phases import AllocationState, PreparationState
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.backends.base import AllocationRef, PrepareRef
from speedrun_operator.clock import SYSTEM, Clock
from speedrun_operator.lifecycle.situation import Policy, Waiting
from speedrun_operator.planning import Site
from speedrun_operator.policy import Rules, asked_code, forbidden
from speedrun_operator.recipes.recipe import Recipe

CANCEL_AGAIN = 20.0
LOCK_SECONDS = 2.0
DEFAULT_FORMAT = "modded-nanogpt"


@dataclass(frozen=True)
class Setup:
    """What the engine works with. Times in seconds. `most_finished`: of so many finished ones the figures are kept."""

    cluster: str
    recipes: Mapping[str, Recipe]
    site: Site
    policy: Policy
    poll_seconds: float
    release_seconds: float
    clock: Clock = SYSTEM
    rules: Rules = field(default_factory=Rules)
    pod_poll_seconds: float = 5.0
    most_finished: int = 0
    waiting: Mapping[Kind, Waiting] = field(default_factory=dict)

    def waits(self, resource: Resource) -> Waiting | None:
        """What keeps this resource's allocations from being submitted, as long as the operator's settings are these."""
        waiting = self.waiting.get(kind_of(resource))
        if waiting is not None or resource.spec is None:
            return waiting
        later = forbidden(self.rules, resource.identity, resource.spec, asked_code(resource.spec))
        return Waiting(later.reason, later.message) if later is not None else None

    def period(self, kind: Kind) -> float:
        """Seconds between two polls."""
        return self.pod_poll_seconds if kind is Kind.PODS else self.poll_seconds

    def refs(self, resource: Resource, *, all_: bool = False) -> list[AllocationRef]:
        """The resource's allocations as a backend is asked about them; those that ended, too, if `all_`."""
        recipe = self.recipes.get(resource.spec.recipe.name) if resource.spec else None
        log_format = recipe.log_format if recipe else DEFAULT_FORMAT
        return [
            AllocationRef(
                resource.identity,
                each.id,
                each.submitted or each.claimed,
                log_format,
                job_id=each.job_id,
                backend=kind_of(resource),
            )
            for each in resource.status.allocations
            if all_ or each.state is not AllocationState.ENDED
        ]

    def preparing(self, resource: Resource) -> list[PrepareRef]:
        """The jobs that make cache entries which the resource waits for."""
        return [
            PrepareRef(each.stage, each.key, each.attempt, each.submitted or resource.created)
            for each in resource.status.preparing
            if each.state in (PreparationState.QUEUED, PreparationState.RUNNING) and each.attempt is not None
        ]


def kind_of(resource: Resource) -> Kind:
    """The backend of a resource; what has no valid spec has no jobs anywhere."""
    return resource.spec.backend if resource.spec is not None else Kind.SLURM


@dataclass
class Entry:
    """One known Speedrun. `quiet_polls` counts polls since its last status write.

    `waits`: a submission had no clear outcome, and the next one comes with `retry`, whatever wakes us before.
    `missing`: what it could not be planned or submitted without when it was looked at last.
    """

    resource: Resource
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    again: bool = False
    working: bool = False
    failures: int = 0
    quiet_polls: int = 0
    waits: bool = False
    missing: Waiting | None = None
    retry: asyncio.TimerHandle | None = None
    wake_at: datetime | None = None
    gone: dict[int, float] = field(default_factory=dict)

    async def free_soon(self) -> bool:
        """Whether its turn comes in a moment. A submission may take minutes, and the others wait for this poll."""
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                await self.lock.acquire()
        except TimeoutError:
            return False
        self.lock.release()
        return True

    def now_missing(self, waiting: Waiting | None) -> None:
        """Note what is missing. Where that changed somebody is at work on it, so the next look comes soon."""
        if waiting != self.missing:
            self.missing, self.failures = waiting, 0

    def cancelled(self, monotonic: float) -> frozenset[int]:
        """Allocations that were cancelled a short while ago; what still lives gets another word later."""
        return frozenset(number for number, at in self.gone.items() if monotonic - at < CANCEL_AGAIN)


@asynccontextmanager
async def lent(slots: asyncio.Semaphore) -> AsyncIterator[None]:
    """While one waits for the backend, another may have its slot."""
    slots.release()
    try:
        yield
    finally:
        await slots.acquire()


def newer(one: Resource, other: Resource) -> bool:
    """Whether `one` is a later version. Where versions are no numbers, whatever came last is."""
    try:
        return int(one.resource_version) > int(other.resource_version)
    except ValueError:
        return one.resource_version != other.resource_version
