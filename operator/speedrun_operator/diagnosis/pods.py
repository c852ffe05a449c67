"""Rules: what Kubernetes does to pods. Their reasons are the words that the backend Pods gives for an end."""

from __future__ import annotations

from speedrun_operator.api.phases import Reason
from speedrun_operator.diagnosis.rule import Retry, Rule

EVICTED = Reason.EVICTED.value
NODE_LOST = Reason.NODE_LOST.value
DRAINED = Reason.DRAINED.value
PREEMPTED = Reason.POD_PREEMPTED.value
REFUSED = Reason.POD_REFUSED.value
NOT_STARTED = Reason.CONTAINER_NOT_STARTED.value
SHARED_MEMORY_FULL = Reason.SHARED_MEMORY_FULL.value
GONE = Reason.POD_GONE.value
DELETED = Reason.POD_DELETED.value
OUT_OF_MEMORY = Reason.OOM_KILLED.value
MISSING_BUILD_STEPS = Reason.IMAGE_MISSING_BUILD_STEPS.value


KEPT_OFF = "the next pod keeps off the node where there is another"


def _taken(reason: str, says: str, remedy: str, *, avoids: bool = False) -> Rule:
    return Rule(reason, says, remedy, ends=(reason,), infrastructure=True, avoids=avoids, retry=Retry.LIMITED)


RULES = (
    _taken(EVICTED, "the node ran out of a resource", "ask for more in spec.pods.resources.requests"),
    _taken(NODE_LOST, "the node does not answer, or is gone", KEPT_OFF, avoids=True),
    _taken(DRAINED, "the pod was evicted, as when its node is drained", "nothing; backoffLimit lets it run again"),
    _taken(PREEMPTED, "a pod of higher priority took its place", "nothing; backoffLimit lets it run again"),
    _taken(REFUSED, "the node refused the pod", KEPT_OFF, avoids=True),
    _taken(GONE, "the pod was gone, and nobody saw why", "nothing; backoffLimit lets it run again"),
    _taken(
        NOT_STARTED,
        "the node could not start a container",
        f"tell the cluster's administrator; {KEPT_OFF}",
        avoids=True,
    ),
    Rule(
        SHARED_MEMORY_FULL,
        "more was written to /dev/shm than it may hold",
        "raise spec.pods.sharedMemory",
        ends=(SHARED_MEMORY_FULL,),
    ),
    Rule(
        DELETED,
        "the pod was deleted before training finished, and not by the operator",
        "delete the Speedrun and create it again to run it again",
        ends=(DELETED,),
    ),
    Rule(
        OUT_OF_MEMORY,
        "a container used more memory than its limit",
        "raise spec.pods.resources.limits.memory",
        ends=(OUT_OF_MEMORY,),
    ),
    Rule(
        MISSING_BUILD_STEPS,
        "the image lacks what the recipe's build steps install",
        "use the trainer image, or another that has it: spec.pods.image",
        ends=(MISSING_BUILD_STEPS,),
    ),
)
