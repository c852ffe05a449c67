"""The backend Pods at work: pods created, watched, read and deleted over the API server.

Cost: one watch for all pods; a poll reads the logs of those that run, a request each; one creation an allocation, and
one more for the first of a Speedrun whose recipe brings a package. A fault of the API server is an answer (Unknown,
Busy), never an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.base import AllocationRef, MarkedJob, PrepareJob, PrepareRef, Snapshot
from speedrun_operator.backends.pods import manifest
from speedrun_operator.backends.pods.events import Events
from speedrun_operator.backends.pods.fields import Pod, grace, has_ended, is_over, moment
from speedrun_operator.backends.pods.keeper import LogKeeper
from speedrun_operator.backends.pods.keeping import claim_of, shown_by, shown_of
from speedrun_operator.backends.pods.memory import Memory
from speedrun_operator.backends.pods.nodes import Nodes
from speedrun_operator.backends.pods.observe import observed, vanished
from speedrun_operator.backends.pods.outcome import PINNED, read_refusal
from speedrun_operator.backends.pods.package import pack
from speedrun_operator.backends.pods.reader import LogReader
from speedrun_operator.backends.pods.silence import silences
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.backends.pods.store import Store
from speedrun_operator.backends.pods.telling import told
from speedrun_operator.backends.pods.tidy import Tidy
from speedrun_operator.clock import SYSTEM, Clock
from speedrun_operator.facts import ClusterFacts
from speedrun_operator.kube.client import ApiError, Conflict, NotFound
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.observation import (
    Accepted,
    Busy,
    JobState,
    Observed,
    Outcome,
    PrepareOutcome,
    Ready,
    Rejected,
    Unknown,
)
from speedrun_operator.lifecycle.situation import Ask
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.manifest import Manifest

AT_ONCE = 16
PIECES = 16
LEAST_WAIT = 0.5
DOUBT_SECONDS = 70.0  # an API server ends a request within 60 s: a creation without an answer shows by then, or never


class PodsBackend:
    """Implements `backends.base.Backend`. `pods`: those with this cluster's label."""

    def __init__(
        self,
        pods: Pods,
        site: PodSite,
        cluster: str,
        *,
        log_bytes: int = 64 * 1024,
        clock: Clock = SYSTEM,
    ) -> None:
        self._pods = pods
        self._site = site
        self._cluster = cluster
        self._log_bytes = log_bytes
        self._monotonic = clock.monotonic
        self._now = clock.now
        self._store = Store(pods)
        self._memory: dict[str, Memory] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._keeper = LogKeeper(pods, cluster, self._slots, clock)
        self._events = Events(pods, clock)
        self._nodes = Nodes(pods, site.gpu_label_keys, clock)
        self._tidy = Tidy(pods, clock)

    def name_of(self, ref: AllocationRef) -> str:
        return ref.identity.job_name(self._cluster, ref.allocation)

    def log_path(self, ref: AllocationRef) -> str:
        name = self.name_of(ref)
        memory, pod = self._memory.get(name), self._store.get(name) or self._store.last(name)
        if memory is not None and memory.kept:
            return shown_by(ref.identity.namespace, name)
        claim = claim_of(pod) if pod is not None else self._site.cache_claim
        return shown_of(ref.identity, ref.allocation, name, claim)

    # -- making

    async def submit(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        name, memory = self.name_of(ref), self._of(ref)
        memory.doubt_until = self._monotonic() + DOUBT_SECONDS
        outcome = await self._submit(ref, plan, name)
        if not isinstance(outcome, Unknown):
            memory.doubt_until = None
        if isinstance(outcome, Accepted):
            memory.job_id = outcome.job_id
        return outcome

    async def _submit(self, ref: AllocationRef, plan: RunPlan, name: str) -> Outcome:
        if self._site.sunk and manifest.is_guaranteed(plan, self._site):
            return Rejected(Reason.SUBMISSION_REJECTED.value, PINNED)
        try:
            if plan.package:  # before the pod, which would wait for it with its GPUs
                await self._pods.put_config_map(manifest.package(ref.identity, self._cluster, pack(plan.package)))
            body = manifest.pod(
                plan,
                ref.identity,
                ref.allocation,
                name=name,
                cluster=self._cluster,
                site=self._site,
                gpus=await self._nodes.with_gpus_of(plan),
            )
            try:
                pod = await self._pods.create(body)
            except Conflict:
                pod = await self._pods.get(ref.identity.namespace, name)
        except ApiError as error:
            return read_refusal(error)
        if pod["metadata"].get("labels", {}).get(manifest.UID_LABEL) != ref.identity.uid:
            return Busy("NameTaken", f"a pod called {name} is there that is not of this Speedrun: delete it")
        self._store.put(pod)
        return Accepted(pod["metadata"]["uid"], moment(pod["metadata"]["creationTimestamp"]))

    # -- looking

    async def prepare(self, ask: Ask, plan: RunPlan) -> PrepareOutcome:
        """Pods prepare by themselves, in their own containers."""
        return Ready(Manifest())

    async def observe(self, refs: Sequence[AllocationRef], preparing: Sequence[PrepareRef] = ()) -> Snapshot:
        if not refs:
            return Snapshot()
        await self._store.start()
        silent = await silences(self._store, self._pods, {self.name_of(ref): ref.identity.namespace for ref in refs})
        for ref in refs:
            if self.name_of(ref) in silent:
                memory = self._of(ref)
                memory.unseen_since = memory.settles_since = None
        refs = [ref for ref in refs if self.name_of(ref) not in silent]
        if not refs:
            return Snapshot(error=next(iter(silent.values())))
        seen = await asyncio.gather(*(self._observe(ref) for ref in refs))
        await self._tidy.tidy(list(self._store.all()), self._memory)
        by_name = {self.name_of(ref): each for ref, each in zip(refs, seen, strict=True)}
        behind = any(self._of(ref).reader.behind for ref in refs)
        return Snapshot(by_name, behind=behind, silent=silent)

    async def _observe(self, ref: AllocationRef) -> Observed:
        memory, name = self._of(ref), self.name_of(ref)
        async with memory.lock:
            pod = self._store.get(name)
            if pod is None:
                seen = self._absent(ref, memory)
            else:
                memory.unseen_since = None
                memory.job_id = pod["metadata"]["uid"]
                grew = await self._read(pod, memory.reader)
                shown = observed(pod, self._now(), self._overdue(pod, memory))
                seen = await self._events.told(shown, pod, memory)
                seen = self._told(seen, memory, grew)
            seen = await self._keeper.kept(seen, ref, memory)
            memory.settled = seen.state is JobState.ENDED and seen.log_complete
            return seen

    async def _read(self, pod: Pod, reader: LogReader) -> bool:
        """Read on in its log, of what has ended several pieces; whether there was more."""
        grew = False
        for _ in range(PIECES if is_over(pod) or has_ended(pod) else 1):
            async with self._slots:
                grew = await reader.read(pod, self._log_bytes) or grew
            if not reader.behind:
                break
        return grew

    def _overdue(self, pod: Pod, memory: Memory) -> timedelta:
        """How long ago it was to have ended by its deletion, by our clock alone."""
        if not pod["metadata"].get("deletionTimestamp"):
            memory.deleting_since = None
            return timedelta(0)
        now = self._monotonic()
        memory.deleting_since = memory.deleting_since if memory.deleting_since is not None else now
        return timedelta(seconds=now - memory.deleting_since) - grace(pod)

    def _absent(self, ref: AllocationRef, memory: Memory) -> Observed:
        """No pod of that name: never made, as far as we know, or gone."""
        now, asked = self._monotonic(), self._now()
        last = self._store.last(self.name_of(ref))
        job_id = memory.job_id or ref.job_id
        if last is None and job_id is None:
            since = memory.unseen_since = memory.unseen_since if memory.unseen_since is not None else now
            fenced = memory.cancelled and (memory.doubt_until is None or now > memory.doubt_until)
            return Observed(JobState.UNSEEN, asked, unseen_for=timedelta(seconds=now - since), fenced=fenced)
        memory.reader.close()
        witnessed = self._store.saw_it_go(self.name_of(ref))
        gone = vanished(last, job_id, asked, cancelled=memory.cancelled, witnessed=witnessed)
        return self._told(gone, memory, False)

    def _told(self, seen: Observed, memory: Memory, grew: bool) -> Observed:
        return told(seen, memory, grew, self._monotonic(), self._site.give_up)

    async def changed(self, seconds: float) -> frozenset[str] | None:
        """Names of allocations of which there is news, or None after `seconds` without any."""
        began = self._monotonic()
        try:
            await asyncio.wait_for(self._store.news.wait(), seconds)
        except TimeoutError:
            return None
        await asyncio.sleep(max(0.0, LEAST_WAIT - (self._monotonic() - began)))
        self._store.news.clear()
        names, self._store.changed = frozenset(self._store.changed), set()
        return names

    # -- ending

    async def cancel(self, refs: Sequence[AllocationRef]) -> Mapping[str, bool] | Unknown:
        try:
            return {self.name_of(ref): await self._cancel(ref) for ref in refs}
        except ApiError as error:
            return Unknown("ApiServerUnreachable", str(error), reachable=False)

    async def _cancel(self, ref: AllocationRef) -> bool:
        """Delete the pod unless it has ended; whether nothing of it runs any more."""
        name, namespace = self.name_of(ref), ref.identity.namespace
        try:
            pod = await self._pods.get(namespace, name)
        except NotFound:
            self._of(ref).cancelled = True
            return True
        if pod["metadata"].get("labels", {}).get(manifest.UID_LABEL) != ref.identity.uid or has_ended(pod):
            return True
        self._of(ref).cancelled = True
        if not pod["metadata"].get("deletionTimestamp"):
            with suppress(NotFound, Conflict):
                await self._pods.delete(namespace, name, pod["metadata"]["uid"])
        return False

    async def jobs(self) -> Sequence[MarkedJob] | Unknown:
        try:
            lists = [await self._pods.listed(scope) for scope in self._pods.scopes]
        except ApiError as error:
            return Unknown("ApiServerUnreachable", str(error), reachable=False)
        live = [pod for items, _ in lists for pod in items if not has_ended(pod)]
        return [
            MarkedJob(
                pod["metadata"]["name"],
                pod["metadata"]["uid"],
                pod["metadata"]["labels"].get(manifest.UID_LABEL, ""),
                pod["metadata"]["namespace"],
            )
            for pod in live
        ]

    async def cancel_jobs(self, jobs: Sequence[MarkedJob | PrepareJob]) -> Unknown | None:
        for job in jobs:
            if not isinstance(job, MarkedJob):
                continue
            try:
                with suppress(NotFound, Conflict):
                    await self._pods.delete(job.namespace, job.name, job.id)
            except ApiError as error:
                return Unknown("ApiServerUnreachable", str(error), reachable=False)
        return None

    async def facts(self) -> ClusterFacts | Unknown:
        return Unknown("NotAsked", "pods are placed by the cluster's own scheduler")

    # -- memory

    def forget(self, name: str) -> None:
        self._memory.pop(name, None)
        self._store.forget(name)

    async def close(self) -> None:
        await self._store.close()

    def _of(self, ref: AllocationRef) -> Memory:
        name = self.name_of(ref)
        if name not in self._memory:
            memory = self._memory[name] = Memory(LogReader(self._pods, ref.log_format))
            if ref.job_id is None and (self._now() - ref.since).total_seconds() < DOUBT_SECONDS:
                memory.doubt_until = self._monotonic() + DOUBT_SECONDS  # an operator before us may have asked for it
        return self._memory[name]
