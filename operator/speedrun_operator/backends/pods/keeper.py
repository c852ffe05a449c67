"""Keeps the last part of logs that end with their pods."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.backends.pods.keeping import kept_log
from speedrun_operator.backends.pods.memory import SETTLE_SECONDS, Memory
from speedrun_operator.clock import Clock
from speedrun_operator.kube.client import ApiError, Unavailable
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.observation import JobState, Observed

logger = logging.getLogger(__name__)


class LogKeeper:
    """See the module. `slots` bounds how many requests there are at once."""

    def __init__(self, pods: Pods, cluster: str, slots: asyncio.Semaphore, clock: Clock) -> None:
        self._pods = pods
        self._cluster = cluster
        self._slots = slots
        self._monotonic = clock.monotonic

    async def kept(self, seen: Observed, ref: AllocationRef, memory: Memory) -> Observed:
        """`seen`, once the log is kept: an end is final, so it is not told before. A fault is said in the log alone."""
        if seen.state is not JobState.ENDED or not seen.log_complete or memory.kept:
            return seen
        compressed = memory.reader.tail.compressed()
        if not compressed:
            return seen
        name = ref.identity.job_name(self._cluster, ref.allocation)
        try:
            async with self._slots:
                await self._pods.put_config_map(kept_log(ref.identity, self._cluster, name, compressed))
            memory.kept = True
        except ApiError as error:
            now = self._monotonic()
            memory.keeping_since = memory.keeping_since if memory.keeping_since is not None else now
            if isinstance(error, Unavailable) and now - memory.keeping_since < SETTLE_SECONDS:
                return replace(seen, log_complete=False)
            logger.warning("the log of pod %s is not kept: %s", name, error)
        return seen
