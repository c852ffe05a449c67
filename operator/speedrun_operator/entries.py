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
from speedrun_operator.api.status import Allocation
from speedrun_operator.backends.base import AllocationRef, Place, PrepareRef
from speedrun_operator.clock import SYSTEM, Clock
from speedrun_operator.lifecycle.observation import Unknown
from speedrun_operator.lifecycle.situation import Policy, Waiting
from speedrun_operator.logins import Logins
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
    logins: Logins = field(default_factory=Logins)

    def waits(self, resource: Resource) -> Waiting | None:
        """What keeps this resource's allocations from being submitted, as long as the operator's settings are these.

        So do the Secrets of logins; when one of those changes, whoever waits for it looks again.
        """
        waiting = self.waiting.get(kind_of(resource))
        if waiting is None and kind_of(resource) is Kind.SLURM:
            waiting = self.logins.waits(resource.identity.namespace)
        if waiting is not None or resource.spec is None:
            return waiting
        later = forbidden(self.rules, resource.identity, resource.spec, asked_code(resource.spec))
        return Waiting(later.reason, later.message) if later is not None else None

    def place(self, resource: Resource) -> Place | None:
        """Where a resource's next allocation goes; None: nowhere, since its namespace has no login."""
        if kind_of(resource) is not Kind.SLURM:
            return Place(kind_of(resource))
        return self.slurm(resource.identity.namespace)

    def slurm(self, namespace: str) -> Place | None:
        """The login that a namespace's jobs go through."""
        name = self.logins.name_of(namespace)
        return None if name is None else Place(Kind.SLURM, name)

    def login(self, resource: Resource) -> str | None:
        """Whom its next allocation is submitted as, where namespaces have logins of their own; empty: not known now."""
        if kind_of(resource) is not Kind.SLURM or not self.logins.apart:
            return None
        return self.logins.identity_of(resource.identity.namespace) or ""

    def elsewhere(self, resource: Resource) -> Unknown | None:
        """Said of a resource with an allocation that was submitted through a login that its namespace has not now."""
        lost = next((each for each in resource.status.allocations if not self.is_here(resource, each)), None)
        return self.logins.elsewhere(resource.identity.namespace, lost.login) if lost is not None else None

    def is_here(self, resource: Resource, allocation: Allocation) -> bool:
        """Whether an allocation can be asked about: it was submitted through the login that its namespace has now."""
        if kind_of(resource) is not Kind.SLURM or allocation.state is AllocationState.ENDED:
            return True
        return self.logins.holds(resource.identity.namespace, allocation.login)

    def period(self, kind: Kind) -> float:
        """Seconds between two polls."""
        return self.pod_poll_seconds if kind is Kind.PODS else self.poll_seconds

    def refs(self, resource: Resource, *, all_: bool = False) -> list[AllocationRef]:
        """The resource's allocations as a backend is asked about them; those that ended, too, if `all_`."""
        recipe = self.recipes.get(resource.spec.recipe.name) if resource.spec else None
        log_format = recipe.log_format if recipe else DEFAULT_FORMAT
        place = self.place(resource)
        return [
            AllocationRef(
                resource.identity,
                each.id,
                each.submitted or each.claimed,
                log_format,
                job_id=each.job_id,
                place=place if self.is_here(resource, each) else None,
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
            if self.logins.holds(resource.identity.namespace, each.login)
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
