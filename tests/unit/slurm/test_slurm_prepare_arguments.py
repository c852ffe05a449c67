"""What sbatch is asked for a job that prepares: no GPU, within its bounds, where the spec lets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from speedrun_operator.backends.slurm import prepare
from speedrun_operator.backends.slurm.prepare import Limits
from unit.slurm.plans import planned


def arguments(
    limits: Limits | None = None, most: int | None = None, avoid: Sequence[str] = (), **slurm: Any
) -> dict[str, str]:
    plan = replace(planned("modded-nanogpt", slurm=slurm), most_minutes=most)
    found = prepare.arguments(plan, limits or Limits(), "all", avoid)
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


OPTIONS: dict[str, Any] = {
    "account": "lab", "qos": "low", "reservation": "ours", "exclude": ["bad-[0-1]"], "constraint": "h100",
    "nodeList": ["n-1"],
}  # fmt: skip


def test_it_is_bound_by_what_the_spec_says_of_where_jobs_may_run() -> None:
    found = arguments(avoid=["node-7"], **OPTIONS)
    assert (found["partition"], found["account"], found["qos"]) == ("compute-h100", "lab", "low")
    assert (found["reservation"], found["exclude"]) == ("ours", "bad-[0-1],node-7")
    assert found["gres"] == "none"
    # They name nodes for their GPUs, of which it needs none.
    assert not {"constraint", "nodelist"} & found.keys()


def test_in_a_partition_of_its_own_what_is_of_the_runs_partition_does_not_hold() -> None:
    """Its nodes may not be in the reservation, and how many there are is not known."""
    found = arguments(Limits("cpu"), avoid=["node-7"], **OPTIONS)
    assert (found["partition"], found["exclude"]) == ("cpu", "bad-[0-1]")
    assert "reservation" not in found


def test_nothing_is_asked_for_that_the_spec_does_not_say() -> None:
    assert not {"exclude", "reservation", "account", "qos"} & arguments().keys()
