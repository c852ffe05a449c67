"""How long to leave a login service alone after connections to it failed. Pure: time and chance are given.

Gateways block clients that reconnect in a storm, and many operators may lose the same login service at the same
moment: so the wait doubles with each failure, and a random part of it is left out.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Waits of about `first`, 2 × `first`, 4 × `first` … up to `longest` seconds, each shortened by up to a half.

    `chance` gives numbers from 0 up to 1 (random.random). Times are seconds of any one monotonic clock.
    """

    def __init__(self, *, first: float, longest: float, chance: Callable[[], float]) -> None:
        self._first = first
        self._longest = longest
        self._chance = chance
        self._failures = 0
        self._until = float("-inf")

    def failed(self, now: float) -> float:
        """Note a failure; returns the seconds to wait from `now`."""
        # The exponent is bounded because 2.0 ** 1024 overflows after a few weeks of failures.
        delay = min(self._longest, self._first * 2.0 ** min(self._failures, 60))
        delay *= 1 - self._chance() / 2
        self._failures += 1
        self._until = now + delay
        return delay

    def reset(self) -> None:
        """The service works, or what it was refused for has changed: try at once."""
        self._failures = 0
        self._until = float("-inf")

    def remaining(self, now: float) -> float:
        """Seconds until the next try is allowed; 0 when it is."""
        return max(0.0, self._until - now)
