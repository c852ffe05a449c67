"""When a backend is asked again, in seconds."""

from __future__ import annotations

import pytest

from speedrun_operator.polling import next_poll


@pytest.mark.parametrize(
    ("took", "period", "rest", "after"),
    [
        pytest.param(0.5, 10.0, 0.0, 10.0, id="a period after the last began"),
        pytest.param(4.0, 10.0, 0.0, 10.0, id="also where it took its time"),
        pytest.param(6.0, 10.0, 0.0, 12.0, id="left alone for as long as it was busy"),
        pytest.param(60.0, 10.0, 0.0, 120.0, id="a login that hangs"),
        pytest.param(0.2, 0.0, 0.0, 1.2, id="behind with a log: soon, not at once"),
        pytest.param(0.2, 10.0, 60.0, 60.2, id="what it asked for"),
        pytest.param(70.0, 10.0, 60.0, 140.0, id="the longer of both"),
    ],
)
def test_the_next_poll(took: float, period: float, rest: float, after: float) -> None:
    assert next_poll(100.0, took, period, rest) == 100.0 + after
