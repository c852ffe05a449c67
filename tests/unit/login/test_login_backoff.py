"""How long a login service is left alone."""

from __future__ import annotations

import pytest

from speedrun_operator.login.backoff import Backoff


@pytest.mark.parametrize(
    ("chance", "expected"),
    [
        (0.0, [1, 2, 4, 8, 16, 32, 60, 60]),
        (1.0, [0.5, 1, 2, 4, 8, 16, 30, 30]),
    ],
)
def test_waits_double_up_to_the_longest(chance: float, expected: list[float]) -> None:
    backoff = Backoff(first=1, longest=60, chance=lambda: chance)
    assert [backoff.failed(now=0) for _ in expected] == expected


def test_what_remains_counts_down_to_zero() -> None:
    backoff = Backoff(first=8, longest=60, chance=lambda: 0.0)
    assert backoff.remaining(100) == 0
    backoff.failed(100)
    assert [backoff.remaining(now) for now in (100, 103, 108, 1000)] == [8, 5, 0, 0]


def test_a_reset_starts_anew() -> None:
    backoff = Backoff(first=1, longest=60, chance=lambda: 0.0)
    for _ in range(5):
        backoff.failed(0)
    backoff.reset()
    assert backoff.remaining(0) == 0
    assert backoff.failed(0) == 1


def test_years_of_failures_do_not_overflow() -> None:
    backoff = Backoff(first=1, longest=60, chance=lambda: 0.0)
    assert {backoff.failed(0) for _ in range(5000)} == {1, 2, 4, 8, 16, 32, 60}
