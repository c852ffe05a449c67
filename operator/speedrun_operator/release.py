"""Deleting a Speedrun: its jobs end before Kopf lets go of the finalizer, or it goes after a bounded time anyway."""

from __future__ import annotations

import asyncio
import logging

from speedrun_operator.api.names import Identity
from speedrun_operator.api.resource import Resource
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.entries import DEFAULT_FORMAT, Entry, Setup, kind_of
from speedrun_operator.jobs import Jobs
from speedrun_operator.kube import events
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.observation import Unknown
from speedrun_operator.lifecycle.situation import Notice

logger = logging.getLogger(__name__)


class Release:
    """See the module."""

    def __init__(self, kube: Kube, jobs: Jobs, setup: Setup) -> None:
        self._kube = kube
        self._jobs = jobs
        self._setup = setup
        self._clock = setup.clock

    async def release(self, identity: Identity, entry: Entry | None) -> None:
        """End the jobs of an object that is being deleted; return when they are gone, or after `release_seconds`."""
        deadline = self._clock.monotonic() + self._setup.release_seconds
        pause, said = 0.5, Unknown("NotAsked", "")
        refs = await self._refs(identity, entry, deadline)
        while refs:
            try:
                answer = await asyncio.wait_for(self._jobs.cancel(refs), max(1.0, deadline - self._clock.monotonic()))
            except TimeoutError:
                answer = said
            if isinstance(answer, Unknown):
                said = answer
            elif all(answer.values()):
                return
            else:
                said = Unknown("StillRunning", "the job has not ended yet")
            if self._clock.monotonic() + pause > deadline:
                message = f"deleted without knowing that its job ended ({said.reason}: {said.message})"
                logger.warning("%s: %s", identity, message)
                await events.post(self._kube, identity, Notice(True, "JobNotCancelled", message), self._clock.now())
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 10.0)

    async def _refs(self, identity: Identity, entry: Entry | None, deadline: float) -> list[AllocationRef]:
        """Every allocation that may have a job: those of the status, and the next one, in case that write was lost."""
        if entry is not None:
            try:
                await asyncio.wait_for(entry.lock.acquire(), max(1.0, deadline - self._clock.monotonic()))
                entry.lock.release()
            except TimeoutError:
                pass  # a submission hangs; the fence in the ledger ends its job
            resource = entry.resource
        else:
            try:
                resource = Resource.parse(await self._kube.get_speedrun(identity.namespace, identity.name))
            except ApiError:
                place = self._setup.slurm(identity.namespace)
                return [AllocationRef(identity, 0, self._clock.now(), DEFAULT_FORMAT, place=place)]
        if is_finished(resource.status) or not self._jobs.can(kind_of(resource)):
            return []
        number, place = len(resource.status.allocations), self._setup.place(resource)
        following = AllocationRef(identity, number, self._clock.now(), DEFAULT_FORMAT, place=place)
        # Where nothing can be asked now, nobody waits for an answer; a job that there is all the same is an orphan.
        return [*self._setup.refs(resource), *([following] if self._jobs.name_of(following) is not None else [])]
