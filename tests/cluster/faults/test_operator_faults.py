"""The operator itself is frozen, doubled, or has a clock of its own. (Its kills are in ../test_survival.)"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.faults.conftest import MakeOperator
from cluster.faults.slurm_nodes import FIRST, declare_dead, on
from cluster.faults.story import Story
from cluster.faults.world import World, stays
from cluster.speedruns import Speedruns, condition, quick, slow
from cluster.waiting import until

Follow = Callable[[str], Story]
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@pytest.mark.full
@pytest.mark.parametrize("seconds", [4, 60])
def test_frozen_and_thawed(
    seconds: int, make_operator: MakeOperator, runs: Speedruns, story: Follow, world: World
) -> None:
    """A run ends and another is made while it stands still; it goes on as if nothing had been."""
    operator = make_operator()
    operator.start()
    with story("frozen") as frozen, story("new") as new:
        runs.apply(slow("frozen", 4))
        job = runs.wait_phase("frozen", "Training")["job"]
        operator.pause()
        runs.apply(quick("new"))
        until("the job to end meanwhile", lambda: world.state(job) in ("COMPLETED", ""))
        stays("the new one untouched", lambda: not runs.status("new"), seconds - 4)
        operator.resume()
        for name in ("frozen", "new"):
            assert runs.wait_finished(name)["phase"] == "Succeeded"
            assert len(world.jobs_ever(runs.get(name)["metadata"]["uid"])) == 1
    assert frozen.never_went_back() and new.never_went_back()
    assert "Traceback" not in operator.log.read_text()


@pytest.mark.full
def test_two_operators_at_once(make_operator: MakeOperator, runs: Speedruns, story: Follow, world: World) -> None:
    """Each does what the other does, on the same object and the same ledger: one job, one story."""
    for name in ("operator", "operator-2"):
        make_operator(name).start()
    names = [f"shared-{number}" for number in range(3)]
    with story(names[0]) as told, story(names[1]) as also:
        runs.apply(slow(names[0], 5), *(quick(name) for name in names[1:]))
        for name in names:
            status = runs.wait_finished(name)
            assert (status["phase"], status["val_loss"], len(status["allocations"])) == ("Succeeded", 3.2782, 1)
            uid = runs.get(name)["metadata"]["uid"]
            assert (world.jobs_ever(uid), world.starts(uid)) == ([status["job"]], [[status["job"]]])
        until("it to be let go of", lambda: "finalizers" not in runs.get(names[0])["metadata"])
    assert told.never_went_back() and also.never_went_back()
    steps = [each["step"] for each in told.statuses() if "step" in each]
    assert all(one <= other for one, other in itertools.pairwise(steps)), "a number went back"
    there_was = [*itertools.groupby(told.statuses(), key=news)]
    assert len(told.statuses()) <= 2 * len(there_was) + 4, "they write against each other"
    live = slow("ended")
    runs.apply(live)
    name = runs.wait_phase("ended", "Training")["allocations"][0]["name"]
    runs.kubectl("delete", "speedrun", "ended", "-n", runs.namespace, "--timeout=30s")
    assert not world.live(name)


def news(status: dict[str, Any]) -> tuple[Any, ...]:
    """What each operator has to write about, however long it all takes."""
    return status.get("phase"), status.get("reason"), status.get("step")


@pytest.fixture
def minutes_apart(make_operator: MakeOperator) -> Callable[[str], None]:
    """Start an operator whose clock is wrong by so much: `+10m`, `-10m`."""
    if not FAKETIME.exists():
        pytest.skip("libfaketime is not installed")

    def start(offset: str) -> None:
        wrong = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        make_operator(**wrong).start()

    return start


@pytest.mark.full
@pytest.mark.parametrize("offset", ["+10m", "-10m"])
def test_clocks_that_are_ten_minutes_apart(
    offset: str, minutes_apart: Callable[[str], None], runs: Speedruns, story: Follow, world: World
) -> None:
    """Durations come from one clock each: no queue or wall time of ten minutes, no deadline ten minutes early."""
    minutes_apart(offset)
    with story("late") as told:
        runs.apply(quick("late", steps=30) | {"spec": quick("late", steps=30)["spec"] | {"activeDeadlineSeconds": 60}})
        status = runs.wait_finished("late")
    assert (status["phase"], len(status["allocations"])) == ("Succeeded", 1)
    assert told.never_went_back()
    assert 0 <= status["clock"]["queueMilliseconds"] < 20_000
    assert 1000 <= status["clock"]["wallMilliseconds"] < 20_000
    apart = datetime.fromisoformat(status["startTime"]) - datetime.now(UTC)
    assert timedelta(minutes=8) < abs(apart) < timedelta(minutes=12), "the clock was not wrong"
    assert world.jobs_ever(runs.get("late")["metadata"]["uid"]) == [status["job"]]


@pytest.mark.full
@pytest.mark.parametrize("offset", ["+10m", "-10m"])
def test_the_wait_before_a_retry_is_the_same_on_any_clock(
    offset: str, minutes_apart: Callable[[str], None], runs: Speedruns, world: World, story: Follow
) -> None:
    minutes_apart(offset)
    with story("again") as told:
        runs.apply(on(FIRST, slow("again", 8)))
        runs.wait("again", "under way", lambda each: (each.get("step") or 0) >= 2)
        before = time.monotonic()
        declare_dead(world, FIRST)
        runs.wait("again", "tried again", lambda each: len(each.get("allocations", [])) == 2)  # well within 10 minutes
        assert time.monotonic() - before >= 9
        assert runs.wait_finished("again")["phase"] == "Succeeded"
    assert condition(runs.status("again"), "Succeeded")["status"] == "True"
    assert told.phases()[-1] == "Succeeded"
