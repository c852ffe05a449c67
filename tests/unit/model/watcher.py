"""Kopf as the operator uses it: it tells of changes, late or twice, holds the finalizer, and forgets what failed."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL, Identity
from speedrun_operator.api.resource import Resource
from speedrun_operator.kube.client import ApiError, Json
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.reconcile import Engine
from unit.model.apiserver import ApiServer, ModelKube, watched


@dataclass
class Stream:
    """How the watch does: `late` seconds for each event to come, `deaf`: events are lost until it lists again.

    `stuck`: Kopf's own writes fail.
    """

    late: list[float] = field(default_factory=list)
    deaf: bool = False
    stuck: bool = False


class ModelWatcher:
    """In the place of `handlers.Watcher`: one life of Kopf."""

    def __init__(self, server: ApiServer, kube: ModelKube, engine: Engine, stream: Stream) -> None:
        self._server = server
        self._kube = kube
        self._engine = engine
        self._stream = stream
        self._events: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
        self._known: set[str] = set()
        self._work: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        self._server.watchers.append(self._hear)
        try:
            self.list_again()
            while True:
                how, raw = await self._events.get()
                await asyncio.sleep(self._stream.late.pop(0) if self._stream.late else 0.02)
                self._handle(how, raw)
        finally:
            self._server.watchers.remove(self._hear)
            for task in self._work.values():
                task.cancel()

    def list_again(self) -> None:
        """What is there; nothing is told of what has gone meanwhile."""
        for raw in self._server.objects.values():
            self._hear("MODIFIED", copy.deepcopy(raw))

    def _hear(self, how: str, raw: Json) -> None:
        uid = raw["metadata"]["uid"]
        if self._stream.deaf:
            return
        if not watched(raw):
            how = "DELETED"
            if uid not in self._known:
                return
        (self._known.discard if how == "DELETED" else self._known.add)(uid)
        self._events.put_nowait((how, raw))

    def _handle(self, how: str, raw: Json) -> None:
        resource = Resource.parse(raw)
        uid = resource.identity.uid
        if how == "DELETED":
            self._engine.gone(uid)
            if (task := self._work.pop(uid, None)) is not None:
                task.cancel()
            return
        self._engine.watched(raw)
        live = not is_finished(resource.status)
        if uid in self._work and not self._work[uid].done():
            return
        if resource.deleting and resource.protected and live:
            self._do(uid, self._release(resource.identity))
        elif resource.protected and not live:
            self._do(uid, self._finalizers(resource.identity, [], {FINISHED_LABEL: "true"}))
        elif not resource.protected and live and not resource.deleting:
            self._do(uid, self._finalizers(resource.identity, [FINALIZER]))

    def _do(self, uid: str, work: object) -> None:
        self._work[uid] = asyncio.create_task(work)  # type: ignore[arg-type]

    async def _release(self, identity: Identity) -> None:
        await self._engine.release(identity)
        await self._finalizers(identity, [])

    async def _finalizers(self, identity: Identity, finalizers: list[str], labels: Json | None = None) -> None:
        """One PATCH; where it fails, the next event of the object comes back to it."""
        if self._stream.stuck:
            return
        try:
            raw = await self._kube.get_speedrun(identity.namespace, identity.name)
            if raw["metadata"]["uid"] == identity.uid:
                metadata = {"resourceVersion": raw["metadata"]["resourceVersion"], "finalizers": finalizers}
                body = {"metadata": metadata | ({"labels": labels} if labels else {})}
                await self._kube.patch_speedrun(identity.namespace, identity.name, body)
        except ApiError:
            pass
