"""Virtual time: an event loop whose clock jumps to the next thing that is to happen, so that hours take moments."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from speedrun_operator.clock import Clock
from unit.builders import NOON

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Waits for nobody: the time that it would wait is gone at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen any more, and somebody waits for it")
        self.seconds += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.seconds


def seconds() -> float:
    """Seconds since the world began."""
    return asyncio.get_running_loop().time()


def now() -> datetime:
    return NOON + timedelta(seconds=seconds())


def epoch() -> int:
    """What `date +%s` says."""
    return int(now().timestamp())


def stamp(at: float) -> int:
    """The second `at` of the world as seconds since the epoch."""
    return int(NOON.timestamp() + at)


CLOCK = Clock(now=now, monotonic=seconds)


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Live `make()` in a loop of its own, from second 0 on; the same each time."""
    random.seed(0)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(make())
