"""What one poll asks about: the live allocations of all Speedruns, and the jobs that make what they wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from speedrun_operator.backends.base import AllocationRef, Backend, Place, PrepareRef, Snapshot
from speedrun_operator.entries import Entry, Setup
from speedrun_operator.jobs import Jobs
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.observation import Observed, Prepared, Unknown


@dataclass(frozen=True)
class Questions:
    """Of one backend, by UID. A job that several Speedruns wait for is asked about once."""

    backend: Backend
    allocations: Mapping[str, list[AllocationRef]]
    preparing: Mapping[str, list[PrepareRef]]

    @classmethod
    def of(
        cls,
        entries: Mapping[str, Entry],
        setup: Setup,
        place: Place,
        backend: Backend,
        names: frozenset[str] | None = None,
    ) -> Questions:
        """What to ask `backend`, whose place this is: about everything live there, or about `names` alone."""
        live = {
            uid: entry.resource
            for uid, entry in entries.items()
            if setup.place(entry.resource) == place
            and not entry.resource.deleting
            and not is_finished(entry.resource.status)
        }
        refs = {
            uid: [
                each
                for each in setup.refs(resource)
                if each.place == place and (not names or backend.name_of(each) in names)
            ]
            for uid, resource in live.items()
        }
        makes = {uid: setup.preparing(resource) for uid, resource in live.items()} if not names else {}
        return cls(
            backend,
            {uid: found for uid, found in refs.items() if found},
            {uid: found for uid, found in makes.items() if found},
        )

    def none(self) -> Questions:
        """The same, asked about nothing."""
        return replace(self, allocations={}, preparing={})

    @property
    def uids(self) -> Iterable[str]:
        return {**self.allocations, **self.preparing}

    async def ask(self, place: Jobs) -> Snapshot:
        jobs = {(each.key, each.attempt): each for makes in self.preparing.values() for each in makes}
        return await place.observe(
            self.backend, [ref for refs in self.allocations.values() for ref in refs], [*jobs.values()]
        )

    def observed(self, uid: str, snapshot: Snapshot) -> dict[int, Observed]:
        """What the answer says of a Speedrun's allocations, by their numbers."""
        refs = {self.backend.name_of(ref): ref.allocation for ref in self.allocations.get(uid, ())}
        return {number: snapshot.observed[name] for name, number in refs.items() if name in snapshot.observed}

    def unanswered(self, uid: str, snapshot: Snapshot) -> Unknown | None:
        """Why the answer says nothing of a Speedrun."""
        names = [self.backend.name_of(ref) for ref in self.allocations.get(uid, ())]
        return snapshot.error or next((snapshot.silent[name] for name in names if name in snapshot.silent), None)

    def prepared(self, uid: str, now: Iterable[PrepareRef], snapshot: Snapshot) -> dict[str, Prepared]:
        """What it says of the entries that a Speedrun waits for, by their keys.

        `now`: what it waits for by now. An earlier attempt's end says nothing of a later attempt.
        """
        asked = {(each.key, each.attempt) for each in self.preparing.get(uid, ())}
        still = [each.key for each in now if (each.key, each.attempt) in asked]
        return {key: snapshot.prepared[key] for key in still if key in snapshot.prepared}
