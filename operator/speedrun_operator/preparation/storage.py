"""The shared storage: how full it is, what lies in the cache, and what may go. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

GIB = 1024**3
LOW_SHARE = 0.85  # of the storage used: said on live resources
GRACE = timedelta(hours=1)  # what was used so lately is left alone: its job may not have started yet
_KEY = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage below the root, in bytes: the file system's or a quota's, whichever leaves less."""

    size: int
    used: int
    free: int

    @property
    def share(self) -> float:
        """Used, of 1. What is reserved is not free, so it counts as used."""
        whole = self.used + self.free
        return self.used / whole if whole > 0 else 0.0

    @property
    def low(self) -> bool:
        return self.share >= LOW_SHARE

    def __str__(self) -> str:
        return f"{gib(self.free)} of {gib(self.size)} are free ({self.share:.0%} used)"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One entry as it lies there. `users`: jobs that use it now, by number; `held`: a job makes it."""

    kind: str
    key: str
    bytes: int
    made: datetime | None
    used: datetime
    users: tuple[str, ...] = ()
    held: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def gib(bytes_: int) -> str:
    """`12.3 GiB`; less than 0.1 GiB in MiB."""
    return f"{bytes_ / GIB:.1f} GiB" if bytes_ >= GIB // 10 else f"{bytes_ / 1024**2:.1f} MiB"


def removable(
    entries: Iterable[CacheEntry], wanted: Collection[str], now: datetime, older_than: timedelta = GRACE
) -> list[CacheEntry]:
    """Entries that may go, the longest unused first. `wanted`: keys that live Speedruns wait for or run with."""
    least = max(older_than, GRACE)
    free = [
        each
        for each in entries
        if not each.users and not each.held and each.key not in wanted and now - each.used >= least
    ]
    return sorted(free, key=lambda each: (each.used, each.key))


def over_the_cap(
    entries: Sequence[CacheEntry], wanted: Collection[str], now: datetime, most_bytes: int
) -> list[CacheEntry]:
    """What must go so that the cache takes at most `most_bytes`, as far as it may."""
    excess = sum(each.bytes for each in entries) - most_bytes
    gone = []
    for each in removable(entries, wanted, now):
        if excess <= 0:
            break
        gone.append(each)
        excess -= each.bytes
    return gone


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None
