"""The list every few minutes: brings back what a watch lost, and frees what hangs in Terminating.

Kopf lists again only after a restart or a break of its watch, and a deletion whose last patch failed waits for an
outside change. Cost: one chunked list a period, of live Speedruns only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from datetime import UTC, datetime

from speedrun_operator.api.names import FINISHED_LABEL, GROUP
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import rfc3339
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.reconcile import Engine

logger = logging.getLogger(__name__)
LIVE = f"{FINISHED_LABEL}!=true"
TOUCH = f"{GROUP}/touched"


def scopes(namespaces: Sequence[str]) -> list[str | None]:
    """The namespaces to ask about; none named means one question about all of them."""
    return [*namespaces] if namespaces else [None]


async def run(kube: Kube, engine: Engine, namespaces: Sequence[str], seconds: float) -> None:
    """Resync until cancelled."""
    while True:
        await asyncio.sleep(seconds * random.uniform(0.9, 1.1))
        try:
            await once(kube, engine, namespaces)
        except ApiError as error:
            logger.warning("resync: %s", error)


async def once(kube: Kube, engine: Engine, namespaces: Sequence[str]) -> None:
    """One resync. Raises ApiError."""
    for namespace in scopes(namespaces):
        for raw in await kube.list_speedruns(namespace, labels=LIVE):
            resource = Resource.parse(raw)
            engine.deliver(resource)
            if resource.deleting and resource.protected:
                touch = {"metadata": {"annotations": {TOUCH: rfc3339(datetime.now(UTC))}}}
                await kube.patch_speedrun(resource.identity.namespace, resource.identity.name, touch)
