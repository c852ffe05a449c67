"""What sbatch is asked for a job that prepares: no GPU, within its bounds, where the spec lets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from speedrun_operator.backends.slurm import prepare
from speedrun_operator.backends.slurm.prepare import Limits
from unit.slurm.plans import planned


def arguments(limits: Limits | None = None, most: int | None = None, **slurm: Any) -> dict[str, str]:
    plan = replace(planned("modded-nanogpt", slurm=slurm), most_minutes=most)
    found = prepare.arguments(plan, limits or Limits(), "all")
    return dict(each.removeprefix("--").partition("=")[::2] for each in found)


@pytest.mark.parametrize(
    ("limits", "most", "minutes"),
    [
        pytest.param(Limits(), None, "120", id="the partition has no limit, or nobody knows"),
        pytest.param(Limits(), 600, "120", id="the partition allows more"),
        pytest.param(Limits(), 60, "60", id="the partition allows less"),
        pytest.param(Limits(minutes=30), 60, "30", id="the setting is less"),
        pytest.param(Limits("cpu"), 60, "120", id="another partition than the one whose limit is known"),
        pytest.param(Limits("compute-h100"), 60, "60", id="the same, named by the setting"),
    ],
)
def test_its_time_limit_is_one_that_the_partition_takes(limits: Limits, most: int | None, minutes: str) -> None:
    assert arguments(limits, most)["time"] == minutes
