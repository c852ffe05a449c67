"""A pod as the API server describes it → what is to be said of its allocation. Pure.

Phase alone says too little: it stays Running when the node is lost or a sidecar runs on, and a pod that the kubelet
refuses has no container statuses at all. What a pod does not say stays unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.pods import words
from speedrun_operator.backends.pods.places import GUESS_LABEL, LACKS, MISSING_BUILD_STEPS, TRAIN
from speedrun_operator.diagnosis import pods as rules
from speedrun_operator.lifecycle.observation import JobState, Observed

Pod = Mapping[str, Any]
Ending = tuple[str, str | None]
_NEVER_BEGAN = ("StartError", "ContainerCannotRun")
NODE_PATIENCE = timedelta(seconds=60)  # beyond its grace period a pod that is deleted may take so long to end


def observed(pod: Pod, asked: datetime) -> Observed:
    """What the pod shows, but for its log, and for how long it has been so."""
    status = pod.get("status") or {}
    seen = Observed(
        JobState.QUEUED,
        asked,
        job_id=pod["metadata"]["uid"],
        submitted=moment(pod["metadata"].get("creationTimestamp")),
        node=(pod.get("spec") or {}).get("nodeName"),
    )
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "True":
        seen = replace(seen, state=JobState.RUNNING, started=moment(scheduled.get("lastTransitionTime")))
    if (ending := _ending(pod, asked)) is not None:
        reason, message = ending
        ended = _ended_at(pod) or moment(pod["metadata"].get("deletionTimestamp")) or asked
        return replace(seen, state=JobState.ENDED, ended=ended, reason=reason, message=message)
    if pod["metadata"].get("deletionTimestamp"):
        return replace(seen, reason="Terminating", message=f"it is being ended: {_taken(pod)[1]}")
    if seen.state is JobState.QUEUED:
        reason_, message_ = _waiting(scheduled, (pod["metadata"].get("labels") or {}).get(GUESS_LABEL, ""))
        return replace(seen, reason=reason_, message=message_)
    if (stuck := _stuck(status)) is not None:
        return replace(seen, reason=stuck[0], message=stuck[1])
    return seen


def vanished(last: Pod | None, job_id: str | None, asked: datetime, *, cancelled: bool) -> Observed:
    """What is to be said of an allocation whose pod is gone. `last`: the pod as it was seen last."""
    if last is None:
        seen = Observed(JobState.ENDED, asked, job_id=job_id, ended=asked)
    else:
        seen = replace(observed(last, asked), log=None)
        if seen.state is JobState.ENDED:
            return seen
        seen = replace(seen, state=JobState.ENDED, ended=asked)
    reason, message = (Reason.CANCELLED.value, None) if cancelled else _taken(last or {})
    return replace(seen, reason=reason, message=message)


def give_up(seen: Observed, patience: timedelta) -> timedelta | None:
    """How long an allocation may stay as it is before it is given up; None: as long as it likes."""
    stuck = words.STUCK.get(seen.reason or "")
    if stuck is None or seen.state is JobState.ENDED:
        return None
    return words.AT_ONCE if stuck[1] else patience


def has_ended(pod: Pod) -> bool:
    """Whether nothing of it runs any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_over(pod: Pod) -> bool:
    """Whether its training has ended while something else in it may still run."""
    return _terminated(pod, TRAIN) is not None


def started_containers(pod: Pod) -> tuple[tuple[str, bool], ...]:
    """Names of our containers that have a log, in their order, and whether each has ended."""
    found = []
    for each in _statuses(pod):
        state = each.get("state") or {}
        if "running" in state or "terminated" in state:
            found.append((each["name"], "terminated" in state))
    order = [each["name"] for each in [*_listed(pod, "initContainers"), *_listed(pod, "containers")]]
    ours = {each["name"] for each in _listed(pod, "initContainers") if not each.get("restartPolicy")} | {TRAIN}
    return tuple(sorted((each for each in found if each[0] in ours), key=lambda each: order.index(each[0])))


def owes_its_last_line(pod: Pod, container: str) -> bool:
    """Whether an ended container's script wrote that the job is over: it could, and it does when it is the last one."""
    terminated = _terminated(pod, container) or {}
    code = terminated.get("exitCode")
    able = isinstance(code, int) and code < 128 and terminated.get("reason") not in (*_NEVER_BEGAN, rules.OUT_OF_MEMORY)
    return able and (container == TRAIN or code != 0)


def keeps_its_log(pod: Pod) -> bool:
    """Whether its log is on a volume that outlives it."""
    return any("persistentVolumeClaim" in each for each in _listed(pod, "volumes") if each.get("name") == "cache")


def condition(pod: Pod, type_: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == type_), {})


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC) if text else None
    except ValueError:
        return None


def _ending(pod: Pod, asked: datetime) -> Ending | None:
    """How it ended; None: it has not, as far as it says."""
    status = pod.get("status") or {}
    phase, train = status.get("phase"), _terminated(pod, TRAIN)
    if phase == "Succeeded" or (train is not None and train.get("exitCode") == 0):
        return Reason.COMPLETED.value, None
    if phase == "Failed":
        return _failed(pod)
    if train is not None:
        return _exit(TRAIN, train)
    deleted = moment(pod["metadata"].get("deletionTimestamp"))
    if deleted is not None and asked - deleted > NODE_PATIENCE:
        node = (pod.get("spec") or {}).get("nodeName")
        return rules.NODE_LOST, f"its node {node} does not answer, so that the pod could not be ended there"
    return None


def _failed(pod: Pod) -> Ending:
    status = pod.get("status") or {}
    word, said = status.get("reason") or "", status.get("message") or ""
    told = f"{word}: {said}" if word and said else word or said
    if word in words.ENDED_BY:
        return words.ENDED_BY[word], told
    if condition(pod, "DisruptionTarget").get("reason") in words.DISRUPTED_BY:
        return _taken(pod)
    for each in _statuses(pod):
        terminated = (each.get("state") or {}).get("terminated")
        if terminated and terminated.get("exitCode") != 0:
            killed = pod["metadata"].get("deletionTimestamp") and terminated.get("reason") != "OOMKilled"
            return _taken(pod) if killed else _exit(each["name"], terminated)
    if not list(_statuses(pod)):
        return rules.REFUSED, f"the node refused the pod: {told or 'it does not say why'}"
    return Reason.JOB_FAILED.value, told or "the pod failed and does not say why"


def _exit(container: str, terminated: Mapping[str, Any]) -> Ending:
    word, code = terminated.get("reason") or "", terminated.get("exitCode")
    if word == rules.OUT_OF_MEMORY:
        return rules.OUT_OF_MEMORY, f"container {container} used more memory than its limit"
    if word in words.NODE_FAULTS:
        return rules.NODE_LOST, f"{word}: the node lost container {container}, as when it restarts"
    if word in _NEVER_BEGAN:
        said = terminated.get("message") or word
        return rules.MISSING_BUILD_STEPS, f"container {container} did not start, the image needs bash: {said}"
    if container != TRAIN and code == MISSING_BUILD_STEPS:
        said = terminated.get("message") or ""  # else the log's last lines, which may hold anything
        lacks = said if said.startswith(LACKS) else f"{LACKS}what the recipe's build steps install"
        return rules.MISSING_BUILD_STEPS, f"{lacks.removeprefix('speedrun: ')}; spec.pods.image names another"
    killed = f", killed by signal {code - 128}" if isinstance(code, int) and 128 < code < 160 else ""
    return Reason.JOB_FAILED.value, f"container {container} ended with exit code {code}{killed}"


def _taken(pod: Pod) -> Ending:
    """Who takes a pod away that has not ended by itself."""
    target = condition(pod, "DisruptionTarget")
    if target.get("reason") in words.DISRUPTED_BY:
        said = f": {target['message']}" if target.get("message") else ""
        taint = f" ({words.TAINTED})" if target["reason"] == words.BY_TAINT else ""
        return words.DISRUPTED_BY[target["reason"]], f"{target['reason']}{said}{taint}"
    word = (pod.get("status") or {}).get("reason") or ""
    if word in words.ENDED_BY or condition(pod, "Ready").get("reason") == rules.NODE_LOST:
        return words.ENDED_BY.get(word, rules.NODE_LOST), f"{word or rules.NODE_LOST}: the node does not answer"
    return rules.DELETED, "the pod was deleted before training finished, and not by the operator"


def _waiting(scheduled: Mapping[str, Any], guess: str) -> tuple[str | None, str | None]:
    reason, message = scheduled.get("reason"), scheduled.get("message")
    if reason == "Unschedulable":
        return reason, words.why_unschedulable(message or "no node fits", guess)
    if reason == "SchedulingGated":
        return reason, "the pod waits for admission, as by a queue of Kueue (spec.pods.queueName)"
    return reason or "Unscheduled", message


def _stuck(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """A container that waits for what does not come by itself: the word, and message with remedy."""
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (each.get("state") or {}).get("waiting") or {}
        word = waiting.get("reason") or ""
        if word in words.STUCK:
            said = waiting.get("message") or ""
            image = each.get("image") or ""
            named = "" if not image or image in said else f", image {image}"
            return word, f"{word} in container {each.get('name')}{named}: {said} ({words.STUCK[word][0]})"
    return None


def _statuses(pod: Pod) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def _listed(pod: Pod, field: str) -> list[Mapping[str, Any]]:
    return list((pod.get("spec") or {}).get(field) or [])


def _terminated(pod: Pod, container: str) -> Mapping[str, Any] | None:
    for each in _statuses(pod):
        if each.get("name") == container:
            found: Mapping[str, Any] | None = (each.get("state") or {}).get("terminated")
            return found
    return None


def _ended_at(pod: Pod) -> datetime | None:
    times = [moment(((each.get("state") or {}).get("terminated") or {}).get("finishedAt")) for each in _statuses(pod)]
    return max((each for each in times if each is not None), default=None)
