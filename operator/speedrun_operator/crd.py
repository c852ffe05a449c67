"""Whether the API server serves this version's CRD: looked at from the start on, and said where people look.

A CRD that is older drops the fields that it does not know, so that status lacks them and specs are not what was
written. An upgrade of the operator alone leaves it as it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from speedrun_operator import __version__
from speedrun_operator.api.names import CRD_INSTALL, CRD_NAME
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.kube.events import Subject, identified, post_on
from speedrun_operator.kube.served import Served, settled
from speedrun_operator.lifecycle.situation import Notice

logger = logging.getLogger(__name__)
WELL_SECONDS, ILL_SECONDS = 60.0, 15.0
AGAIN_SECONDS = 60.0  # what is missing is said again in the log so often

STALE = Notice(
    True,
    "CrdStale",
    f"the CRD {CRD_NAME} is not that of speedrun-operator {__version__}: fields that it does not know are dropped; "
    f"{CRD_INSTALL} installs this version's, and nothing needs a restart",
)
MISSING = Notice(
    True, "CrdMissing", f"the CRD {CRD_NAME} is not installed; {CRD_INSTALL} does it, and the operator waits for it"
)
CURRENT = Notice(False, "CrdCurrent", f"the CRD {CRD_NAME} is that of speedrun-operator {__version__}")
_NOTICES = {Served.STALE: STALE, Served.MISSING: MISSING, Served.CURRENT: CURRENT}


class CrdWatch:
    """`deployment`: what the operator runs as, for events; None outside a cluster. For one event loop."""

    def __init__(self, kube: Kube, deployment: Subject | None) -> None:
        self._kube = kube
        self._deployment = deployment
        self._said = Served.CURRENT
        self._said_at = 0.0
        self.served: Served | None = None
        """What was found last; None: nothing yet."""

    async def run(self) -> None:
        """Look at once and every minute, until cancelled."""
        while True:
            try:
                await self.found(await settled(self._kube))
            except ApiError as error:
                logger.info("whether the CRD is this version's is not known: %s", error)
            await asyncio.sleep(WELL_SECONDS if self.served is Served.CURRENT else ILL_SECONDS)

    async def found(self, now: Served) -> None:
        """Take what was found, and say it if it is news that somebody has to act on, or that all is well again."""
        if now is Served.UNPUBLISHED:
            self.served = now if self.served in (None, Served.MISSING) else self.served
            return
        self.served = now
        before, self._said = self._said, now
        if now is before is Served.CURRENT:
            return
        notice = _NOTICES[now]
        if now is not before or time.monotonic() - self._said_at >= AGAIN_SECONDS:
            self._said_at = time.monotonic()
            logger.log(logging.ERROR if notice.warning else logging.INFO, "%s", notice.message)
        if now is not before and self._deployment is not None:
            deployment = await identified(self._kube, self._deployment)
            await post_on(self._kube, deployment, notice, datetime.now(UTC))
