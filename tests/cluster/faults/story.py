"""What became of one Speedrun, told by every version of it that the API server had: a watch beside the test.

A status that was wrong for a tenth of a second is in the story, too.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from types import TracebackType
from typing import Any

from cluster.speedruns import condition
from cluster.waiting import until
from testbed.kubernetes import ApiError, Kubernetes

ORDER = ("Pending", "Queued", "Preparing", "Compiling", "Training", "Succeeded")
WATCH_SECONDS = 2  # each watch's end is a chance to end the thread
LAST_SECONDS = 20


class Story:
    """Follows `name` in `namespace` while the context lasts, through outages of the API server, too."""

    def __init__(self, kubernetes: Kubernetes, namespace: str, name: str) -> None:
        self._kubernetes = kubernetes
        self._path = f"/apis/speedrun.dev/v1alpha1/namespaces/{namespace}/speedruns?fieldSelector=metadata.name={name}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._version = ""
        self.objects: list[dict[str, Any]] = []

    def __enter__(self) -> Story:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                now = json.loads(self._kubernetes.call("GET", self._path))["items"]
                until("the story's end", lambda: _version(self.objects) >= _version(now), LAST_SECONDS)
        finally:
            self._ended.set()
            self._thread.join(WATCH_SECONDS + 5)

    def statuses(self) -> list[dict[str, Any]]:
        """Each status that was written, in turn."""
        return [status for status, _ in itertools.groupby(each.get("status", {}) for each in self.objects)]

    def phases(self) -> list[str]:
        """The phases in turn, each once for as long as it lasted."""
        return [phase for phase, _ in itertools.groupby(each.get("phase", "") for each in self.statuses()) if phase]

    def said(self, type_: str) -> list[tuple[str, str]]:
        """(status, reason) of a condition in turn, each once for as long as it lasted."""
        said = [condition(each, type_) for each in self.statuses()]
        pairs = [(each["status"], each["reason"]) for each in said if each]
        return [pair for pair, _ in itertools.groupby(pairs)]

    def never_went_back(self) -> bool:
        """Whether the phases came in their order, each at most once."""
        places = [ORDER.index(each) if each in ORDER else -1 for each in self.phases()]
        return -1 not in places and all(one < other for one, other in itertools.pairwise(places))

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
            except ApiError as error:
                self._version = "" if error.status == 410 else self._version
                self._ended.wait(0.2)
            except (OSError, http.client.HTTPException, ValueError):
                self._ended.wait(0.2)

    def _list(self) -> None:
        found = json.loads(self._kubernetes.call("GET", self._path))
        self.objects += found["items"]
        self._version = found["metadata"]["resourceVersion"]

    def _watch(self) -> None:
        query = f"{self._path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}"
        with self._kubernetes.stream(f"{query}&resourceVersion={self._version}") as answer:
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(int(event["object"].get("code", 500)), "the watch ended")
                self._version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self.objects.append(event["object"])
                if self._ended.is_set():
                    return


def _version(objects: list[dict[str, Any]]) -> int:
    """The last version of a Speedrun among `objects`; 0 where there is none."""
    return max((int(each["metadata"]["resourceVersion"]) for each in objects), default=0)
