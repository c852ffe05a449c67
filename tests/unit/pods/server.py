"""The API server as far as pods go, over real HTTP: lists, watches, answers to creations, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from speedrun_operator.kube.access import Access, Credentials
from speedrun_operator.kube.client import Kube
from speedrun_operator.kube.pods import Pods

Json = dict[str, Any]
END: Json = {"type": "END"}
NAMESPACES = ("a", "b")


class Server:
    """Lists and streams are those of pods, by namespace. Everything about a `forbidden` namespace is refused, and what
    is to be made of a `refused` kind is answered with that message. `nodes`: their labels; None: not for us."""

    def __init__(self) -> None:
        self.lists: defaultdict[str, tuple[list[Json], int]] = defaultdict(lambda: ([], 10))
        self.streams: defaultdict[str, asyncio.Queue[Json]] = defaultdict(asyncio.Queue)
        self.forbidden: set[str] = set()
        self.refused: dict[str, str] = {}
        self.nodes: list[dict[str, str]] | None = []
        self.old: set[str] = set()
        """Versions from which no watch can go on."""
        self.listed: list[str] = []
        self.watched: list[tuple[str, str]] = []
        self.made: list[tuple[str, Json]] = []
        """Kind in the path, and body."""

    def say(self, *events: Json, namespace: str = "a") -> None:
        for each in events:
            self.streams[namespace].put_nowait(each)

    async def handle_nodes(self, request: web.Request) -> web.Response:
        if self.nodes is None:
            return _refused("nodes is forbidden")
        return web.json_response({"items": [{"metadata": {"labels": each}} for each in self.nodes], "metadata": {}})

    async def handle_creation(self, request: web.Request) -> web.Response:
        kind, body = request.match_info["kind"], await request.json()
        if kind in self.refused:
            return _refused(self.refused[kind])
        self.made.append((kind, body))
        about = {"uid": f"uid-{len(self.made)}", "resourceVersion": "1", "creationTimestamp": "2026-07-01T12:00:00Z"}
        return web.json_response(body | {"metadata": body["metadata"] | about}, status=201)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        namespace = request.match_info["namespace"]
        if namespace in self.forbidden:
            return _refused(f"pods is forbidden in {namespace}")
        if request.match_info["name"]:
            return web.json_response({"message": "not found"}, status=404)
        if "watch" not in request.query:
            self.listed.append(namespace)
            items, version = self.lists[namespace]
            return web.json_response({"items": items, "metadata": {"resourceVersion": str(version)}})
        self.watched.append((namespace, request.query["resourceVersion"]))
        if request.query["resourceVersion"] in self.old:
            return web.json_response({"message": "too old resource version"}, status=410)
        answer = web.StreamResponse()
        await answer.prepare(request)
        while (each := await self.streams[namespace].get()) is not END:
            await answer.write(json.dumps(each).encode() + b"\n")
        return answer


def _refused(message: str) -> web.Response:
    return web.json_response({"message": message}, status=403)


class _Says:
    def __init__(self, server: str) -> None:
        self.server = server

    async def read(self, before: Credentials | None) -> Credentials:
        return Credentials(self.server, "a test", token="t")


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Pods]:
    """What asks it about the pods of NAMESPACES."""
    app = web.Application()
    app.router.add_get("/api/v1/nodes", server.handle_nodes)
    app.router.add_post("/api/v1/namespaces/{namespace}/{kind}", server.handle_creation)
    app.router.add_get("/api/v1/namespaces/{namespace}/pods{name:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    kube = Kube(Access(_Says(f"http://127.0.0.1:{runner.addresses[0][1]}")))
    try:
        yield Pods(kube, "mine", NAMESPACES)
    finally:
        await kube.close()
        await runner.cleanup()
