"""The list every few minutes: brings back what a watch lost, and frees what hangs in Terminating.

Kopf lists again only after a restart or a break of its watch, and a deletion whose last patch failed waits for an
outside change. A label that says `finished` of what is not (a copy of a finished Speedrun carries it) hides it from the
watch. Cost: two chunked lists a period; of finished Speedruns nothing is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL, GROUP
from speedrun_operator.api.phases import ConditionType
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import rfc3339
from speedrun_operator.kube.client import ApiError, Kube, NotFound
from speedrun_operator.reconcile import Engine

logger = logging.getLogger(__name__)
LIVE = f"{FINISHED_LABEL}!=true"
HIDDEN = f"{FINISHED_LABEL}=true"
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
        async for raw in kube.each_speedrun(namespace, labels=HIDDEN):
            if _hidden_by_mistake(raw):
                await _patch(kube, raw, {"labels": {FINISHED_LABEL: None}})
        for raw in await kube.list_speedruns(namespace, labels=LIVE):
            resource = Resource.parse(raw)
            engine.deliver(resource)
            if resource.deleting and resource.protected:
                await _patch(kube, raw, {"annotations": {TOUCH: rfc3339(datetime.now(UTC))}})


def _hidden_by_mistake(raw: dict[str, Any]) -> bool:
    """Whether an object with the label of finished ones still needs somebody. Unparsed: there may be very many."""
    conditions = (raw.get("status") or {}).get("conditions") or []
    finished = any(each["type"] == ConditionType.FINISHED and each["status"] == "True" for each in conditions)
    return not finished or FINALIZER in (raw["metadata"].get("finalizers") or [])


async def _patch(kube: Kube, raw: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Change the metadata of an object that may be gone by now."""
    with contextlib.suppress(NotFound):
        await kube.patch_speedrun(raw["metadata"]["namespace"], raw["metadata"]["name"], {"metadata": metadata})
