"""Pods that do not get on: whose fault that is, and what becomes of the runs that wait."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.phases import Phase
from speedrun_operator.api.status import Status, rfc3339
from speedrun_operator.diagnosis import rule_of
from speedrun_operator.lifecycle.observation import JobState
from unit.builders import at
from unit.pods.api import (
    RUNNING,
    World,
    container,
    decided,
    ended,
    pod,
    refused,
    stamped,
    status,
    until_ended,
    whole_log,
)


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
    waiting = decided(world, await world.look(299), before, runs=3).status
    assert before.phase is waiting.phase is Phase.PREPARING, "BR-036: it is never shown as one that runs"
    return waiting


UNPLACED = {"phase": "Pending"}


def event(reason: str, message: str, seconds: float = 10, type_: str = "Warning") -> dict[str, str]:
    return {"type": type_, "reason": reason, "message": message, "lastTimestamp": rfc3339(at(seconds))}


def named(scheduler: str) -> dict[str, Any]:
    made = pod(UNPLACED, node=None)
    made["spec"]["schedulerName"] = scheduler
    return made


async def test_a_pod_that_no_scheduler_looks_at_names_the_one_that_should(world: World) -> None:
    world.api.put(named("tenant-slurm-slurm-scheduler"))
    first = await world.look(1)
    assert (first.state, first.reason) == (JobState.QUEUED, None), "of every pod for a moment, and worth no write"
    seen = await world.look(20)
    assert (seen.reason, seen.give_up_after) == ("Unscheduled", None)
    assert seen.message and "tenant-slurm-slurm-scheduler runs and watches this namespace" in seen.message
    after = decided(world, seen).status
    assert (after.phase, after.reason, after.allocations[0].message) == (Phase.QUEUED, "Unscheduled", seen.message)


async def test_what_a_scheduler_says_in_events_alone_is_told_and_kept(world: World) -> None:
    """SUNK's says so of an annotation that Slurm does not take, once."""
    world.api.put(named("slurm-scheduler"))
    world.api.told = [event("Older", "an older word", 5), event("ValidationError", "invalid account: nobody")]
    await world.look(1)
    said = "the scheduler slurm-scheduler does not place it: ValidationError: invalid account: nobody"
    assert (await world.look(20)).message == said
    world.api.told = []  # events are kept for an hour
    assert (await world.look(4000)).message == said
    world.api.put(pod(status("Pending", container("train", waiting={"reason": "PodInitializing"}))))
    assert (await world.look(1)).reason is None


async def test_events_that_may_not_be_read_hide_no_scheduler(world: World) -> None:
    world.api.told_error = refused("no right to events")
    world.api.put(named("other"))
    await world.look(1)
    assert "one called other" in ((await world.look(20)).message or "")


@pytest.mark.parametrize("skew", [0.0, 7200.0, -7200.0])
async def test_a_node_that_cannot_set_a_pod_up_is_told_and_given_up(world: World, skew: float) -> None:
    world.time.skew = skew
    began = pod({**status("Pending", container("train", waiting={"reason": "PodInitializing"}))})
    began["status"]["initContainerStatuses"] = [container("code", waiting={"reason": "PodInitializing"})]
    world.api.told = [event("FailedCreatePodSandBox", "plugin type cni failed: no addresses left")]
    world.api.put(began)
    before = decided(world, await world.look(1), runs=3).status
    assert before.reason is None
    seen = await world.look(16)
    assert (seen.reason, seen.give_up_as) == ("FailedCreatePodSandBox", "ContainerNotStarted")
    assert seen.message and "no addresses left" in seen.message
    decision = decided(world, await world.look(301), before, runs=3)
    assert decision.status.allocations[0].ending == "ContainerNotStarted"
    world.api.told.append(event("Pulling", "an image", 11, "Normal"))
    assert (await world.look(16)).reason is None, "it got on by itself"
