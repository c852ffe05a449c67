"""The real engine on a backend in memory, with an API server in memory that keeps to the rules the engine relies on:
merge patches, versions, conflicts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.api.status import Status
from speedrun_operator.backends.memory import Cluster, MemoryBackend
from speedrun_operator.entries import Setup
from speedrun_operator.kube.client import Conflict, Kube, NotFound
from speedrun_operator.lifecycle.situation import Policy
from speedrun_operator.policy import Rules
from speedrun_operator.recipes.recipe import shipped
from speedrun_operator.reconcile import Engine
from unit.builders import REPLAY, SITE, patched, raw

LIMIT_SECONDS = 20.0

# There is no login here that could be asked for the head of a repository.
PINNED = {
    name: recipe.model_copy(update={"revision": "f411b3d346aa52d3504324ca93c230fd84c6c07f"})
    if recipe.revision
    else recipe
    for name, recipe in shipped().items()
}


class ApiServer(Kube):
    """Implements the requests that the engine makes, on objects by path."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.writes = 0

    async def close(self) -> None:
        """There is nothing to close."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        if "/events" in path:
            if method == "POST":
                self.events.append(body)
            return {}
        path = path.removesuffix("/status")
        if path not in self.objects:
            raise NotFound(404, f"{path} is not there")
        kept = self.objects[path]
        if method == "PATCH":
            version = (body.get("metadata") or {}).get("resourceVersion")
            if version not in (None, kept["metadata"]["resourceVersion"]):
                raise Conflict(409, "the object has been modified")
            self.writes += 1
            kept = patched(kept, json.loads(json.dumps(body, allow_nan=False)))
            kept["metadata"] = {
                **kept["metadata"],
                "resourceVersion": str(int(kept["metadata"]["resourceVersion"]) + 1),
            }
            self.objects[path] = kept
        return kept


class World:
    """One Speedrun under a running engine."""

    def __init__(
        self, spec: Mapping[str, Any], cluster: Cluster, policy: Policy, rules: Rules, backend: MemoryBackend
    ) -> None:
        self.api = ApiServer()
        self.cluster = cluster
        made = raw(spec)
        path = f"/apis/speedrun.dev/v1alpha1/namespaces/lab/speedruns/{made['metadata']['name']}"
        self.api.objects[path] = made
        self._path = path
        setup = Setup(
            cluster="memory00",
            recipes=PINNED,
            site=SITE,
            policy=policy,
            poll_seconds=0.02,
            release_seconds=5,
            rules=rules,
        )
        self.engine = Engine(kube=self.api, backends={Kind.SLURM: backend}, setup=setup)

    @property
    def resource(self) -> Resource:
        return Resource.parse(self.api.objects[self._path])

    @property
    def status(self) -> Status:
        return self.resource.status

    def told(self) -> list[tuple[str, str, str]]:
        """(type, reason, message) of each event."""
        return [(each["type"], each["reason"], each["message"]) for each in self.api.events]

    async def until(self, what: str, holds: Callable[[Status], bool]) -> Status:
        """The status once `holds` is true of it; the cluster's time goes on meanwhile."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not holds(self.status):
            assert time.monotonic() < deadline, f"not {what}: {self.status.dump()}"
            self.cluster.advance()
            await asyncio.sleep(0.02)
        return self.status


@asynccontextmanager
async def running_engine(
    cluster: Cluster,
    spec: Mapping[str, Any] = REPLAY,
    policy: Policy | None = None,
    rules: Rules | None = None,
    backend: type[MemoryBackend] = MemoryBackend,
) -> AsyncIterator[World]:
    """A Speedrun that was just made, and the engine at work on it."""
    world = World(spec, cluster, policy or Policy(), rules or Rules(), backend(cluster))
    task = asyncio.create_task(world.engine.run())
    world.engine.deliver(world.resource)
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
