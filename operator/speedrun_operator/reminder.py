"""Events that the platform's side gives rise to: a token that runs out, and a cluster that is billed for nothing.

Both are told on Speedruns, where people look; `check` says the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import rfc3339
from speedrun_operator.kube import events
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.lifecycle.situation import Notice
from speedrun_operator.resync import scopes

logger = logging.getLogger(__name__)
LOOK_SECONDS = 5.0
MOST_TOLD = 20
BILLED = (
    "an on-demand cluster is billed until somebody ends it (open it in the console and choose End cluster). Copy out "
    "first what is to be kept: it goes with the cluster"
)


class Reminder:
    """Looks every few seconds at what is live in memory; asks the API server only when there is something to tell."""

    def __init__(
        self,
        kube: Kube,
        live: Callable[[], list[Resource]],
        token_end: Callable[[], datetime | None],
        *,
        namespaces: list[str],
        root: str,
        warn: timedelta,
        remind_seconds: float,
    ) -> None:
        self._kube = kube
        self._live = live
        self._token_end = token_end
        self._namespaces = namespaces
        self._root = root
        self._warn = warn
        self._remind_seconds = remind_seconds
        self._told_end: datetime | None = None
        self._told: set[str] = set()
        self._idle_since: float | None = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._token()
            await self._idle()
            await asyncio.sleep(LOOK_SECONDS)

    async def _token(self) -> None:
        """Each live Speedrun is told once of each end that no renewal has moved."""
        end = self._token_end()
        if end is None or datetime.now(UTC) < end - self._warn:
            return
        message = (
            f"the operator's token for the Platform API runs out at {rfc3339(end)}: renew it where it comes from; no "
            "restart is needed. Runs go on without it, but readiness is then not known"
        )
        if end != self._told_end:
            self._told_end, self._told = end, set()
            logger.warning("%s", message)
        for each in self._live()[:MOST_TOLD]:
            if each.identity.uid not in self._told:
                self._told.add(each.identity.uid)
                await events.post(self._kube, each.identity, Notice(True, "TokenExpires", message), datetime.now(UTC))

    async def _idle(self) -> None:
        if self._live():
            self._idle_since = time.monotonic()
        if self._idle_since is None or time.monotonic() - self._idle_since < self._remind_seconds:
            return
        try:
            last = await last_finished(self._kube, self._namespaces)
        except ApiError as error:
            logger.info("not reminded yet: %s", error)
            return
        self._idle_since = None
        if last is not None:
            notice = Notice(True, "ClusterIdle", idle_words(last, self._root))
            logger.warning("%s", notice.message)
            await events.post(self._kube, last.identity, notice, datetime.now(UTC))


def idle_words(last: Resource, root: str) -> str:
    """What to say when `last` was the last run to end."""
    ended = last.status.completion_time
    since = f" since {rfc3339(ended)}" if ended else ""
    path = f" (the log of the last run is {last.status.log_path})" if last.status.log_path else ""
    return f"nothing runs or waits{since}: {BILLED}: {root}{path}"


async def last_finished(kube: Kube, namespaces: list[str]) -> Resource | None:
    """The Speedrun that ended last; None while one is live, or where there is none. Raises ApiError."""
    last: Resource | None = None
    for namespace in scopes(namespaces):
        async for raw in kube.each_speedrun(namespace):
            resource = Resource.parse(raw)
            ended = resource.status.completion_time
            if ended is None:
                return None
            if last is None or last.status.completion_time is None or ended > last.status.completion_time:
                last = resource
    return last
