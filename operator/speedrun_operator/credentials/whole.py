"""Work that is done to its end, though whoever waits for it gives up: a refresh token is spent by the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
END_SECONDS = 10.0


class Whole(Generic[Result]):
    """One piece of work at a time; whoever comes meanwhile waits for the same. For one event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Result] | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """What the work gives or raises. Cancelling this does not cancel the work."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(work())
            self._task.add_done_callback(_retrieved)
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        """Wait for what is being done, for so long; then give it up."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=END_SECONDS)
            self._task.cancel()


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Its failure is for whoever waits; nobody need wait any more."""
    if not task.cancelled():
        task.exception()
