"""The lists every few minutes: they bring back what a watch lost, free what hangs in Terminating, and end orphans.

Kopf lists again only after a restart or a break of its watch; an object whose finalizer it could not set or take away
waits for an outside change, which a touched annotation is: given to what two lists in a row show so, since Kopf may be
about to see to it. A label that says `finished` of what is not (a copy of a
finished Speedrun carries it) hides it from the watch. Cost: two chunked lists a period, of which nothing is kept for
finished Speedruns but their number, their TTL and the figures of the newest, and one remote command a login.

A job that makes a cache entry belongs to no Speedrun. It is ended when nobody waited for its entry in two lists in a
row, by an operator that sees the same namespaces as the one that submitted it.

An orphan is a job with this cluster's mark whose Speedrun is gone. It is ended only if its namespace (written in the
job's comment) is one that this operator watches, and its UID was absent from two fresh lists in a row that succeeded.
A namespace that cannot be listed keeps the others from nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL, GROUP
from speedrun_operator.api.resource import Resource, says_finished
from speedrun_operator.api.status import rfc3339
from speedrun_operator.backends.base import Backend, MarkedJob, PrepareJob
from speedrun_operator.clock import SYSTEM, Clock
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.observation import Unknown
from speedrun_operator.reconcile import Engine

logger = logging.getLogger(__name__)
LIVE = f"{FINISHED_LABEL}!=true"
LABELLED = f"{FINISHED_LABEL}=true"
JOBS_SECONDS = 10.0
TOUCH = f"{GROUP}/touched"


def scopes(namespaces: Sequence[str]) -> list[str | None]:
    """The namespaces to ask about; none named means one question about all of them."""
    return [*namespaces] if namespaces else [None]


@dataclass(frozen=True, slots=True)
class _Known:
    """The UIDs of all Speedruns of the namespaces that were listed (None: of all); `whole`: none is missing."""

    uids: frozenset[str]
    listed: frozenset[str | None]
    whole: bool


class Resync:
    """See the module. Orphans are looked for in all that `backends` gives."""

    def __init__(
        self,
        kube: Kube,
        engine: Engine,
        backends: Callable[[], Collection[Backend]],
        namespaces: Sequence[str],
        scope: str = "all",
        clock: Clock = SYSTEM,
    ) -> None:
        self._kube = kube
        self._engine = engine
        self._backends = backends
        self._namespaces = namespaces
        self._clock = clock
        self._scope = scope
        self._wanted: set[str] = set()
        self._suspects: dict[Backend, frozenset[str]] = {}
        self._asked: dict[Backend, asyncio.Task[Sequence[MarkedJob | PrepareJob] | Unknown]] = {}
        self._lagging: frozenset[str] = frozenset()

    async def run(self, seconds: float) -> None:
        """Resync at once and then every `seconds`, until cancelled."""
        while True:
            try:
                await self.once()
            except ApiError as error:
                logger.warning("resync: %s", error)
            await asyncio.sleep(seconds * random.uniform(0.9, 1.1))

    async def once(self) -> None:
        """One resync. Raises ApiError where a namespace could not be listed, after all others were."""
        # Jobs first: a job made after this look belongs to a resource that the lists below show.
        jobs = await self._jobs()
        uids: set[str] = set()
        lagging: set[str] = set()
        listed: set[str | None] = set()
        faults: list[ApiError] = []
        self._wanted = set()
        self._engine.finished.begin()
        for namespace in scopes(self._namespaces):
            try:
                await self._list(namespace, uids, lagging)
                listed.add(namespace)
            except ApiError as error:
                faults.append(error)
        if not faults:
            self._engine.finished.done()
        self._lagging = frozenset(lagging)
        known = _Known(frozenset(uids), frozenset(listed), whole=not faults)
        await asyncio.gather(*(self._end_orphans(backend, there, known) for backend, there in jobs.items()))
        if faults:
            raise faults[0]

    async def _list(self, namespace: str | None, uids: set[str], lagging: set[str]) -> None:
        """All of a namespace. The live ones first: one that finishes meanwhile is then seen twice, and not never."""
        for raw in await self._kube.list_speedruns(namespace, labels=LIVE):
            uids.add(str(raw["metadata"]["uid"]))
            if lags := await self._live(raw):
                lagging.add(lags)
        async for raw in self._kube.each_speedrun(namespace, labels=LABELLED):
            uids.add(str(raw["metadata"]["uid"]))
            await self._labelled(raw)

    async def _jobs(self) -> dict[Backend, Sequence[MarkedJob | PrepareJob]]:
        """The jobs of every backend that answers soon; a later answer is the next round's, and keeps nobody waiting."""
        there = self._backends()
        self._suspects = {backend: names for backend, names in self._suspects.items() if backend in there}
        for backend in there:
            if backend not in self._asked:
                self._asked[backend] = asyncio.create_task(backend.jobs())
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=JOBS_SECONDS)
        done = [backend for backend, asked in self._asked.items() if asked.done()]
        answers = {backend: self._asked.pop(backend).result() for backend in done}
        return {
            backend: said for backend, said in answers.items() if not isinstance(said, Unknown) and backend in there
        }

    async def _labelled(self, raw: dict[str, Any]) -> None:
        if _hidden_by_mistake(raw):
            await _patch(self._kube, raw, {"labels": {FINISHED_LABEL: None}})
            return
        self._engine.finished.listed(raw)
        if "ttlSecondsAfterFinished" in raw["spec"]:
            self._engine.expiry.note(Resource.parse(raw))

    async def _live(self, raw: dict[str, Any]) -> str | None:
        """The UID of what has not the finalizer that it should have, or has one that it should not."""
        resource = Resource.parse(raw)
        uid = resource.identity.uid
        self._engine.deliver(resource)
        live = not resource.deleting and not is_finished(resource.status)
        self._wanted |= {each.key for each in resource.status.preparing if live}
        if resource.protected == live:
            return None
        if uid in self._lagging:
            await _patch(self._kube, raw, {"annotations": {TOUCH: rfc3339(self._clock.now())}})
        return uid

    async def _end_orphans(self, backend: Backend, jobs: Sequence[MarkedJob | PrepareJob], known: _Known) -> None:
        absent = {job.name: job for job in jobs if self._is_unwanted(job, known)}
        orphans = [job for name, job in absent.items() if name in self._suspects.get(backend, ())]
        self._suspects[backend] = frozenset(absent)
        if not orphans:
            return
        for job in orphans:
            whose = f"in namespace {job.namespace}" if isinstance(job, MarkedJob) else "that waits for it"
            logger.warning("job %s (%s) has no Speedrun %s any more: ended", job.id, job.name, whose)
        answer = await backend.cancel_jobs(orphans)
        if isinstance(answer, Unknown):
            logger.warning("orphans were not ended: %s: %s", answer.reason, answer.message)

    def _is_unwanted(self, job: MarkedJob | PrepareJob, known: _Known) -> bool:
        if isinstance(job, PrepareJob):
            return known.whole and job.scope == self._scope and job.key not in self._wanted
        return job.uid not in known.uids and not known.listed.isdisjoint({None, job.namespace})


def _hidden_by_mistake(raw: dict[str, Any]) -> bool:
    """Whether an object with the label of finished ones still needs somebody. Unparsed: there may be very many."""
    return not says_finished(raw) or FINALIZER in (raw["metadata"].get("finalizers") or [])


async def _patch(kube: Kube, raw: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Change the metadata of an object. One that is gone, or refuses, must not keep the others from their resync."""
    namespace, name = raw["metadata"]["namespace"], raw["metadata"]["name"]
    try:
        await kube.patch_speedrun(namespace, name, {"metadata": metadata})
    except ApiError as error:
        logger.info("%s/%s: not touched: %s", namespace, name, error)
