"""How pods end: a table of real statuses, and what must be said of each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from speedrun_operator.api.status import rfc3339
from speedrun_operator.backends.pods.observe import observed
from speedrun_operator.lifecycle.observation import JobState
from unit.builders import at
from unit.pods.api import RUNNING, container, ended, pod, status

AGENT = container("agent", running={})


def target(reason: str, message: str = "", *, seconds: float = 40, type_: str = "DisruptionTarget") -> dict[str, Any]:
    since = rfc3339(at(seconds))
    return {"type": type_, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}


def failed(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return status("Failed", *containers, **more)


def failed_before(*steps: dict[str, Any]) -> dict[str, Any]:
    """A pod whose training never began."""
    return {**failed(), "initContainerStatuses": list(steps)}


def never_began(message: str, reason: str = "StartError") -> dict[str, Any]:
    return ended("train", 128, reason, message=f"failed to create containerd task: runc create failed: {message}")


REFUSED = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
DRIVER = "nvidia-container-cli: initialization error: driver not loaded: unknown"
LACKS = "speedrun: the image lacks git; the build steps install git"
SHM = 'Usage of EmptyDir volume "shm" exceeds the limit "16Gi".'
ENDS = {
    "a GPU is lost": (
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": REFUSED},
        ("PodRefused", "no healthy devices present"),
    ),
    "refused for CPUs": ({"phase": "Failed", "reason": "OutOfcpu", "message": "x"}, ("PodRefused", "OutOfcpu")),
    "nothing but a phase": ({"phase": "Failed"}, ("PodRefused", "does not say why")),
    "refused, with statuses": (
        failed(container("train", waiting={"reason": "ContainerCreating"}), reason="TopologyAffinityError"),
        ("PodRefused", "TopologyAffinityError"),
    ),
    "refused again after the kubelet restarted": (
        failed(ended("train", 137, "ContainerStatusUnknown"), reason="UnexpectedAdmissionError", message=REFUSED),
        ("PodRefused", "no healthy devices present"),
    ),
    "refused in words": (
        failed(container("train", waiting={}), reason="Later", message="Pod was rejected: no room"),
        ("PodRefused", "no room"),
    ),
    "too much memory": (failed(ended("train", 137, "OOMKilled")), ("OOMKilled", "memory")),
    "too much memory, and an agent failed too": (
        failed(ended("agent", 2), ended("train", 137, "OOMKilled")),
        ("OOMKilled", "container train"),
    ),
    "too much memory at its start": (
        failed(never_began("container init was OOM-killed (memory limit too low?)")),
        ("OOMKilled", "memory"),
    ),
    "its own fault": (failed(ended("train", 3)), ("JobFailed", "exit code 3")),
    "killed by nobody known": (failed(ended("train", 137)), ("JobFailed", "killed by signal 9")),
    "no bash": (
        failed(never_began('exec: "bash": executable file not found in $PATH: unknown')),
        ("ImageMissingBuildSteps", "the image needs bash"),
    ),
    "no bash, in crun's words": (
        failed(never_began("executable file `bash` not found in $PATH: No such file or directory")),
        ("ImageMissingBuildSteps", "the image needs bash"),
    ),
    "no driver": (failed(never_began(DRIVER)), ("ContainerNotStarted", "driver not loaded")),
    "no runtime": (failed(never_began("", "ContainerCannotRun")), ("ContainerNotStarted", "did not start")),
    "what the image lacks": (failed_before(ended("image", 78, message=LACKS)), ("ImageMissingBuildSteps", "lacks git")),
    "what it lacks, as the log ends": (
        failed_before(ended("image", 78, message=f"SPEEDRUN x\n{LACKS}\nSPEEDRUN y\n")),
        ("ImageMissingBuildSteps", "lacks git; the build steps install git; spec.pods.image"),
    ),
    "a step's own 78": (failed_before(ended("code", 78, message="no such field")), ("JobFailed", "exit code 78")),
    "a step before": (failed_before(ended("data", 2)), ("JobFailed", "container data")),
    "the node lost it": (
        failed(ended("train", 255, "ContainerStatusUnknown")),
        ("NodeLost", "node lost container train"),
    ),
    "the node started again": (failed(ended("train", 255, "Unknown")), ("NodeLost", "node lost container train")),
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        ("Evicted", "low on resource: memory"),
    ),
    "too much in /dev/shm": (
        failed(ended("train", 137), reason="Evicted", message=SHM),
        ("SharedMemoryFull", 'volume "shm"'),
    ),
    "the time limit": (
        failed(ended("train", 143), reason="DeadlineExceeded", message="Pod was active too long"),
        ("TimeLimit", "active too long"),
    ),
    "preempted": (
        failed(ended("train", 143), conditions=[target("PreemptionByScheduler", "preempting")]),
        ("PodPreempted", "preempting"),
    ),
    "evicted by a taint": (
        failed(ended("train", 143), conditions=[target("DeletionByTaintManager")]),
        ("NodeLost", "sunk.coreweave.com/lock"),
    ),
    "a node that never came back": (failed(RUNNING, conditions=[target("DeletionByPodGC")]), ("NodeLost", "PodGC")),
    "well": (status("Succeeded", ended()), ("Completed", None)),
    "well, and a sidecar runs on": (status("Running", ended(), AGENT), ("Completed", None)),
    "well, and a sidecar failed": (failed(ended(), ended("agent", 1)), ("Completed", None)),
    "failed, and a sidecar runs on": (status("Running", AGENT, ended("train", 3)), ("JobFailed", "exit code 3")),
}


@pytest.mark.parametrize(("shown", "said"), ENDS.values(), ids=ENDS)
def test_how_a_pod_ended(shown: dict[str, Any], said: tuple[str, str | None]) -> None:
    """BR-037: also where the kubelet refused it, and there are no container statuses at all."""
    seen = observed(pod(shown), at(100))
    assert (seen.state, seen.reason) == (JobState.ENDED, said[0])
    assert seen.ended is not None
    assert said[1] is None or (seen.message and said[1] in seen.message)


TAKEN = {
    "EvictionByEvictionAPI": "Drained",
    "PreemptionByScheduler": "PodPreempted",
    "DeletionByTaintManager": "NodeLost",
}


@pytest.mark.parametrize(("by", "reason"), TAKEN.items())
def test_what_is_taken_away_beside_a_sidecar_did_not_fail(by: str, reason: str) -> None:
    """The training ends first, by a signal, and for a while the pod runs on."""
    shown = status("Running", ended("train", 143), AGENT, conditions=[target(by, "away with it")])
    seen = observed(pod(shown, deleted=65), at(51))
    assert (seen.reason, "away with it" in (seen.message or "")) == (reason, True)


def test_what_ended_before_it_was_taken_away_ended_by_itself() -> None:
    """As when the pod is ended since a sidecar runs on in it, or its node is drained then."""
    for code, reason in ((3, "JobFailed"), (137, "JobFailed")):
        later = [target("EvictionByEvictionAPI", seconds=110)]
        assert observed(pod(status("Running", ended("train", code), AGENT), deleted=130), at(111)).reason == reason
        shown = status("Running", ended("train", code), AGENT, conditions=later)
        assert observed(pod(shown, deleted=130), at(111)).reason == reason


def test_a_pod_killed_by_a_deletion_was_deleted_and_did_not_fail() -> None:
    for phase, beside in (("Failed", ()), ("Running", (AGENT,))):
        assert observed(pod(status(phase, ended("train", 143), *beside), deleted=60), at(61)).reason == "PodDeleted"


def test_what_runs_beside_the_training_hides_nothing_of_its_end() -> None:
    """A sidecar of the newer kind is an init container that runs on; it is stopped when the training has ended."""
    made = pod(failed(ended("train", 3)))
    made["spec"]["initContainers"].append({"name": "mesh", "restartPolicy": "Always"})
    made["status"]["initContainerStatuses"].insert(0, ended("mesh", 143))
    seen = observed(made, at(100))
    assert (seen.reason, seen.message) == ("JobFailed", "container train ended with exit code 3")


def test_a_pod_that_kueue_takes_away_was_preempted() -> None:
    by = target("StoppedByKueue", "Preempted to accommodate a workload", type_="TerminationTarget")
    for shown in (status("Running", ended("train", 143), AGENT, conditions=[by]), failed(RUNNING, conditions=[by])):
        seen = observed(pod(shown, deleted=60), at(61))
        assert (seen.reason, "to accommodate a workload" in (seen.message or "")) == ("PodPreempted", True)


def test_a_pod_that_does_not_end_says_what_is_known() -> None:
    shown = status("Running", RUNNING)
    assert observed(pod(shown, deleted=60), at(9000), timedelta(seconds=59)).reason == "Terminating"
    seen = observed(pod(shown, deleted=60), at(61), timedelta(seconds=61))
    assert (seen.state, seen.reason) == (JobState.ENDED, "NodeLost")
    assert seen.message and "or a process hangs there" in seen.message
    waiting = pod({"phase": "Pending"}, deleted=60, node=None)
    assert observed(waiting, at(61), timedelta(seconds=61)).reason == "PodDeleted", "it never had a node"
