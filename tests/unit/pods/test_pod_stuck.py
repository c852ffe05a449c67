"""Pods that do not get on: whose fault that is, and what becomes of the runs that wait."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from speedrun_operator.api.phases import Phase
from speedrun_operator.api.status import Status
from speedrun_operator.diagnosis import rule_of
from unit.builders import at
from unit.pods.api import (
    RUNNING,
    World,
    container,
    decided,
    ended,
    pod,
    stamped,
    status,
    until_ended,
    whole_log,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.backend.close()


async def test_a_sidecar_whose_image_is_not_there_stops_no_training(world: World) -> None:
    back_off = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "acme/agent:nope"'}
    world.api.logs["train"] = stamped(whole_log()[:8])
    world.api.put(pod(status("Running", RUNNING, container("agent", waiting=back_off)), sidecar=True))
    before = decided(world, await world.look()).status
    decision = decided(world, await world.look(1000), before)
    assert (decision.cancel, decision.status.phase, decision.status.reason) == ((), Phase.TRAINING, None)
    world.api.logs["train"] = stamped(whole_log())
    world.api.put(pod(status("Running", ended(), container("agent", waiting=back_off)), sidecar=True))
    seen, _ = await until_ended(world)
    assert decided(world, seen, decision.status).status.phase is Phase.SUCCEEDED


async def test_a_sidecar_whose_image_is_not_there_holds_training_up_before_it_begins(world: World) -> None:
    """One of the newer kind must run before training does."""
    made = pod(status("Pending", container("train", waiting={"reason": "PodInitializing"})))
    made["status"]["initContainerStatuses"].append(container("mesh", waiting={"reason": "ImagePullBackOff"}))
    made["spec"]["initContainers"].append({"name": "mesh", "restartPolicy": "Always"})
    world.api.put(made)
    assert (await world.look()).reason == "ImagePullBackOff"


PULL = 'failed to pull and unpack image "registry.local/acme/trainer:v1": failed to resolve reference: '
LIMIT = PULL + "429 Too Many Requests - Server message: toomanyrequests: You have reached your pull rate limit"
TROUBLES = [
    ("ErrImagePull", LIMIT, "RegistryRateLimit", 3600),
    ("ErrImagePull", f"{PULL}unexpected status: 503 Service Unavailable", "ImageNotFetched", 60),
    ("ErrImagePull", f"{PULL}dial tcp 10.0.0.1:443: i/o timeout", "ImageNotFetched", 60),
    ("RegistryUnavailable", "", "ImageNotFetched", 60),
    ("ImageInspectError", "", "ContainerNotStarted", 10),
    ("CreateContainerError", "nvidia-container-cli: initialization error", "ContainerNotStarted", 10),
]


@pytest.mark.parametrize(("word", "message", "reason", "wait"), TROUBLES)
async def test_what_is_no_fault_of_the_spec_is_tried_again_and_fails_no_series(
    world: World, word: str, message: str, reason: str, wait: int
) -> None:
    before = await stuck(world, word, message)
    decision = decided(world, await world.look(1), before, runs=3)
    assert decision.cancel == (0,) and decision.status.allocations[0].ending == reason
    rule = rule_of(reason)
    assert rule is not None and rule.says in (decision.status.allocations[0].message or "")
    await world.backend.cancel([world.ref])
    after = decided(world, await world.look(1), decision.status, runs=3).status
    assert (after.phase, after.allocations[0].reason) == (Phase.PENDING, reason)
    assert all(run.phase is Phase.PENDING for run in after.runs)
    assert after.next_attempt_time is not None
    assert 0 <= (after.next_attempt_time - at(world.time.seconds + 2)).total_seconds() - wait + 1 <= 1


@pytest.mark.parametrize(
    "message",
    [
        f"{PULL}not found",
        f"{PULL}dial tcp: lookup registry.local: no such host",
        f"{PULL}dial tcp 127.0.0.1:1: connect: connection refused",
    ],
)
async def test_an_image_that_is_not_there_fails_them_all(world: World, message: str) -> None:
    before = await stuck(world, "ErrImagePull", message)
    decision = decided(world, await world.look(1), before, runs=3)
    assert decision.status.allocations[0].ending == "NeverRuns"
    await world.backend.cancel([world.ref])
    after = decided(world, await world.look(1), decision.status, runs=3).status
    assert (after.phase, after.reason) == (Phase.FAILED, "NeverRuns")


async def stuck(world: World, word: str, message: str) -> Status:
    """The status of a series whose first pod has been stuck for five minutes; the kubelet says in between that it
    waits to pull again."""
    told = {"reason": word, "message": message}
    back_off = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.local/acme/trainer:v1"'}
    world.api.put(pod(status("Pending", container("train", waiting=told))))
    before = decided(world, await world.look(1), runs=3).status
    if word == "ErrImagePull":
        world.api.put(pod(status("Pending", container("train", waiting=back_off))))
    return decided(world, await world.look(299), before, runs=3).status
