"""What the backend Pods remembers of an allocation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from speedrun_operator.backends.pods.reader import LogReader

SETTLE_SECONDS = 30.0  # after the end: for a last line that does not come, and for a log that cannot be kept


@dataclass(slots=True)
class Memory:
    """What is remembered of one allocation between polls. All of it can be lost."""

    reader: LogReader
    job_id: str | None = None
    cancelled: bool = False
    kept: bool = False  # the last part of its log is in a ConfigMap
    doubt_until: float | None = None  # a creation may still be under way
    unseen_since: float | None = None
    deleting_since: float | None = None  # since when its pod is being deleted, as far as we saw
    ended_since: float | None = None
    settles_since: float | None = None  # since when all that could be read of what ended was read
    settled: bool = False  # its end was told for certain, its log read and kept as far as that goes
    grown_at: float | None = None
    read_at: float | None = None  # when its log could be read last
    unread_since: float | None = None  # since when it cannot, and what was said first
    unread: str | None = None
    keeping_since: float | None = None
    waits_for: str | None = None
    waits_since: float | None = None
    trouble: str | None = None  # why it is stuck, where that is no fault of its spec
    stands: str | None = None  # how it stands without a word, and since when
    stands_since: float = 0.0
    events_at: float | None = None  # when its events were asked for last, and what they said
    told: tuple[str, str] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
