"""What the backend Pods remembers of an allocation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from speedrun_operator.backends.pods.reader import LogReader

SETTLE_SECONDS = 30.0  # a log that cannot be read, or kept, is given up so long after the end


@dataclass(slots=True)
class Memory:
    """What is remembered of one allocation between polls. All of it can be lost."""

    reader: LogReader
    job_id: str | None = None
    cancelled: bool = False
    kept: bool = False  # the last part of its log is in a ConfigMap
    doubt_until: float | None = None  # a creation may still be under way
    unseen_since: float | None = None
    ended_since: float | None = None
    grown_at: float | None = None
    waits_for: str | None = None
    waits_since: float | None = None
    events_at: float | None = None  # when its events were asked for last, and what they said of its volumes
    volumes: tuple[str, str] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
