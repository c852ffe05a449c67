"""Whole lives at random: the real engine, resync, expiry and Slurm backend, over models that may do anything that their
manuals allow. Whatever comes, what is said is true; and once all is well, everything ends.

The short form lives the same lives each time; the long one draws new ones (SPEEDRUN_MODEL_EXAMPLES: how many).
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings

from unit.model import virtual
from unit.model.schedules import Life, live, lives

EXAMPLES = 50
MANY = int(os.environ.get("SPEEDRUN_MODEL_EXAMPLES", "500"))


def lived(life: Life) -> None:
    async def whole() -> None:
        (await live(life)).close()

    virtual.run(whole)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(lives)
def test_whatever_comes_what_is_said_is_true_and_all_comes_to_an_end(life: Life) -> None:
    lived(life)


@pytest.mark.full
@settings(max_examples=MANY, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives)
def test_many_lives(life: Life) -> None:
    lived(life)
