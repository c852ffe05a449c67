"""Keeps the shared cache below its cap, and ledgers for their days. What a live run uses is never touched.

That is what a running job uses, what was used within the hour, and what a live Speedrun waits for.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from speedrun_operator.api.resource import Resource
from speedrun_operator.backends.slurm.housekeeping import Housekeeper, HousekeepingError
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.login.errors import LoginError
from speedrun_operator.preparation.storage import GIB, gib, over_the_cap
from speedrun_operator.resync import LIVE, scopes
from speedrun_operator.settings import CacheSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """What live Speedruns have a use for: keys of entries, and the first eight characters of their UIDs."""

    keys: frozenset[str] = field(default_factory=frozenset)
    uids: frozenset[str] = field(default_factory=frozenset)


async def wanted(kube: Kube, namespaces: Sequence[str]) -> Wanted:
    """What the live Speedruns of these namespaces want. Raises ApiError."""
    keys: set[str] = set()
    uids: set[str] = set()
    for namespace in scopes(namespaces):
        for raw in await kube.list_speedruns(namespace, labels=LIVE):
            resource = Resource.parse(raw)
            if not is_finished(resource.status):
                keys |= {each.key for each in resource.status.preparing}
                uids.add(resource.identity.uid8)
    return Wanted(frozenset(keys), frozenset(uids))


class Keeper:
    """Keeps every login's cache below its cap and its ledgers for their days, as the settings say."""

    def __init__(
        self,
        kube: Kube,
        housekeepers: Callable[[], Collection[Housekeeper]],
        namespaces: Sequence[str],
        settings: CacheSettings,
    ) -> None:
        """`housekeepers`: those of the logins that there are now."""
        self._kube = kube
        self._housekeepers = housekeepers
        self._namespaces = namespaces
        self._settings = settings

    async def run(self) -> None:
        """Look every `period_seconds`, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.period_seconds * random.uniform(0.9, 1.1))
            try:
                await self.once()
            except ApiError as error:
                logger.warning("housekeeping: %s", error)

    async def once(self) -> None:
        """Look once. Raises ApiError."""
        live = await wanted(self._kube, self._namespaces)
        await asyncio.gather(*(self._look(each, live) for each in self._housekeepers()))

    async def _look(self, housekeeper: Housekeeper, live: Wanted) -> None:
        try:
            await self._keep(housekeeper, live)
        except (LoginError, HousekeepingError) as error:
            logger.warning("housekeeping: %s", error)

    async def _keep(self, housekeeper: Housekeeper, live: Wanted) -> None:
        if self._settings.most_gib:
            found = await housekeeper.look()
            gone = over_the_cap(found.entries, live.keys, found.now, self._settings.most_gib * GIB)
            told = await housekeeper.remove(gone) if gone else {}
            for each in gone:
                logger.info("cache: %s (%s): %s", each, gib(each.bytes), told.get(str(each), "not answered"))
        if self._settings.ledger_days:
            count = await housekeeper.remove_ledgers(self._settings.ledger_days, live.uids, dry=False)
            if count:
                logger.info("%d ledgers older than %d days are removed", count, self._settings.ledger_days)
