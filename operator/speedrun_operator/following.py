"""What runs beside the engine where a platform is configured: its word on the cluster, and reminders to people."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from datetime import timedelta

from speedrun_operator.api.cluster import Ready
from speedrun_operator.backends.base import Backend
from speedrun_operator.facts import has
from speedrun_operator.kube.client import Kube
from speedrun_operator.lifecycle.observation import Unknown
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.platform.readiness import Readiness
from speedrun_operator.reconcile import Engine
from speedrun_operator.reminder import Reminder
from speedrun_operator.settings import Settings

FIRST_LOOK_SECONDS = 20.0


async def follow(
    settings: Settings, kube: Kube, engine: Engine, backends: Callable[[], Collection[Backend]], api: PlatformApi
) -> list[asyncio.Task[None]]:
    """Start it. `backends`: those of Slurm that there are now.

    The cluster's readiness is known before anything is submitted, if the API answers at all.
    """
    platform = settings.platform

    async def nodes() -> Ready:
        return await any_usable_nodes(backends())

    readiness = Readiness(api, platform.cluster, engine.cluster_is, seconds=platform.poll_seconds, nodes=nodes)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(readiness.once(), FIRST_LOOK_SECONDS)
    reminder = Reminder(
        kube,
        engine.live,
        lambda: api.tokens.held.end if api.tokens.held and api.tokens.overdue else None,
        namespaces=settings.watch.namespaces,
        root=", ".join(settings.roots),
        warn=timedelta(seconds=platform.warn_seconds),
        remind_seconds=platform.remind_seconds,
    )
    return [
        asyncio.create_task(readiness.run(), name="readiness"),
        asyncio.create_task(reminder.run(), name="reminder"),
    ]


async def any_usable_nodes(backends: Collection[Backend]) -> Ready:
    """What the first login says that sees such nodes: one that is down is no cluster that is not ready."""
    said = Ready()
    for asked in asyncio.as_completed([usable_nodes(each) for each in backends]):
        said = await asked
        if said.ready:
            break
    return said


async def usable_nodes(backend: Backend) -> Ready:
    """Slurm's own word, the last one: whether sinfo answers and shows a node that takes jobs."""
    found = await backend.facts()
    if isinstance(found, Unknown):
        return Ready(True, False, f"{found.reason}: {found.message}")
    usable = any(nodes.usable for partition in found.partitions if partition.up for nodes in partition.nodes)
    return Ready(True, True) if usable else Ready(True, False, has(found))
