"""The pods of this cluster's Speedruns as a watch shows them, and whether that can be relied on now.

One list and one watch a scope; the watch ends by itself every few minutes and goes on where it was; what broke it is
followed by a list. A watch that is silent, or that broke, makes its scope stale, and no other: of that one the store
then says nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from speedrun_operator.backends.pods.fields import Pod
from speedrun_operator.kube.client import ApiError, Unavailable
from speedrun_operator.kube.pods import Pods

logger = logging.getLogger(__name__)
RETRY_FIRST, RETRY_LONGEST = 0.2, 10.0
STREAM_LEAST = 1.0  # between two streams: something on the way may end each as soon as it begins
MOST_GONE = 2000
GONE = 410
# Of a pod only what is looked at is kept.
_METADATA = (
    *("name", "namespace", "uid", "labels", "resourceVersion"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
)
_SPEC = ("nodeName", "schedulerName")


class Store:
    """See the module. Pods by name: names are unique beyond namespaces, as they hold a UID."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._known: dict[str, Pod] = {}
        self._gone: dict[str, tuple[Pod, bool]] = {}
        unlisted = Unavailable(0, "pods were not listed yet")
        self._faults: dict[str | None, ApiError | None] = dict.fromkeys(pods.scopes, unlisted)
        self._tasks: list[asyncio.Task[None]] = []
        self.changed: set[str] = set()
        self.news = asyncio.Event()

    def scope(self, namespace: str) -> str | None:
        """What is watched at one stroke with a namespace: itself, or None for all of them."""
        return None if None in self._faults else namespace

    def fault(self, scope: str | None) -> ApiError | None:
        """Why what it holds of a scope may no longer be so. None: that is how things are, but for a moment."""
        return self._faults.get(scope, Unavailable(0, f"pods of namespace {scope} are not watched"))

    def get(self, name: str) -> Pod | None:
        return self._known.get(name)

    def last(self, name: str) -> Pod | None:
        """A pod that is gone as it was seen last."""
        found = self._gone.get(name)
        return None if found is None else found[0]

    def saw_it_go(self, name: str) -> bool:
        """Whether the watch told its deletion, so that its last version says all that there is to say."""
        found = self._gone.get(name)
        return found is not None and found[1]

    def all(self) -> Iterable[Pod]:
        return self._known.values()

    async def start(self) -> None:
        """Begin to watch, unless that was done, and list once. What fails shows as a `fault`."""
        if not self._tasks:
            first = [asyncio.Event() for _ in self._pods.scopes]
            self._tasks = [
                asyncio.create_task(self._follow(scope, listed))
                for scope, listed in zip(self._pods.scopes, first, strict=True)
            ]
            await asyncio.gather(*(each.wait() for each in first))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def put(self, pod: Pod) -> None:
        """A pod as an answer of the API server shows it; an older version than the one known changes nothing, nor does
        a pod that is gone: an answer may come later than the watch's word."""
        name = pod["metadata"]["name"]
        known, gone = self._known.get(name), self.last(name)
        if gone is not None and gone["metadata"]["uid"] == pod["metadata"]["uid"]:
            return
        if known is None or _version(pod) > _version(known) or known["metadata"]["uid"] != pod["metadata"]["uid"]:
            self._known[name] = _kept(pod)

    def forget(self, name: str) -> None:
        """Drop what is kept of a pod that is gone."""
        self._gone.pop(name, None)

    async def _follow(self, scope: str | None, listed: asyncio.Event) -> None:
        wait, time = RETRY_FIRST, asyncio.get_running_loop().time
        while True:
            began = time()
            try:
                version = await self._list(scope)
                listed.set()
                await self._watch(scope, version)
            except ApiError as error:
                self._lose(scope, error)
            except Exception as error:
                logger.exception("the watch of pods failed in the operator itself; it starts again")
                self._lose(scope, Unavailable(0, f"the watch of pods failed: {error}"))
            listed.set()
            wait = RETRY_FIRST if time() - began > RETRY_LONGEST else wait
            await asyncio.sleep(wait)
            wait = min(RETRY_LONGEST, 2 * wait)

    def _lose(self, scope: str | None, error: ApiError) -> None:
        if self._faults[scope] is None:
            logger.warning("the watch of pods broke: %s", error)
        self._faults[scope] = error
        self.news.set()

    async def _list(self, scope: str | None) -> str:
        items, version = await self._pods.listed(scope)
        found = {each["metadata"]["name"]: _kept(each) for each in items}
        before = {name for name, each in self._known.items() if scope in (None, each["metadata"]["namespace"])}
        for name in before - set(found):
            if _version(self._known[name]) <= int(version):  # else it was made after the list
                self._remove(self._known[name], seen=False)
        for name, pod in found.items():
            if name not in self._known or _version(self._known[name]) != _version(pod):
                self._tell(name)
            self._known[name] = pod
        self._faults[scope] = None
        self.news.set()
        return version

    async def _watch(self, scope: str | None, version: str) -> None:
        """Follow until the version is too old to go on from. Raises ApiError where the stream ends by a fault."""
        time = asyncio.get_running_loop().time
        while True:
            began = time()
            try:
                async for event in self._pods.watch(scope, version):
                    version = self._take(event)
            except Unavailable as error:
                if error.status != GONE:
                    raise
                return
            await asyncio.sleep(max(0.0, began + STREAM_LEAST - time()))

    def _take(self, event: dict[str, Any]) -> str:
        """An event of the watch; the version that it is of."""
        pod = event["object"]
        if event["type"] == "ERROR":
            raise Unavailable(int(pod.get("code") or 0), f"the watch of pods ended: {pod.get('message')}")
        if event["type"] == "DELETED":
            self._remove(_kept(pod), seen=True)
        elif event["type"] != "BOOKMARK":
            self._known[pod["metadata"]["name"]] = _kept(pod)
            self._tell(pod["metadata"]["name"])
        return str(pod["metadata"]["resourceVersion"])

    def _remove(self, pod: Pod, *, seen: bool) -> None:
        name = pod["metadata"]["name"]
        self._known.pop(name, None)
        self._gone[name] = pod, seen
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._tell(name)

    def _tell(self, name: str) -> None:
        self.changed.add(name)
        self.news.set()


def _kept(pod: dict[str, Any] | Pod) -> Pod:
    metadata = {key: pod["metadata"][key] for key in _METADATA if key in pod["metadata"]}
    spec = pod.get("spec") or {}
    containers = {
        field: [{key: each[key] for key in ("name", "restartPolicy") if key in each} for each in spec.get(field) or []]
        for field in ("initContainers", "containers")
    }
    return {
        "metadata": metadata,
        "spec": {**{key: spec.get(key) for key in _SPEC}, "volumes": spec.get("volumes") or [], **containers},
        "status": pod.get("status") or {},
    }


def _version(pod: Pod) -> int:
    text = pod["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0
