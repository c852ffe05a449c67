"""What Kubernetes calls the faults of pods, and what a person can do about each. Data, and looking it up. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.pods.places import UNREAD, UNSEEN
from speedrun_operator.diagnosis import pods as rules

AT_ONCE = timedelta(0)

# Waiting reasons of containers that do not go by themselves, with the remedy; True: not even with time.
STUCK: Mapping[str, tuple[str, bool]] = {
    "InvalidImageName": ("correct spec.pods.image, or the setting pods.image", True),
    "ErrImageNeverPull": ("the image must be on the node already", True),
    "ErrImagePull": ("see that the image exists and that spec.pods.imagePullSecrets lets the node pull it", False),
    "ImagePullBackOff": ("see that the image exists and that spec.pods.imagePullSecrets lets the node pull it", False),
    "ImageInspectError": ("the image on the node is damaged; another node may do: spec.pods.nodeSelector", False),
    "RegistryUnavailable": ("the registry does not answer", False),
    "CreateContainerConfigError": ("create the Secret or ConfigMap with that key in the Speedrun's namespace", False),
    "CreateContainerError": ("the node cannot make the container; the message says why", False),
    "FailedMount": ("the volume must be there, and one that this node can mount", False),
    "FailedAttachVolume": ("the volume must be there, and one that this node can mount", False),
    "FailedCreatePodSandBox": ("the node cannot set the pod up, as its network; another node may do", False),
    "RunContainerError": ("the node cannot start the container; the message says why", False),
}
# Reasons of a failed pod → why, in the words of `diagnosis.pods`.
ENDED_BY: Mapping[str, str] = {
    "Evicted": rules.EVICTED,
    "NodeLost": rules.NODE_LOST,
    "NodeShutdown": rules.NODE_LOST,
    "Terminated": rules.NODE_LOST,
    "Shutdown": rules.NODE_LOST,
    "Preempting": rules.PREEMPTED,
    "Preempted": rules.PREEMPTED,
    "DeadlineExceeded": Reason.TIME_LIMIT.value,
}
BY_TAINT = "DeletionByTaintManager"
# Reasons of the condition DisruptionTarget: who is taking the pod away.
DISRUPTED_BY: Mapping[str, str] = {
    "PreemptionByScheduler": rules.PREEMPTED,
    "EvictionByEvictionAPI": rules.DRAINED,
    BY_TAINT: rules.NODE_LOST,
    "DeletionByPodGC": rules.NODE_LOST,
    "TerminationByKubelet": rules.NODE_LOST,
}
BY_KUEUE = "TerminationTarget"  # the condition that Kueue puts on pods that it takes away
# Words of containers that their node lost: the kubelet's, and containerd's after a restart of the node.
NODE_FAULTS = frozenset({"ContainerStatusUnknown", "Unknown"})
# Words of the kubelet for pods that it does not admit.
REFUSED = re.compile(
    "UnexpectedAdmissionError|OutOf[a-z]|NodeAffinity|NodePorts|TopologyAffinityError|PodOSNotSupported"
)
SHARED_MEMORY = re.compile('EmptyDir volume "shm" exceeds')
SUNK_LOCK = "sunk.coreweave.com/lock"
TAINTED = (
    f"a taint on its node: the node does not answer, or Slurm locked it for a job of its own ({SUNK_LOCK}), from which "
    "the settings pods.sunk and pods.scheduler_name keep pods"
)


_LABELS = "see spec.gpus.type, spec.pods.nodeSelector and the setting pods.gpu_label_keys"
_GUESSED = {
    UNREAD: "the operator may not list nodes, so that only likely names of the GPU type were asked for: allow it "
    "(rbac.nodes in the chart), then suspend and resume the Speedrun",
    UNSEEN: "no node had the GPU type when the pod was made, so that only likely names of it were asked for: if there "
    "is one now, suspend and resume the Speedrun",
}


def why_unschedulable(message: str, guess: str = "") -> str:
    """What can be done about a pod that fits on no node, after the scheduler's own count of nodes and reasons.

    `guess`: why the nodes' labels in it are only likely ones.
    """
    if SUNK_LOCK in message:
        remedy = (
            "Slurm has locked the nodes: let SUNK's pod scheduler place it (settings pods.scheduler_name, pods.sunk)"
        )
    elif "nsufficient" in message:
        remedy = "it starts when that is free; ask for less, or add nodes"
    elif "affinity" in message or "selector" in message:
        remedy = f"no node has these labels: {'; else '.join([*filter(None, [_GUESSED.get(guess)]), _LABELS])}"
    elif "taint" in message:
        remedy = "spec.pods.tolerations lets it run on nodes with a taint"
    elif "persistentvolumeclaim" in message.lower():
        remedy = "create the claim in the Speedrun's namespace, or correct spec.pods.cacheVolumeClaim"
    else:
        return message
    return f"{message} ({remedy})"
