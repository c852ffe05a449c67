"""What is known of finished Speedruns, which are in no watch: how many there are, and the newest of them as shown.

They come from the moment they finish, and from the resync, which lists them all; so one that is deleted is known to be
gone at the next resync. One loop writes; `counts` and `newest` may be asked from any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import Any

from speedrun_operator.api.phases import FINISHED, Phase
from speedrun_operator.api.resource import Resource
from speedrun_operator.shown import Shown

Counts = Mapping[tuple[str, Phase], int]
"""How many Speedruns there are by namespace and phase."""


@dataclass
class _List:
    """One list, while it is read. `newest` is a heap by the time of the end, `before` what finished before it began."""

    before: set[str]
    counts: Counter[tuple[str, Phase]] = field(default_factory=Counter)
    newest: list[tuple[str, str, str, Shown]] = field(default_factory=list)
    covered: set[str] = field(default_factory=set)


class Finished:
    """Of at most `most` the figures are kept; all are counted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._recent: dict[str, Shown] = {}
        self._list = _List(set())
        self._counts: Counts = {}
        self._newest: Mapping[str, tuple[str, Shown]] = {}

    def note(self, resource: Resource) -> None:
        """One has finished. With its label on it, it is for the lists to show."""
        if not resource.labelled_finished:
            self._recent[resource.identity.uid] = Shown.of(resource)
            self._list.before.discard(resource.identity.uid)

    def begin(self) -> None:
        """A list of all of them begins."""
        self._list = _List(set(self._recent))

    def listed(self, raw: Mapping[str, Any]) -> None:
        """The list has this object. Parsed only if it is one of the newest and not known as it is."""
        metadata, status = raw["metadata"], raw.get("status") or {}
        if (phase := status.get("phase")) not in FINISHED:
            return
        uid, version = str(metadata["uid"]), str(metadata.get("resourceVersion"))
        self._list.covered.add(uid)
        self._list.counts[metadata["namespace"], Phase(phase)] += 1
        heap, ended = self._list.newest, str(status.get("completionTime", ""))
        if not self._most or (len(heap) >= self._most and ended <= heap[0][0]):
            return
        known, shown = self._newest.get(uid, ("", None))
        if shown is None or known != version:
            shown = Shown.of(Resource.parse(raw))
        item = (ended, uid, version, shown)
        if len(heap) < self._most:
            heappush(heap, item)
        else:
            heappushpop(heap, item)

    def done(self) -> None:
        """The list is whole: what it did not have is gone, unless it has finished since the list began."""
        found = self._list
        self._newest = {uid: (version, shown) for _, uid, version, shown in found.newest}
        self._counts = found.counts
        gone = found.covered | found.before
        self._recent = {uid: shown for uid, shown in self._recent.items() if uid not in gone}
        self._list = _List(set())

    def counts(self) -> Counts:
        """How many, by namespace and phase."""
        return Counter(self._counts) + Counter((each.identity.namespace, each.phase) for each in self._late())

    def newest(self) -> list[Shown]:
        """The figures of those that finished last, the newest first."""
        shown = [*self._late(), *(shown for _, shown in self._newest.values())]
        return sorted(shown, key=lambda each: each.ended or each.created, reverse=True)[: self._most]

    def _late(self) -> list[Shown]:
        """Those that the last list did not have yet."""
        return [*self._recent.values()]
