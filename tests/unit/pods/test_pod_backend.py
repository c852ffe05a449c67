"""The backend over an API server with its faults: logs that cannot be read, sidecars, pods that are gone."""

from __future__ import annotations

import base64
import gzip

import pytest

from speedrun_operator.api.phases import ConditionType, Phase
from speedrun_operator.kube.client import ApiError, NotFound, Refused
from speedrun_operator.lifecycle.observation import JobState
from unit.pods.api import (
    NAME,
    RUNNING,
    World,
    container,
    decided,
    ended,
    pod,
    refused,
    result_of,
    stamped,
    status,
    until_ended,
    whole_log,
)

MIB = 1024 * 1024


async def test_a_long_log_of_a_run_that_ended_meanwhile_is_read_to_its_end(world: World) -> None:
    lines = stamped(whole_log(3000, padding=1000), apart=0.01)
    assert sum(map(len, lines)) > 3 * MIB
    world.api.logs["train"] = lines
    world.api.put(pod(status("Succeeded", ended())))
    seen, took = await until_ended(world)
    assert (seen.reason, result_of(seen)) == ("Completed", "3.2769")
    assert took < 15, "what has ended is read in several pieces a poll"


@pytest.mark.parametrize("away", [40, 3000])
async def test_a_log_that_cannot_be_read_for_long_is_waited_for_and_told(world: World, away: int) -> None:
    world.api.logs["train"] = stamped(whole_log())
    world.api.log_error = refused()
    world.api.put(pod(status("Succeeded", ended())))
    for _ in range(away // 10):
        seen = await world.look(10)
        assert (seen.state, seen.log_complete, seen.log) == (JobState.ENDED, False, None)
    assert seen.unread is not None and "connection refused" in seen.unread
    world.api.log_error = None
    seen, _ = await until_ended(world)
    assert (seen.unread, result_of(seen)) == (None, "3.2769")


async def test_a_log_that_can_never_be_read_is_given_up_after_an_hour_or_with_its_pod(world: World) -> None:
    world.api.log_error = refused()
    world.api.put(pod(status("Succeeded", ended())))
    seen, took = await until_ended(world, 10)
    assert 3600 <= took < 3700 and seen.reason == "Completed"
    await world.restart()
    await world.look(10)
    world.api.remove()
    seen, took = await until_ended(world, 10)
    assert took < 60


async def test_a_lost_nodes_log_is_not_waited_for(world: World) -> None:
    world.api.log_error = refused()
    lost = status("Running", RUNNING, conditions=[{"type": "Ready", "reason": "NodeLost"}], reason="NodeLost")
    world.api.put(pod(lost, deleted=30))
    seen, took = await until_ended(world, 5)
    assert seen.reason == "NodeLost" and took < 180


GONE = [
    NotFound(404, 'nodes "node-a" not found'),
    Refused(400, 'container "train" in pod "sr-0" is not available'),
    refused("the server could not find the requested resource"),
]


@pytest.mark.parametrize("error", GONE, ids=str)
async def test_what_was_taken_away_is_run_again_without_its_log(world: World, error: ApiError) -> None:
    world.api.log_error = error
    evicted = status("Failed", ended("train", 137), reason="Evicted", message="The node was low on resource: memory.")
    world.api.put(pod(evicted))
    seen, took = await until_ended(world)
    assert seen.reason == "Evicted" and 30 <= took < 40
    after = decided(world, seen).status
    assert (after.phase, after.allocations[0].reason) == (Phase.PENDING, "Evicted")


@pytest.mark.parametrize("error", GONE, ids=str)
async def test_a_refused_pod_has_no_log_to_wait_for(world: World, error: ApiError) -> None:
    """BR-037: its log is asked for in vain, with 400 or 404."""
    world.api.log_error = error
    world.api.put(pod({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}))
    seen = await world.look()
    assert (seen.reason, seen.log_complete, seen.unread) == ("PodRefused", True, None)


async def test_an_owed_last_line_that_never_comes_is_waited_for_half_a_minute(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log()[:-1])
    world.api.put(pod(status("Succeeded", ended())))
    seen, took = await until_ended(world)
    assert 30 <= took < 40 and result_of(seen) == "3.2769"


async def test_a_log_that_grows_fast_is_read_as_long_as_it_does(world: World) -> None:
    """Faster than a poll's piece while it runs: at its end much is left to be read."""
    lines = stamped(whole_log(6000, padding=1000), apart=0.01)
    world.api.put(pod(status("Running", RUNNING)))
    for poll in range(1, 41):
        world.api.logs["train"] = lines[: 150 * poll]
        await world.look(1)
    world.api.logs["train"] = lines
    world.api.put(pod(status("Succeeded", ended())))
    seen, _ = await until_ended(world)
    assert result_of(seen) == "3.2769"


async def test_a_sidecars_pod_is_not_ended_before_its_log_is_read(world: World) -> None:
    """The training ended while the operator was down."""
    world.api.logs["train"] = stamped(whole_log(3000, padding=1000), apart=0.01)
    world.api.put(pod(status("Running", ended(), container("agent", running={})), sidecar=True))
    world.time.seconds = 1000
    seen = await world.look()
    assert (seen.log_complete, world.api.deleted) == (False, [])
    seen, _ = await until_ended(world)
    assert result_of(seen) == "3.2769"
    for _ in range(70):
        await world.look(1)
    assert world.api.deleted == [NAME], "and then it holds no GPUs"


async def test_a_sidecars_pod_is_not_ended_before_its_log_is_kept(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log())
    world.api.keep_error = refused()
    world.api.put(pod(status("Running", ended(), container("agent", running={})), sidecar=True))
    for _ in range(20):
        seen = await world.look(1)
        assert (seen.log_complete, world.api.deleted) == (False, [])
    world.api.keep_error = None
    await until_ended(world)
    assert len(world.api.kept) == 1


async def test_a_log_that_may_not_be_kept_holds_nothing_up(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log())
    world.api.keep_error = Refused(403, "no right to configmaps")
    world.api.put(pod(status("Succeeded", ended())))
    seen, took = await until_ended(world)
    assert took < 10 and result_of(seen) == "3.2769"


async def test_a_sidecars_pod_that_is_nobodys_is_ended(world: World) -> None:
    """Its Speedrun is finished."""
    world.api.put(pod(status("Running", ended(), container("agent", running={})), sidecar=True))
    other = world.ref
    await world.look()
    world.backend.forget(NAME)
    world.ref = type(other)(other.identity, 1, other.since, other.log_format, None)
    for _ in range(70):
        world.time.seconds += 1
        await world.backend.observe([world.ref])
    assert world.api.deleted == [NAME]


@pytest.mark.parametrize("skew", [0.0, 3600.0, -3600.0])
async def test_a_sidecar_may_tidy_up_for_a_minute_whatever_our_clock_says(world: World, skew: float) -> None:
    world.time.skew = skew
    world.api.logs["train"] = stamped(whole_log())
    world.api.put(pod(status("Running", ended(), container("agent", running={})), sidecar=True))
    for _ in range(50):
        await world.look(1)
    assert world.api.deleted == []
    for _ in range(20):
        await world.look(1)
    assert world.api.deleted == [NAME]


async def test_a_log_that_cannot_be_read_is_no_silence(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log()[:8])
    world.api.put(pod(status("Running", RUNNING)))
    assert (await world.look()).quiet_for.total_seconds() == 0
    assert (await world.look(100)).quiet_for.total_seconds() == 100
    world.api.log_error = refused()
    for _ in range(20):
        seen = await world.look(100)
        assert seen.quiet_for.total_seconds() == 100
    assert seen.unread is not None and "connection refused" in seen.unread
    world.api.log_error = None
    seen = await world.look(100)
    assert (seen.quiet_for.total_seconds(), seen.unread) == (2200, None), "nothing was written all the time"
    world.api.logs["train"] = stamped(whole_log()[:9])
    assert (await world.look(1)).quiet_for.total_seconds() == 0


async def test_one_read_that_fails_is_not_told(world: World) -> None:
    world.api.put(pod(status("Running", RUNNING)))
    await world.look()
    world.api.log_error = refused()
    assert (await world.look(5)).unread is None


async def test_a_run_whose_log_cannot_be_read_is_not_taken_for_a_stalled_one(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log()[:8])
    world.api.put(pod(status("Running", RUNNING)))
    before = decided(world, await world.look(), stallTimeoutSeconds=600).status
    world.api.log_error = refused()
    await world.look(5)
    decision = decided(world, await world.look(2000), before, stallTimeoutSeconds=600)
    after = decision.status
    assert (decision.cancel, after.phase, after.reason) == ((), Phase.TRAINING, "LogUnreadable")
    assert after.condition(ConditionType.STALLED) is None
    assert "connection refused" in (after.allocations[0].message or "")
    world.api.log_error = None
    silent = decided(world, await world.look(1), after, stallTimeoutSeconds=600)
    assert silent.cancel == (0,) and silent.status.allocations[0].ending == "Stalled"


async def test_a_log_that_cannot_be_read_at_the_end_is_told_until_it_can(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log())
    world.api.put(pod(status("Running", RUNNING)))
    before = decided(world, await world.look()).status
    world.api.log_error = refused()
    world.api.put(pod(status("Succeeded", ended())))
    for _ in range(10):
        before = decided(world, await world.look(30), before).status
    assert (before.reason, before.completion_time) == ("LogUnreadable", None)
    world.api.log_error = None
    seen, _ = await until_ended(world)
    end = decided(world, seen, before).status
    assert (end.phase, end.val_loss, end.allocations[0].reason) == (Phase.SUCCEEDED, 3.2769, "Completed")


@pytest.mark.parametrize("back", [3600, 5])
async def test_a_clock_that_is_set_back_hides_no_result(world: World, back: int) -> None:
    """The kubelet gives lines from a second on: what is written with earlier times is not among them."""
    lines = whole_log()
    world.api.logs["train"] = stamped(lines[:20], begin=4000)
    world.api.put(pod(status("Running", RUNNING)))
    await world.look()
    world.api.logs["train"] += stamped(lines[20:], begin=4000 + 20 - back, apart=0.01)
    world.api.put(pod(status("Succeeded", ended())))
    seen, took = await until_ended(world)
    assert result_of(seen) == "3.2769" and seen.log is not None and seen.log.exit_code == 0
    assert took < 10
    (kept,) = world.api.kept
    assert b"val_loss:3.2769" in gzip.decompress(base64.b64decode(kept["binaryData"]["log.gz"]))


async def test_a_log_is_not_read_as_a_whole_over_and_over(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log()[:-1])
    world.api.put(pod(status("Succeeded", ended())))
    for _ in range(20):
        await world.look(1)
    assert world.api.whole_reads == 3, "the first of each container, and one more"


async def test_unread_lines_that_are_rotated_away_lose_no_result(world: World) -> None:
    lines = stamped(whole_log())
    world.api.logs["train"] = lines[:10]
    world.api.put(pod(status("Running", RUNNING)))
    await world.look()
    world.api.logs["train"] = [lines[-4], *lines[-2:]]  # the script says the last validation again
    world.api.put(pod(status("Succeeded", ended())))
    seen, _ = await until_ended(world)
    assert result_of(seen) == "3.2769"


async def test_the_log_of_a_pod_that_is_deleted_by_hand_is_kept(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log()[:8])
    world.api.put(pod(status("Running", RUNNING)))
    await world.look()
    world.api.remove()
    seen = await world.look(1)
    (kept,) = world.api.kept
    assert b"step:4/20" in gzip.decompress(base64.b64decode(kept["binaryData"]["log.gz"]))
    assert seen.log is not None and "get configmap" in world.backend.log_path(world.ref)


async def test_a_pod_past_its_deadline_is_ended_with_that_reason(world: World) -> None:
    world.api.logs["train"] = stamped(whole_log()[:8])
    world.api.put(pod(status("Running", RUNNING)))
    before = decided(world, await world.look(1), activeDeadlineSeconds=60).status
    late = decided(world, await world.look(100), before, activeDeadlineSeconds=60)
    assert late.cancel == (0,)
    assert await world.backend.cancel([world.ref]) == {NAME: False} and world.api.deleted == [NAME]
    end = decided(world, await world.look(1), late.status, activeDeadlineSeconds=60).status
    assert (end.phase, end.reason) == (Phase.FAILED, "DeadlineExceeded")
