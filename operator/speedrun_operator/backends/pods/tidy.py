"""Ends pods whose training has ended and in which something else runs on, holding the GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from speedrun_operator.backends.pods.fields import Pod, has_ended, is_over
from speedrun_operator.backends.pods.memory import Memory
from speedrun_operator.clock import Clock
from speedrun_operator.kube.client import ApiError
from speedrun_operator.kube.pods import Pods

logger = logging.getLogger(__name__)
TIDY_SECONDS = 60.0


class Tidy:
    """See the module."""

    def __init__(self, pods: Pods, clock: Clock) -> None:
        self._pods = pods
        self._monotonic = clock.monotonic
        self._since: dict[str, float] = {}  # when we saw first that it is over, by UID

    async def tidy(self, pods: Iterable[Pod], memories: Mapping[str, Memory]) -> None:
        """End those that have been so for a while, but for those whose log is still to be read or kept.

        `memories`: of the allocations that somebody asks about, by the names of their pods.
        """
        now = self._monotonic()
        over = [each for each in pods if is_over(each) and not has_ended(each)]
        since = self._since
        self._since = {each["metadata"]["uid"]: since.get(each["metadata"]["uid"], now) for each in over}
        for pod in over:
            metadata = pod["metadata"]
            memory = memories.get(metadata["name"])
            waits = memory is not None and not memory.settled
            if waits or metadata.get("deletionTimestamp") or now - self._since[metadata["uid"]] < TIDY_SECONDS:
                continue
            logger.warning("pod %s: a container beside the training runs on; the pod is ended", metadata["name"])
            try:
                await self._pods.delete(metadata["namespace"], metadata["name"], metadata["uid"])
            except ApiError as error:
                logger.warning("pod %s was not ended: %s", metadata["name"], error)
