"""How long things took: counts by upper bounds, as a Prometheus histogram shows them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Counted:
    """A snapshot. `buckets`: (upper bound in seconds, how many took at most so long); the bound inf is not among them.

    `total` is the sum of all in seconds, `count` how many there were.
    """

    buckets: tuple[tuple[float, int], ...]
    total: float
    count: int


class Distribution:
    """Counts durations. One loop writes; `counted` may be called from any thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the buckets' upper bounds in seconds, ascending."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._total += seconds

    def counted(self) -> Counted:
        """What there was so far."""
        up_to = [*accumulate([*self._counts])]
        return Counted(tuple(zip(self._bounds, up_to, strict=False)), self._total, up_to[-1])
