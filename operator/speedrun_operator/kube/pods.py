"""Pods, their logs and what goes with them, over the API server: paths, queries and nothing decided.

All methods raise ApiError's family of `kube.client`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from speedrun_operator.kube.client import Conflict, Json, Kube

CHUNK = 500
WATCH_SECONDS = 240
WATCH_SILENCE = 100.0
MOST_EVENTS = 200
LOG_SECONDS = 8.0  # a node that does not answer must not keep the others waiting


class Pods:
    """Those that bear a label. `namespaces` empty: of all namespaces."""

    def __init__(self, kube: Kube, labels: str, namespaces: Sequence[str]) -> None:
        self._kube = kube
        self._labels = labels
        self.scopes: list[str | None] = [*namespaces] if namespaces else [None]

    async def create(self, body: Json) -> Json:
        return await self._kube.request("POST", _path(body["metadata"]["namespace"]), body=body)

    async def get(self, namespace: str, name: str) -> Json:
        return await self._kube.request("GET", _path(namespace, name))

    async def delete(self, namespace: str, name: str, uid: str | None = None) -> None:
        """Ask for its end, with its own grace period; with `uid` only that very pod (else Conflict)."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        await self._kube.request("DELETE", _path(namespace, name), body=options)

    async def listed(self, scope: str | None) -> tuple[list[Json], str]:
        """All in one scope, and the version that they were read at."""
        items: list[Json] = []
        token = version = ""
        while True:
            query = [("labelSelector", self._labels), ("limit", str(CHUNK)), ("continue", token)]
            page = await self._kube.request("GET", _path(scope), query=[each for each in query if each[1]])
            items += page.get("items") or []
            about = page.get("metadata") or {}
            version, token = version or about.get("resourceVersion", ""), about.get("continue") or ""
            if not token:
                return items, version

    def watch(self, scope: str | None, version: str) -> AsyncIterator[Json]:
        """What changes after `version`, bookmarks too, until the API server ends the stream after some minutes."""
        query = [
            ("labelSelector", self._labels),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(WATCH_SECONDS)),
        ]
        return self._kube.watch(_path(scope), query=query, silence=WATCH_SILENCE)

    async def log(self, namespace: str, name: str, container: str, *, since: str | None, most: int) -> bytes:
        """A container's log from the second `since` on, at most `most` bytes; each line follows its time."""
        query = [("container", container), ("timestamps", "true"), ("limitBytes", str(most))]
        if since is not None:
            query.append(("sinceTime", since))
        return await self._kube.raw(f"{_path(namespace, name)}/log", query=query, seconds=LOG_SECONDS)

    async def events(self, namespace: str, uid: str) -> list[Json]:
        """What was told of one pod, some hundred at most."""
        query = [("fieldSelector", f"involvedObject.uid={uid}"), ("limit", str(MOST_EVENTS))]
        found = await self._kube.request("GET", f"/api/v1/namespaces/{namespace}/events", query=query)
        return list(found.get("items") or [])

    async def node_labels(self) -> list[dict[str, str]]:
        """The labels of each node."""
        labels: list[dict[str, str]] = []
        token = ""
        while True:
            query = [("limit", str(CHUNK)), *([("continue", token)] if token else [])]
            page = await self._kube.request("GET", "/api/v1/nodes", query=query)
            labels += [dict(each["metadata"].get("labels") or {}) for each in page.get("items") or []]
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return labels

    async def put_config_map(self, body: Json) -> None:
        """Create it; nothing where one of its name is there."""
        try:
            path = f"/api/v1/namespaces/{body['metadata']['namespace']}/configmaps"
            await self._kube.request("POST", path, body=body)
        except Conflict:
            return


def _path(namespace: str | None, name: str = "") -> str:
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/api/v1{scope}/pods{f'/{name}' if name else ''}"
