"""What time it is, for the parts that act. Given to them, so that tests can live whole lives in moments.

Waits are the event loop's own (`asyncio.sleep`, `call_later`): a loop with a clock of its own gives those, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """`now`: UTC, may be set back. `monotonic`: seconds, for spans."""

    now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic


SYSTEM = Clock()
