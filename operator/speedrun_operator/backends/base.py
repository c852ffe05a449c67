"""The protocol that every backend keeps: submit, observe, cancel. Nothing here knows of Slurm, pods or Kubernetes.

What they answer is in `lifecycle.observation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.facts import ClusterFacts
from speedrun_operator.lifecycle.observation import Observed, Outcome, Prepared, PrepareOutcome, Unknown
from speedrun_operator.lifecycle.situation import Ask
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.storage import Storage
from speedrun_operator.recipes.recipe import Recipe
from speedrun_operator.source.resolved import Source, Unresolved, Wanted


@dataclass(frozen=True, slots=True)
class Place:
    """Where allocations run. `login`, of Slurm: the name of the login that submits; empty: the operator's own."""

    kind: Kind = Kind.SLURM
    login: str = ""


@dataclass(frozen=True, slots=True)
class AllocationRef:
    """One allocation as a backend is asked about it. `since` bounds look-ups of ended jobs (UTC).

    `job_id`: the number under which it was accepted, as far as is known. `place`: where it is; None: nowhere that the
    operator can ask now.
    """

    identity: Identity
    allocation: int
    since: datetime
    log_format: str
    job_id: str | None = None
    place: Place | None = Place()


@dataclass(frozen=True, slots=True)
class PrepareRef:
    """A job that makes a cache entry, as a backend is asked about it. `since` bounds look-ups of ended jobs (UTC)."""

    kind: str
    key: str
    attempt: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The answer to one poll: either observations for every allocation asked about, or why there is no answer.

    `silent`: why nothing can be said of some of them, by name; the others were observed. `storage`: how full it is, in
    the polls that look at that. `rest`: so many seconds the place asks to be left alone.
    """

    observed: Mapping[str, Observed] = field(default_factory=dict)
    prepared: Mapping[str, Prepared] = field(default_factory=dict)  # by the entry's key
    error: Unknown | None = None
    silent: Mapping[str, Unknown] = field(default_factory=dict)
    behind: bool = False  # logs hold more than one poll may read
    rest: float = 0.0
    storage: Storage | None = None


@dataclass(frozen=True, slots=True)
class MarkedJob:
    """A live job with this cluster's mark, whosever it is: its name, number there, and the Speedrun it was made for."""

    name: str
    id: str
    uid: str
    namespace: str


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """A live job that makes a cache entry. `scope` tells the operators' fields of view apart."""

    name: str
    id: str
    key: str
    scope: str


class Backend(Protocol):
    """One place where allocations run. No method raises for a fault of the place: they answer Unknown."""

    def name_of(self, ref: AllocationRef) -> str:
        """The allocation's name there: the key of `Snapshot.observed`."""
        ...

    def log_path(self, ref: AllocationRef) -> str:
        """Where a person finds the allocation's log."""
        ...

    async def submit(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        """Make the allocation exist, once. Calling again after Unknown or a lost answer is safe.

        A rejected one leaves nothing behind. One that was cancelled on its way is Rejected, too, with reason Cancelled.
        """
        ...

    async def prepare(self, ask: Ask, plan: RunPlan) -> PrepareOutcome:
        """Make sure that a cache entry is there, or that a job makes it. Safe to call again at any time.

        Whoever asks for the same entry gets the same job.
        """
        ...

    async def observe(self, refs: Sequence[AllocationRef], preparing: Sequence[PrepareRef] = ()) -> Snapshot:
        """Ask about all allocations and all entries that jobs make, at once.

        `Snapshot.observed` and `Snapshot.prepared` then have every one of them, unknown ones as UNSEEN.
        """
        ...

    async def changed(self, seconds: float) -> frozenset[str] | None:
        """Wait for news: names of allocations of which there is some, or None after `seconds` without."""
        ...

    async def cancel(self, refs: Sequence[AllocationRef]) -> Mapping[str, bool] | Unknown:
        """End allocations; by name, whether each is certainly gone (True also when it never was)."""
        ...

    async def jobs(self) -> Sequence[MarkedJob | PrepareJob] | Unknown:
        """Every live job that bears this cluster's mark and says its namespace, or whom it prepares for."""
        ...

    async def cancel_jobs(self, jobs: Sequence[MarkedJob | PrepareJob]) -> Unknown | None:
        """End jobs of `jobs()` that nobody wants any more."""
        ...

    async def facts(self) -> ClusterFacts | Unknown:
        """What the place has: partitions, nodes, GPUs."""
        ...

    def forget(self, name: str) -> None:
        """Drop what is remembered of an allocation that nobody will ask about again."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Sources(Protocol):
    """Looks a Speedrun's code up, where its runs will get it from."""

    async def resolve(self, wanted: Wanted, recipe: Recipe, secret: bytes) -> Source | Unresolved:
        """What `wanted` is now, with the recipe's layout that it has. `secret`: for a private repository, or empty.

        The patch is not its business. Never raises for a fault of the place.
        """
        ...
