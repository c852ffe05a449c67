"""The cluster's readiness: asked about every so often, and told when it changes.

What the API no longer says stays as it was: a cluster does not become unready because nobody answers. What is `ready`
there is not believed until Slurm itself has shown nodes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from speedrun_operator.api.cluster import ClusterState, Lifecycle, Ready
from speedrun_operator.platform.bodies import Cluster
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.platform.errors import Denied, PlatformError

logger = logging.getLogger(__name__)
LONGEST_PAUSE, LONGEST_ASKED = 120.0, 3600.0
HIDDEN_AFTER = 3
"""So many answers 404 in a row to a cluster that was seen: it is gone, or is not shown any more."""
OVER = (Lifecycle.ENDING, Lifecycle.ENDED)


async def ask(api: PlatformApi, cluster: str, found: Cluster | None = None) -> ClusterState:
    """The facts now. What this account may not see is unknown. Raises PlatformError where not even the cluster is."""
    found = found or await api.cluster(cluster)
    facts = ClusterState(cluster, found.spec.name, found.lifecycle, found.status.lifecycle_state)
    if found.lifecycle in OVER:
        return facts
    try:
        options = await api.options(cluster)
    except Denied as error:
        logger.info("%s", error)
    else:
        slurm, storage = options.scheduler.ready, options.storage.ready
        facts = replace(
            facts,
            scheduler=options.scheduler.name,
            slurm=slurm.ready() if slurm else Ready(),
            storage=options.storage.kinds,
            storage_ready=storage.ready() if storage else Ready(),
        )
    try:
        access = await api.ssh_access(cluster)
    except Denied as error:
        logger.info("%s", error)
        return replace(facts, ssh=Ready(message=str(error)))
    return replace(facts, ssh=access.is_ready())


class Readiness:
    """Asks for as long as it runs. `tell` gets each change, and `nodes` asks Slurm itself. For one event loop."""

    def __init__(
        self,
        api: PlatformApi,
        cluster: str,
        tell: Callable[[ClusterState], None],
        *,
        seconds: float,
        nodes: Callable[[], Awaitable[Ready]] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.facts: ClusterState | None = None
        self.problem = ""
        self._not_found = 0
        self._api = api
        self._cluster = cluster
        self._tell = tell
        self._seconds = seconds
        self._nodes = nodes
        self._sleep = sleep

    async def run(self) -> None:
        """Until cancelled. After failures less often, but for what the API asks."""
        pause = self._seconds
        while True:
            wait = await self.once()
            pause = self._seconds if wait == 0 else min(LONGEST_PAUSE, max(2 * pause, self._seconds))
            asked = min(LONGEST_ASKED, wait or 0.0)  # never earlier than that
            await self._sleep(max(pause * random.uniform(0.9, 1.1), asked * random.uniform(1.0, 1.1)))

    async def once(self) -> float | None:
        """Ask once: 0 where it was answered, else the wait that the API asks for, or None."""
        try:
            facts = await ask(self._api, self._cluster)
        except PlatformError as error:
            if str(error) != self.problem:
                logger.warning("the cluster's readiness is not known: %s", error)
            self.problem = str(error)
            self._not_found = self._not_found + 1 if error.status == 404 else 0
            if self.facts is not None and self._not_found >= HIDDEN_AFTER:
                known = self.facts
                self._change(ClusterState(known.cluster, known.name, Lifecycle.HIDDEN, "not shown any more"))
            return error.retry_after
        if self.problem:
            logger.info("the Platform API tells the cluster's readiness again")
        self.problem = ""
        self._not_found = 0
        self._change(await self._with_nodes(facts))
        return 0

    async def _with_nodes(self, facts: ClusterState) -> ClusterState:
        """With Slurm's word once all else is ready: asked until it is yes, and again after the cluster was unready."""
        if self._nodes is None or not all_ready(facts):
            return facts
        if self.facts is not None and self.facts.nodes.ready:
            return replace(facts, nodes=self.facts.nodes)
        return replace(facts, nodes=await self._nodes())

    def _change(self, facts: ClusterState) -> None:
        if facts != self.facts:
            self.facts = facts
            self._tell(facts)


def all_ready(facts: ClusterState) -> bool:
    """Whether the platform says yes, or nothing, of each part of a cluster that may be active."""
    parts = (facts.slurm, facts.storage_ready, facts.ssh)
    return facts.lifecycle in (Lifecycle.ACTIVE, Lifecycle.OTHER) and all(
        each.ready or not each.known for each in parts
    )
