"""Pods that are taken away or gone: what was seen of it, and what nobody saw."""

from __future__ import annotations

import pytest

from speedrun_operator.api.phases import Phase
from speedrun_operator.lifecycle.observation import JobState
from unit.pods.api import (
    RUNNING,
    World,
    decided,
    listed_again,
    pod,
    stamped,
    status,
    whole_log,
)


async def test_a_pod_that_hangs_in_its_deletion_is_given_time_by_our_own_clock(world: World) -> None:
    for skew in (7200.0, -7200.0):
        world.time.skew = skew
        world.api.put(pod(status("Running", RUNNING), deleted=world.time.seconds + 20))
        assert (await world.look()).state is JobState.RUNNING
        assert (await world.look(75)).state is JobState.RUNNING
        seen = await world.look(10)
        assert (seen.state, seen.reason) == (JobState.ENDED, "NodeLost")
        world.api.put(pod(status("Running", RUNNING)))
        await world.look()


async def test_a_pod_that_was_seen_to_go_was_deleted(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log()[:8])
    world.api.put(pod(status("Running", RUNNING)))
    before = decided(world, await world.look()).status
    world.api.remove()
    seen = await world.look(1)
    assert (seen.state, seen.reason) == (JobState.ENDED, "PodDeleted")
    assert decided(world, seen, before).status.phase is Phase.FAILED


@pytest.mark.parametrize("outage", ["the operator was away", "the watch broke"])
async def test_a_pod_that_went_while_nobody_looked_is_made_again(world: World, outage: str) -> None:
    """As when its node was drained while the operator, outside the cluster, slept."""
    world.api.logs["train"] = stamped(whole_log()[:8])
    world.api.put(pod(status("Running", RUNNING)))
    before = decided(world, await world.look()).status
    if outage == "the watch broke":
        world.api.break_off()
        world.api.remove(heard=False)
        seen = await listed_again(world)
    else:
        await world.restart()
        world.api.remove()
        seen = await world.look(1)
    assert (seen.state, seen.reason) == (JobState.ENDED, "PodGone")
    after = decided(world, seen, before).status
    assert (after.phase, after.next_attempt_time is not None) == (Phase.PENDING, True)
    assert after.allocations[0].message and "nobody saw why" in after.allocations[0].message


@pytest.mark.parametrize(("by", "reason"), [("EvictionByEvictionAPI", "Drained"), (None, "PodDeleted")])
async def test_what_was_seen_of_a_pods_end_is_told_though_its_last_moment_was_not(
    world: World, by: str | None, reason: str
) -> None:
    world.api.put(pod(status("Running", RUNNING)))
    await world.look()
    going = [{"type": "DisruptionTarget", "status": "True", "reason": by}] if by else []
    world.api.put(pod(status("Running", RUNNING, conditions=going), deleted=60))
    assert (await world.look(1)).reason == "Terminating"
    world.api.break_off()
    world.api.remove(heard=False)
    seen = await listed_again(world)
    assert (seen.state, seen.reason) == (JobState.ENDED, reason)
