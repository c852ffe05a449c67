"""The nodes' labels, asked for when a pod needs GPUs of a type and taken for known for a minute."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from speedrun_operator.backends.pods import gpus
from speedrun_operator.backends.pods.gpus import ANY, Wanted
from speedrun_operator.backends.pods.places import UNREAD, UNSEEN
from speedrun_operator.clock import Clock
from speedrun_operator.kube.client import ApiError, Unavailable
from speedrun_operator.kube.pods import Pods
from speedrun_operator.planning import RunPlan

logger = logging.getLogger(__name__)
KNOWN_SECONDS = 60.0


class Nodes:
    """See the module. `keys`: labels that tell a node's type of GPU."""

    def __init__(self, pods: Pods, keys: Sequence[str], clock: Clock) -> None:
        self._pods = pods
        self._keys = tuple(keys)
        self._monotonic = clock.monotonic
        self._labels: tuple[float, list[dict[str, str]] | None] | None = None

    async def with_gpus_of(self, plan: RunPlan) -> Wanted:
        """Labels of nodes with the plan's GPU type. Without a look at the nodes: what they are likely to be.

        Raises Unavailable where the API server does not answer.
        """
        if not plan.gpu_count or plan.gpu_type is None:
            return ANY
        now = self._monotonic()
        if self._labels is None or now - self._labels[0] > KNOWN_SECONDS:
            try:
                self._labels = (now, await self._pods.node_labels())
            except Unavailable:
                raise
            except ApiError as error:
                logger.warning("the nodes' labels cannot be read (%s): GPU types are looked for by likely names", error)
                self._labels = (now, None)
        labels = self._labels[1]
        if found := gpus.values_by_key(plan.gpu_type, self._keys, labels or ()):
            return Wanted(found)
        return Wanted(gpus.guessed(plan.gpu_type, self._keys), UNREAD if labels is None else UNSEEN)
