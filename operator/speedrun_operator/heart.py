"""The beat of the engine's event loop: whether it goes on, and how late it is.

A loop that is kept from its beat (by a long computation, or a machine without time for it) keeps everything waiting
for as long: polls, status, deletions.
"""

from __future__ import annotations

import asyncio
import time

from speedrun_operator.distribution import Distribution

BEAT_SECONDS = 1.0
LATE_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Heart:
    """Beats in one event loop; read from any thread."""

    def __init__(self) -> None:
        self._beat = time.monotonic()
        self.late = Distribution(LATE_BOUNDS)
        """How much later than they were due beats came."""

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._beat

    async def run(self) -> None:
        """Beat until cancelled."""
        self._beat = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = time.monotonic()
            self.late.add(max(0.0, now - self._beat - BEAT_SECONDS))
            self._beat = now
