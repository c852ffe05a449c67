"""What a pod shows, as the API server describes it: a table of real statuses, and what must be said of each."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from speedrun_operator.api.phases import Phase
from speedrun_operator.api.status import rfc3339
from speedrun_operator.backends.pods.events import not_begun
from speedrun_operator.backends.pods.observe import give_up, observed, started_containers, vanished
from speedrun_operator.lifecycle.allocations import after_observation
from speedrun_operator.lifecycle.decide import decide
from speedrun_operator.lifecycle.observation import JobState
from unit.builders import at, finished_log, resource, running, situation, unseen

PATIENCE = timedelta(seconds=300)
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(at(3))}


def pod(status: dict[str, Any], *, deleted: float | None = None, node: str | None = "node-a") -> dict[str, Any]:
    metadata = {"name": "sr-1", "namespace": "lab", "uid": "17", "creationTimestamp": rfc3339(at(1))}
    if deleted is not None:
        metadata["deletionTimestamp"] = rfc3339(at(deleted))
    spec = {"nodeName": node, "initContainers": [{"name": "code"}], "containers": [{"name": "train"}]}
    return {"metadata": metadata, "spec": spec, "status": status}


def placed(phase: str = "Running", *conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"phase": phase, "conditions": [SCHEDULED, *conditions], **status}


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "restartCount": 0, "image": "registry.local/acme/trainer:nope", "state": state}


def done(name: str, code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return container(name, terminated={"exitCode": code, "reason": reason, "finishedAt": rfc3339(at(50)), **more})


def trained(*statuses: dict[str, Any], phase: str = "Failed", **status: Any) -> dict[str, Any]:
    return placed(phase, containerStatuses=list(statuses), **status)


WAITING = [
    pytest.param(reason, field, id=f"{reason} {field}")
    for reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
    for field in ("containerStatuses", "initContainerStatuses")
]


@pytest.mark.parametrize(("reason", "field"), WAITING)
def test_a_container_that_cannot_start_says_why_from_the_first_look(reason: str, field: str) -> None:
    """BR-036: the reason and the image are in the message at once, and it is given up in bounded time."""
    said = 'Back-off pulling image "registry.local/acme/trainer:nope"'
    status = placed("Pending", **{field: [container("trainer", waiting={"reason": reason, "message": said})]})
    seen = observed(pod(status), at(10))
    assert (seen.state, seen.reason) == (JobState.RUNNING, reason)
    assert seen.message and reason in seen.message and "registry.local/acme/trainer:nope" in seen.message
    assert give_up(seen, PATIENCE) == (timedelta(0) if reason == "InvalidImageName" else PATIENCE)


def test_a_container_that_waits_for_a_pull_is_not_given_up() -> None:
    status = placed("Pending", containerStatuses=[container("train", waiting={"reason": "PodInitializing"})])
    seen = observed(pod(status), at(10))
    assert (seen.state, seen.reason, give_up(seen, PATIENCE)) == (JobState.RUNNING, None, None)


@pytest.mark.parametrize(
    ("status", "again"),
    [
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}, True),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, True),
        (trained(done("train", 137, "OOMKilled")), False),
        (trained(done("train", 3)), False),
    ],
)
def test_what_the_infrastructure_did_is_run_again_and_each_end_has_its_remedy(
    status: dict[str, Any], again: bool
) -> None:
    """BR-037: an infrastructure fault that is retried, and no exit code 0 or training error."""
    before = decide(situation(resource(), seconds=1)).status
    seen = replace(observed(pod(status), at(100)), log_complete=True)
    after = decide(situation(resource(status=before), seconds=100, observed={0: seen})).status
    (allocation,) = after.allocations
    assert allocation.reason == seen.reason and seen.message and seen.message in (allocation.message or "")
    assert (after.phase, after.next_attempt_time is not None) == (Phase.PENDING if again else Phase.FAILED, again)
    assert after.val_loss is None


def test_a_lost_node_is_told_and_then_the_end() -> None:
    """BR-041: phase stays Running with NodeLost; then the pod is gone."""
    status = placed(reason="NodeLost", containerStatuses=[container("train", running={})])
    first = observed(pod(status, deleted=30), at(40))
    assert (first.state, first.reason) == (JobState.RUNNING, "Terminating")
    assert first.message and "does not answer" in first.message
    later = observed(pod(status, deleted=30), at(630), timedelta(seconds=580))
    assert (later.state, later.reason) == (JobState.ENDED, "NodeLost")
    gone = vanished(pod(status, deleted=30), "17", at(60), cancelled=False, witnessed=True)
    assert (gone.state, gone.reason, gone.node) == (JobState.ENDED, "NodeLost", "node-a")


def test_a_healthy_pod_that_is_gone_was_deleted() -> None:
    """BR-041: the second case: 404 straight away."""
    last = pod(placed(containerStatuses=[container("train", running={})]))
    gone = vanished(last, "17", at(60), cancelled=False, witnessed=True)
    assert (gone.state, gone.reason) == (JobState.ENDED, "PodDeleted")
    assert gone.message and "deleted before training finished" in gone.message
    assert vanished(last, "17", at(60), cancelled=True, witnessed=True).reason == "Cancelled"


def test_the_final_step_counts_though_the_pod_was_deleted() -> None:
    """BR-041: unless the final step had been logged."""
    status = decide(situation(resource(), seconds=1)).status
    log = finished_log("3.2769").read()
    seen = running(finished_log("3.2769"))
    status = decide(situation(resource(status=status), seconds=50, observed={0: seen})).status
    last = pod(placed(containerStatuses=[container("train", running={})]))
    gone = replace(vanished(last, "17", at(60), cancelled=False, witnessed=True), log=log, log_complete=True)
    end = decide(situation(resource(status=status), seconds=60, observed={0: gone})).status
    assert (end.phase, end.val_loss) == (Phase.SUCCEEDED, 3.2769)


def test_terminal_is_final_whatever_the_pod_says_later() -> None:
    """BR-038: a kubelet restart flips a completed pod to Failed; the Speedrun stays as it ended."""
    log = finished_log("3.2769", time=208113).read()
    status = decide(situation(resource(), seconds=1)).status
    seen = replace(
        observed(pod(trained(done("train", 0, "Completed"), phase="Succeeded")), at(100)), log=log, log_complete=True
    )
    ended = decide(situation(resource(status=status), seconds=100, observed={0: seen})).status
    assert (ended.phase, ended.val_loss, ended.train_time_ms) == (Phase.SUCCEEDED, 3.2769, 208113)
    flipped = observed(pod({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "x"}), at(700))
    again = replace(flipped, log_complete=True)
    decision = decide(situation(resource(status=ended), seconds=700, observed={0: again}))
    assert decision.status == ended
    (allocation,) = ended.allocations
    assert after_observation(allocation, again, timedelta(0)) == allocation


def test_unscheduled_pods_wait_with_the_schedulers_words() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    seen = observed(pod({"phase": "Pending", "conditions": [condition]}, node=None), at(10))
    assert (seen.state, seen.reason, seen.started, seen.node) == (JobState.QUEUED, "Unschedulable", None, None)
    assert seen.message and message in seen.message and "when that is free" in seen.message


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("1 node(s) had untolerated taint {sunk.coreweave.com/lock: locked}", "SUNK's pod scheduler"),
        ("1 node(s) had untolerated taint {nvidia.com/gpu: }", "spec.pods.tolerations"),
        ("3 node(s) didn't match Pod's node affinity/selector", "spec.gpus.type"),
    ],
)
def test_each_reason_not_to_be_scheduled_has_its_remedy(message: str, remedy: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    seen = observed(pod({"phase": "Pending", "conditions": [condition]}, node=None), at(10))
    assert seen.message and remedy in seen.message


def test_a_gated_pod_waits_for_its_queue() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    seen = observed(pod({"phase": "Pending", "conditions": [condition]}, node=None), at(10))
    assert (seen.state, seen.reason) == (JobState.QUEUED, "SchedulingGated")
    assert seen.message and "spec.pods.queueName" in seen.message


def test_only_our_containers_logs_are_read_and_in_their_order() -> None:
    status = placed(
        initContainerStatuses=[done("code", 0, "Completed"), container("mesh", running={})],
        containerStatuses=[container("agent", running={}), container("train", running={})],
    )
    made = pod(status)
    made["spec"]["initContainers"].append({"name": "mesh", "restartPolicy": "Always"})
    made["spec"]["containers"].insert(0, {"name": "agent"})
    assert started_containers(made) == (("code", True), ("train", False))


def test_what_a_pod_does_not_say_is_not_made_up() -> None:
    seen = observed(pod({}, node=None), at(10))
    assert (seen.state, seen.started, seen.ended, seen.reason) == (JobState.QUEUED, None, None, "Unscheduled")
    assert unseen(5).give_up_after is None


VOLUMES = [
    {"name": "cache", "persistentVolumeClaim": {"claimName": "speedrun-cache"}},
    {"name": "package", "configMap": {"name": "sr-1-package"}},
]
MOUNTS = [
    pytest.param(
        "FailedMount",
        'MountVolume.SetUp failed for volume "package" : configmap "sr-1-package" not found',
        "volume package is the ConfigMap sr-1-package",
    ),
    pytest.param(
        "FailedMount",
        "Unable to attach or mount volumes: unmounted volumes=[cache], unattached volumes=[], failed to process "
        "volumes=[]: timed out waiting for the condition",
        "volume cache is the claim speedrun-cache (kubectl describe pvc speedrun-cache)",
    ),
    pytest.param(
        "FailedAttachVolume",
        'Multi-Attach error for volume "pvc-1f0" Volume is already exclusively attached to one node',
        "volume cache is the claim speedrun-cache",
    ),
]


@pytest.mark.parametrize(("reason", "message", "says"), MOUNTS)
def test_a_volume_that_cannot_be_mounted_is_named(reason: str, message: str, says: str) -> None:
    shown = pod(placed("Pending"))
    shown["spec"]["volumes"] = VOLUMES
    events = [
        {"type": "Normal", "reason": "Scheduled", "message": "to node-a", "lastTimestamp": rfc3339(at(9))},
        {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": rfc3339(at(8))},
        {"type": "Warning", "reason": "FailedMount", "message": "an older word", "lastTimestamp": rfc3339(at(7))},
    ]
    told = not_begun(shown, events)
    assert told is not None and told[0] == reason
    assert message in told[1] and says in told[1]
    seen = replace(observed(shown, at(20)), reason=told[0])
    assert give_up(seen, PATIENCE) == PATIENCE
    assert not_begun(shown, events[:1]) is None
    mounted = {"type": "Normal", "reason": "Pulling", "message": "an image", "lastTimestamp": rfc3339(at(8))}
    assert not_begun(shown, [*events, mounted]) is None
