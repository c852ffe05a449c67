"""Where jobs run: one backend for each kind, and where namespaces have logins of their own, one for each login.

Each has its own connection, pace, facts, storage and slots: one that hangs keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping

from speedrun_operator.api.cluster import ClusterState
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.backends.base import Backend, Place, Snapshot, Sources
from speedrun_operator.entries import Setup
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.preparation.storage import Storage
from speedrun_operator.surroundings import Surroundings

AT_ONCE = 16


class Places:
    """`backends` and `sources` are those of the operator's settings; logins of namespaces come with `open`."""

    def __init__(self, backends: Mapping[Kind, Backend], sources: Sources | None, setup: Setup) -> None:
        self.backends: dict[Place, Backend] = {Place(kind): each for kind, each in backends.items()}
        self.cluster: ClusterState | None = None
        """What the cluster's provider said of it last."""
        self._setup = setup
        self._sources = {Place(): sources} if sources is not None else {}
        self._slots: defaultdict[Place | None, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._nowhere = self._surroundings(None)
        slurm = self.backends.get(Place())
        self._around = {Place(): self._surroundings(slurm)} if slurm is not None else {}

    def open(self, name: str, identity: str, backend: Backend, sources: Sources) -> Backend | None:
        """A login can be used from now on, as `identity`; the backend that it had before, which is not closed."""
        place = Place(Kind.SLURM, name)
        before = self.backends.get(place)
        self._setup.logins.learned(name, identity)
        self.backends[place], self._sources[place] = backend, sources
        self._around[place] = self._surroundings(backend)
        return before

    def shut(self, name: str, fault: Waiting) -> Backend | None:
        """A login cannot be used from now on; the backend that it had, which is not closed."""
        place = Place(Kind.SLURM, name)
        self._setup.logins.failed(name, fault)
        self._sources.pop(place, None)
        self._around.pop(place, None)
        return self.backends.pop(place, None)

    def all(self) -> Collection[Place]:
        """Every place that there is or will be."""
        logins = (Place(Kind.SLURM, each) for each in self._setup.logins.names)
        return dict.fromkeys([*self.backends, *logins])

    def around(self, resource: Resource) -> Surroundings:
        """What is known of the cluster where a resource's next allocation goes."""
        place = self._setup.place(resource)
        return self._nowhere if place is None else self._around.get(place, self._nowhere)

    def slots(self, resource: Resource) -> asyncio.Semaphore:
        """What bounds the work at once there."""
        return self._slots[self._setup.place(resource)]

    def sources(self, namespace: str) -> Sources | None:
        """Who looks a namespace's code up."""
        place = self._setup.slurm(namespace)
        return self._sources.get(place) if place is not None else None

    def gone(self) -> Snapshot | None:
        """The answer to a poll of a cluster that has ended."""
        return self._nowhere.gone()

    def noted(self, place: Place, snapshot: Snapshot) -> None:
        """Keep what a poll said of the storage."""
        if snapshot.storage is not None and (around := self._around.get(place)):
            around.storage = snapshot.storage

    @property
    def storage(self) -> Storage | None:
        """The fullest of all."""
        known = [each.storage for each in [*self._around.values()] if each.storage is not None]
        return max(known, key=lambda each: each.share, default=None)

    def _surroundings(self, backend: Backend | None) -> Surroundings:
        return Surroundings(backend, self._setup.clock, lambda: self.cluster)
