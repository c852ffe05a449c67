"""What Kubernetes calls the faults of pods, and what a person can do about each. Data, and looking it up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from speedrun_operator.api.phases import Reason

AT_ONCE = timedelta(0)

# Waiting reasons of containers that do not go by themselves, with the remedy; True: not even with time.
STUCK: Mapping[str, tuple[str, bool]] = {
    "InvalidImageName": ("correct spec.pods.image, or the setting pods.image", True),
    "ErrImageNeverPull": ("the image must be on the node already", True),
    "ErrImagePull": ("see that the image exists and that spec.pods.imagePullSecrets lets the node pull it", False),
    "ImagePullBackOff": ("see that the image exists and that spec.pods.imagePullSecrets lets the node pull it", False),
    "ImageInspectError": ("the image on the node is damaged; another node may do: spec.pods.nodeSelector", False),
    "RegistryUnavailable": ("the registry does not answer; it is tried again", False),
    "CreateContainerConfigError": ("create the Secret or ConfigMap with that key in the Speedrun's namespace", False),
    "CreateContainerError": ("the node cannot make the container; the message says why", False),
    "RunContainerError": ("the node cannot start the container; the message says why", False),
}
# What a pod ended by that never got to its program, or was taken away: faults of the infrastructure.
KUBELET_REFUSES = frozenset({
    "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "NodeAffinity",
    "NodeName", "NodePorts", "UnknownReason", "AppArmor", "Sysctl", "TopologyAffinityError", "PodOSNotSupported",
})  # fmt: skip
ENDED_BY: Mapping[str, tuple[Reason, str]] = {
    "Evicted": (Reason.NODE_FAILURE, "the node ran out of a resource; ask for more in spec.pods.resources.requests"),
    "NodeLost": (Reason.NODE_FAILURE, "the node does not answer"),
    "NodeShutdown": (Reason.NODE_FAILURE, "the node was shut down"),
    "Terminated": (Reason.NODE_FAILURE, "the node was shut down"),
    "Shutdown": (Reason.NODE_FAILURE, "the node was shut down"),
    "Preempting": (Reason.PREEMPTED, "a pod that the node needs more took its place"),
    "Preempted": (Reason.PREEMPTED, "a pod of higher priority took its place"),
    "DeadlineExceeded": (Reason.TIME_LIMIT, "the time limit was reached: raise spec.timeLimitSeconds"),
}
# Reasons of the condition DisruptionTarget: who is taking the pod away.
DISRUPTED_BY: Mapping[str, tuple[Reason, str]] = {
    "PreemptionByScheduler": (Reason.PREEMPTED, "a pod of higher priority took its place"),
    "EvictionByEvictionAPI": (Reason.PREEMPTED, "it was evicted, as when a node is drained"),
    "DeletionByTaintManager": (Reason.NODE_FAILURE, "its node got a taint that it does not tolerate"),
    "DeletionByPodGC": (Reason.NODE_FAILURE, "its node is gone"),
    "TerminationByKubelet": (Reason.NODE_FAILURE, "the node took it away"),
}
NODE_FAULTS = frozenset({"ContainerStatusUnknown"})
SUNK_LOCK = "sunk.coreweave.com/lock"


def why_unschedulable(message: str) -> str:
    """What can be done about a pod that fits on no node, after the scheduler's own count of nodes and reasons."""
    if SUNK_LOCK in message:
        remedy = (
            "Slurm has locked the nodes: let SUNK's pod scheduler place it (settings pods.scheduler_name, pods.sunk)"
        )
    elif "nsufficient" in message:
        remedy = "it starts when that is free; ask for less, or add nodes"
    elif "affinity" in message or "selector" in message:
        remedy = (
            "no node has these labels: see spec.gpus.type, spec.pods.nodeSelector and the setting pods.gpu_label_keys"
        )
    elif "taint" in message:
        remedy = "spec.pods.tolerations lets it run on nodes with a taint"
    elif "persistentvolumeclaim" in message.lower():
        remedy = "create the claim in the Speedrun's namespace, or correct spec.pods.cacheVolumeClaim"
    else:
        return message
    return f"{message} ({remedy})"
