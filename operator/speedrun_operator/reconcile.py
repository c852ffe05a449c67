"""The engine: the only place where decisions meet effects.

One resource at a time, under its lock: look at the latest object and at what a poll said, decide, write status if the
object has not changed since, submit what the written status names, decide again. Polls ask about all live allocations
in one remote command. A write that is refused or lost costs nothing but time: everything can be worked out again.

Runs in one event loop of its own. Watch events come in through `watched` and `gone`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import Any

from speedrun_operator.api.cluster import ClusterState
from speedrun_operator.api.names import Identity
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.backends.base import Backend, Place, Sources
from speedrun_operator.entries import Entry, Setup, kind_of, lent, newer
from speedrun_operator.expiry import Expiry
from speedrun_operator.finished import Finished
from speedrun_operator.jobs import Jobs
from speedrun_operator.kube.client import ApiError, Conflict, Kube, NotFound, Refused
from speedrun_operator.lifecycle.decide import decide, is_finished, is_settled
from speedrun_operator.lifecycle.observation import Busy, Observed, Outcome, Prepared, PrepareOutcome, Unknown
from speedrun_operator.lifecycle.situation import Situation, Waiting
from speedrun_operator.places import Places
from speedrun_operator.planner import Planner
from speedrun_operator.planning import Refusal, RunPlan
from speedrun_operator.polling import Polling
from speedrun_operator.preparation.storage import Storage
from speedrun_operator.record import Record
from speedrun_operator.release import Release

logger = logging.getLogger(__name__)

MOST_ROUNDS = 8
RETRY_FIRST, RETRY_LONGEST = 2.0, 60.0
MOST_SLEEP = 3600.0


class Engine:
    """See the module. A backend that is not configured is not in `backends`; `Setup.waiting` then says so.

    Where namespaces have logins of their own, each has a backend of its own, which `opened` and `shut` bring and take.
    """

    def __init__(
        self, *, kube: Kube, backends: Mapping[Kind, Backend], setup: Setup, sources: Sources | None = None
    ) -> None:
        self._places = Places(backends, sources, setup)
        self._clock = setup.clock
        self._setup = setup
        self._entries: dict[str, Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.expiry = Expiry(kube, setup.clock)
        self.finished = Finished(setup.most_finished)
        self._record = Record(kube, setup.clock)
        self._planner = Planner(kube, self._places.sources, setup.recipes, setup.site)
        self._jobs = Jobs(self._places.backends, setup, self._planner)
        self._release = Release(kube, self._jobs, setup)
        self._polling = Polling(self._entries, self._places, self._jobs, setup, self._reconcile)

    @property
    def jobs(self) -> Jobs:
        """What was asked of the backends, for its counts."""
        return self._jobs

    @property
    def polls(self) -> Mapping[tuple[Kind, bool], int]:
        """Polls since the start by backend, and whether it answered."""
        return self._polling.polls

    @property
    def storage(self) -> Storage | None:
        return self._places.storage

    @property
    def backends(self) -> Collection[Backend]:
        """Those that there are now."""
        return [*self._places.backends.values()]

    # --- what comes in -------------------------------------------------------------------------------------------

    def deliver(self, resource: Resource) -> None:
        """A version of an object was seen. Older ones than we know are left out."""
        uid = resource.identity.uid
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = Entry(resource)
        elif newer(resource, entry.resource):
            entry.resource = resource
        self._wake(uid)

    def watched(self, raw: Mapping[str, Any]) -> None:
        """The watch shows a version of an object. What we know already, most often our own write, wakes nobody."""
        metadata = raw["metadata"]
        entry = self._entries.get(metadata["uid"])
        if entry is None or entry.resource.resource_version != metadata.get("resourceVersion"):
            self.deliver(Resource.parse(raw))

    def gone(self, uid: str) -> None:
        """The object is no longer watched: deleted, or finished and labelled so."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        if entry.retry is not None:
            entry.retry.cancel()
        for ref in self._setup.refs(entry.resource, all_=True):
            if ref.place is not None and (backend := self._places.backends.get(ref.place)):
                backend.forget(backend.name_of(ref))

    def cluster_is(self, state: ClusterState) -> None:
        """The cluster's readiness changed: whoever waits for it looks again."""
        self._places.cluster = state
        for uid in self._entries:
            self._wake(uid)

    def opened(self, name: str, identity: str, backend: Backend, sources: Sources) -> Backend | None:
        """As `Places.open`; whoever waits for this login looks again."""
        before = self._places.open(name, identity, backend, sources)
        self._look_again(name)
        return before

    def shut(self, name: str, fault: Waiting) -> Backend | None:
        """As `Places.shut`; the resources of this login say so."""
        before = self._places.shut(name, fault)
        self._look_again(name)
        return before

    def _look_again(self, name: str) -> None:
        for uid, entry in self._entries.items():
            if self._setup.place(entry.resource) == Place(Kind.SLURM, name):
                self._wake(uid)

    def live(self) -> list[Resource]:
        """The Speedruns that are not finished. May be asked from any thread."""
        entries = [*self._entries.values()]
        return [each.resource for each in entries if not is_finished(each.resource.status)]

    async def release(self, identity: Identity) -> None:
        """End the jobs of an object that is being deleted; return when they are gone, or after `release_seconds`."""
        if self._places.backends or self._setup.logins.apart:
            await self._release.release(identity, self._entries.get(identity.uid))

    # --- loops ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Poll until cancelled."""
        loops = [self.expiry.run(), *map(self._polling.follow, self._places.all())]
        side = [asyncio.create_task(each) for each in loops]
        try:
            await asyncio.gather(*side)
        finally:
            for task in (*side, *self._tasks):
                task.cancel()

    def _wake(self, uid: str) -> None:
        entry = self._entries[uid]
        if entry.working:
            entry.again = True
            return
        entry.working = True
        task = asyncio.get_running_loop().create_task(self._work(uid, entry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, uid: str, entry: Entry) -> None:
        try:
            while True:
                entry.again = False
                await self._reconcile(uid)
                if not entry.again:
                    return
        finally:
            entry.working = False

    # --- one resource --------------------------------------------------------------------------------------------

    async def _reconcile(
        self,
        uid: str,
        *,
        observed: Mapping[int, Observed] | None = None,
        prepared: Mapping[str, Prepared] | None = None,
        unanswered: Unknown | None = None,
    ) -> None:
        """Never raises: what fails is logged and tried again with back-off."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        try:
            slots = self._places.slots(entry.resource)
            async with entry.lock, slots:  # who holds a slot never waits for a lock
                settled = await self._settle(entry, slots, observed or {}, prepared or {}, unanswered)
        except NotFound:
            self.gone(uid)
            return
        except Refused as error:
            logger.error("%s: the API server refuses the status: %s", entry.resource.identity, error)
            settled = False
        except ApiError as error:
            logger.warning("%s: %s", entry.resource.identity, error)
            settled = False
        except Exception:
            logger.exception("%s: reconciling failed in the operator itself", entry.resource.identity)
            settled = False
        if settled is not None:
            self._schedule(uid, entry, settled)

    def _schedule(self, uid: str, entry: Entry, settled: bool) -> None:
        if entry.retry is not None:
            entry.retry.cancel()
            entry.retry = None
        entry.failures = 0 if settled else entry.failures + 1
        entry.waits = entry.waits and not settled
        if not settled and uid in self._entries:
            wait = min(RETRY_LONGEST, RETRY_FIRST * 2 ** min(entry.failures - 1, 10)) * random.uniform(0.8, 1.2)
        elif entry.wake_at is not None and uid in self._entries:
            wait = max(0.1, (entry.wake_at - self._clock.now()).total_seconds())
        else:
            return
        entry.retry = asyncio.get_running_loop().call_later(min(wait, MOST_SLEEP), self._retry, uid)

    def _retry(self, uid: str) -> None:
        if entry := self._entries.get(uid):
            entry.waits = False
            self._wake(uid)

    async def _settle(
        self,
        entry: Entry,
        slots: asyncio.Semaphore,
        observed: Mapping[int, Observed],
        prepared: Mapping[str, Prepared],
        unanswered: Unknown | None,
    ) -> bool | None:
        """Decide, write and act until nothing changes.

        False where something needs another try; None where that try is set already.
        """
        outcomes: dict[int, Outcome] = {}
        ensured: dict[str, PrepareOutcome] = {}
        gone = entry.cancelled(self._clock.monotonic())
        for _ in range(MOST_ROUNDS):
            resource = entry.resource
            if resource.deleting:
                return True
            if is_finished(resource.status):
                self.expiry.note(resource)
                self.finished.note(resource)
                await self._record.label(entry)
                return True
            if not resource.protected:
                return True  # Kopf adds the finalizer; its event wakes us
            forbidden, login = self._setup.waits(resource), self._setup.login(resource)
            async with lent(slots):
                plan_, waiting = await self._plan(resource, observed.values(), look=forbidden is None)
                seen = [*observed.values(), *(each.job for each in prepared.values())]
                controller_started = await self._places.around(resource).controller_started(seen)
            if entry.resource is not resource:  # it changed meanwhile
                continue
            entry.now_missing(waiting)
            situation = Situation(
                resource=resource,
                plan=plan_,
                now=self._clock.now(),
                cluster=self._setup.cluster,
                login=login,
                waiting=forbidden or waiting,
                observed=observed,
                outcomes=outcomes,
                gone=gone,
                unanswered=self._setup.elsewhere(resource) or unanswered,
                controller_started=controller_started,
                storage=self._places.around(resource).storage,
                prepared=prepared,
                ensured=ensured,
                policy=self._setup.policy,
            )
            decision = decide(situation)
            submit, ask = ((), ()) if entry.waits else (decision.submit, decision.prepare)
            try:
                new = self._jobs.with_log_path(resource, decision.status)
                await self._record.write(entry, new, decision.notices, fresh=bool(submit or ask))
            except Conflict:
                await self._record.read(entry)
                continue
            entry.wake_at = decision.wake_at
            if is_finished(entry.resource.status) or entry.resource.deleting:
                continue
            if decision.cancel and not await self._jobs.end(entry, decision.cancel):
                return False
            gone = entry.cancelled(self._clock.monotonic())
            if (decision.submit and not submit) or (decision.prepare and not ask):
                return None
            if ask or submit:
                written = {each.id for each in entry.resource.status.allocations}
                if not isinstance(plan_, RunPlan) or not entry.resource.protected:
                    return False
                if not written.issuperset(each.allocation for each in submit):
                    return False  # somebody took them out of the status again
                async with lent(slots):
                    ensured |= await self._jobs.prepare(entry.resource, ask, plan_)
                    outcomes = await self._jobs.submit(entry.resource, submit, plan_)
                entry.waits = any(isinstance(each, Busy | Unknown) for each in (*ensured.values(), *outcomes.values()))
            elif not decision.cancel:
                return is_settled(decision.status) and waiting is None
            observed, prepared, unanswered = {}, {}, None
        return False

    async def _plan(
        self, resource: Resource, observed: Collection[Observed], *, look: bool
    ) -> tuple[RunPlan | Refusal | None, Waiting | None]:
        """The plan at its place in the cluster, or what it waits for; without `look` nobody is asked."""
        plan_, waiting = await self._planner.plan(resource, look=look)
        if look and waiting is None and kind_of(resource) is Kind.SLURM:
            return await self._places.around(resource).placed(resource, plan_, observed)
        return plan_, waiting
