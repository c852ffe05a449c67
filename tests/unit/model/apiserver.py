"""The API server as far as Speedruns go: versions, conflicts, finalizers, chunks, and every way not to answer."""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from speedrun_operator.api.names import API_VERSION, FINISHED_LABEL, KIND
from speedrun_operator.api.status import rfc3339
from speedrun_operator.kube.client import Conflict, Json, Kube, NotFound, Refused, Unavailable
from unit.model.virtual import now, seconds

NAMESPACE = "lab"
SLOW = 25.0
STALE_LISTS = 600.0
FATES = ("conflict", "refused", "busy", "broken", "away", "lost", "slow", "stale")


def patched(target: Json, patch: Json) -> Json:
    """RFC 7386."""
    merged = dict(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            old = merged.get(key)
            merged[key] = patched(old if isinstance(old, dict) else {}, value)
        else:
            merged[key] = value
    return merged


@dataclass
class ApiServer:
    """Objects by name. `watchers` hear of each change. `fates`: what becomes of the next requests. `away`: of all."""

    objects: dict[str, Json] = field(default_factory=dict)
    before: dict[str, Json] = field(default_factory=dict)
    watchers: list[Callable[[str, Json], None]] = field(default_factory=list)
    fates: list[str] = field(default_factory=list)
    away: bool = False
    version: int = 100
    on_status: Callable[[Json], None] = lambda raw: None
    on_gone: Callable[[Json], None] = lambda raw: None
    protected: set[str] = field(default_factory=set)
    events: set[tuple[str, str]] = field(default_factory=set)
    list_stale: bool = False
    listed_stale: float = -1000.0
    ahead: float = 0.0
    history: dict[str, list[Json]] = field(default_factory=dict)
    on_restored: Callable[[Json], None] = lambda raw: None

    # --- what people do -------------------------------------------------------------------------------------------

    def create(self, name: str, spec: Json) -> None:
        if name in self.objects:
            return
        uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}{self.version}"))
        metadata = {
            "namespace": NAMESPACE,
            "name": name,
            "uid": uid,
            "generation": 1,
            "creationTimestamp": self._time(),
        }
        self._store({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}, "ADDED")

    def edit(self, name: str, spec: Json) -> None:
        """What the API server lets anybody change: not the spec of what is finished."""
        if (raw := self.objects.get(name)) is None:
            return
        metadata = {**raw["metadata"], "generation": raw["metadata"]["generation"] + 1}
        self._store({**raw, "spec": patched(raw["spec"], spec), "metadata": metadata})

    def meddle(self, name: str, metadata: Json) -> None:
        if (raw := self.objects.get(name)) is not None:
            self._store(patched(raw, {"metadata": metadata}))

    def restore(self, name: str, *, anew: bool) -> None:
        """A back-up is put back: an earlier status, on the object itself or on another one of its name and spec."""
        raw = self.objects.get(name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return
        kept = self.history.get(raw["metadata"]["uid"]) or [{}]
        status = copy.deepcopy(kept[len(kept) // 2])
        if anew:
            self.delete(name)
            self.create(name, raw["spec"])  # not where the old one is still held
        if (there := self.objects.get(name)) is not None and not there["metadata"].get("deletionTimestamp"):
            new = {**there, "status": status}
            self.on_restored(new)
            self._store(new)

    def delete(self, name: str) -> None:
        if (raw := self.objects.get(name)) is None or raw["metadata"].get("deletionTimestamp"):
            return
        if raw["metadata"].get("finalizers"):
            self.meddle(name, {"deletionTimestamp": self._time()})
        else:
            self._drop(raw)

    # --- what is kept ---------------------------------------------------------------------------------------------

    def _store(self, raw: Json, how: str = "MODIFIED") -> Json:
        name = raw["metadata"]["name"]
        old = self.objects.get(name)
        if old is not None and old == raw:
            return raw
        self.version += 1
        raw = copy.deepcopy(raw)
        raw["metadata"]["resourceVersion"] = str(self.version)
        if raw["metadata"].get("deletionTimestamp") and not raw["metadata"].get("finalizers"):
            self._drop(raw)
            return raw
        if old is not None:
            self.before[name] = old
        if raw["metadata"].get("finalizers"):
            self.protected.add(raw["metadata"]["uid"])
        self.objects[name] = raw
        self._tell(how, raw)
        return raw

    def _drop(self, raw: Json) -> None:
        self.on_gone(raw)
        self.objects.pop(raw["metadata"]["name"], None)
        self.before.pop(raw["metadata"]["name"], None)
        self._tell("DELETED", raw)

    def _time(self) -> str:
        return rfc3339(now() + timedelta(seconds=self.ahead))

    def _tell(self, how: str, raw: Json) -> None:
        for watcher in self.watchers:
            watcher(how, copy.deepcopy(raw))

    # --- requests -------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Json:
        if name not in self.objects:
            raise NotFound(404, f"{name} not found")
        return self.objects[name]

    def patch(self, name: str, body: Json, *, status: bool) -> Json:
        raw = self.get(name)
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != raw["metadata"]["resourceVersion"]:
            raise Conflict(409, "the object has been modified")
        if not status:
            return self._store(patched(raw, {"metadata": body["metadata"]}))
        json.dumps(body, allow_nan=False)
        new = patched(raw, {"status": body["status"]})
        self.on_status(new)
        self.history.setdefault(new["metadata"]["uid"], []).append(new["status"])
        return self._store(new)

    def list(self, labels: str, limit: int, token: str, *, stale: bool) -> Json:
        """`stale`: as it was when there was nothing; that does not happen to two lists in a row."""
        names = sorted(name for name, raw in self.objects.items() if _selected(raw, labels) and name > token)
        if (stale or self.list_stale) and not 10 < seconds() - self.listed_stale < STALE_LISTS:
            self.listed_stale = seconds() if seconds() - self.listed_stale > 10 else self.listed_stale
            names = []
        items = [self.objects[name] for name in names[:limit]]
        more = {"continue": names[limit - 1]} if len(names) > limit else {}
        return {"items": items, "metadata": more}


def _selected(raw: Json, labels: str) -> bool:
    finished = (raw["metadata"].get("labels") or {}).get(FINISHED_LABEL) == "true"
    return finished == (labels == f"{FINISHED_LABEL}=true") if labels else True


def watched(raw: Json) -> bool:
    return _selected(raw, f"{FINISHED_LABEL}!=true")


class ModelKube(Kube):
    """One client of it."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.dead = False

    async def close(self) -> None:
        self.dead = True

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = "application/json",
    ) -> Json:
        await asyncio.sleep(0.01)
        if self.dead:
            raise asyncio.CancelledError
        server = self._server
        if path.endswith("/events"):
            server.events.add((body["involvedObject"]["uid"], body["reason"]))
        fate = "away" if server.away else server.fates.pop(0) if server.fates else "works"
        match fate:
            case "away":
                await asyncio.sleep(0.5)
                raise Unavailable(0, "the API server does not answer")
            case "busy":
                raise Unavailable(429, "too many requests", 1.0)
            case "broken":
                raise Unavailable(503, "etcdserver: leader changed")
            case "refused" if method != "GET":
                raise Refused(422, "a webhook denied it")
            case "conflict" if method in ("PATCH", "DELETE"):
                raise Conflict(409, "the object has been modified")
        work = asyncio.create_task(self._served(method, path, body, dict(query), fate))
        answer = await asyncio.shield(work)
        if fate == "lost":
            raise Unavailable(0, "the connection was reset")
        return answer

    async def _served(self, method: str, path: str, body: Any, query: dict[str, str], fate: str) -> Json:
        """What the server does, whether or not the client is still there."""
        await asyncio.sleep(SLOW if fate == "slow" else 0)
        return copy.deepcopy(self._do(method, path, body, query, stale=fate == "stale"))

    def _do(self, method: str, path: str, body: Any, query: dict[str, str], *, stale: bool) -> Json:
        server = self._server
        if path.startswith("/api/v1/namespaces/"):
            return {}
        parts = path.split("/")
        if parts[-1] == "speedruns":
            labels, token = query.get("labelSelector", ""), query.get("continue", "")
            return server.list(labels, int(query["limit"]), token, stale=stale)
        name = parts[-2] if parts[-1] == "status" else parts[-1]
        match method:
            case "GET":
                server.get(name)
                return server.before.get(name, server.objects[name]) if stale else server.objects[name]
            case "PATCH":
                return server.patch(name, body, status=parts[-1] == "status")
            case "DELETE":
                metadata = server.get(name)["metadata"]
                if any(metadata[key] != value for key, value in body["preconditions"].items()):
                    raise Conflict(409, "the preconditions do not hold")
                server.delete(name)
                return {}
        raise NotImplementedError(f"{method} {path}")
