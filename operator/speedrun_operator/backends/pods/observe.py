"""A pod as the API server describes it → what is to be said of its allocation. Pure.

Phase alone says too little: it stays Running when the node is lost or a sidecar runs on, and a pod that the kubelet
refuses has no container statuses at all. What a pod does not say stays unsaid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.pods import words
from speedrun_operator.backends.pods.endings import NEVER_BEGAN, ending, taken
from speedrun_operator.backends.pods.fields import (
    Pod,
    condition,
    ended_at,
    listed,
    moment,
    state,
    statuses,
    steps_before,
    terminated,
)
from speedrun_operator.backends.pods.places import GUESS_LABEL, TRAIN
from speedrun_operator.diagnosis import pods as rules
from speedrun_operator.lifecycle.observation import JobState, Observed

UNSCHEDULED = "Unscheduled"  # no scheduler has said anything of it


def observed(pod: Pod, asked: datetime, overdue: timedelta = timedelta(0)) -> Observed:
    """What the pod shows, but for its log, and for how long it has been so.

    `overdue`: it was deleted, and so long ago it was to have ended.
    """
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
    if (end := ending(pod, overdue)) is not None:
        reason, message = end
        ended = ended_at(pod) or moment(pod["metadata"].get("deletionTimestamp")) or asked
        return replace(seen, state=JobState.ENDED, ended=ended, reason=reason, message=message)
    if pod["metadata"].get("deletionTimestamp"):
        return replace(seen, reason="Terminating", message=f"it is being ended: {taken(pod)[1]}")
    if seen.state is JobState.QUEUED:
        reason_, message_ = _waiting(scheduled, (pod["metadata"].get("labels") or {}).get(GUESS_LABEL, ""))
        return replace(seen, reason=reason_, message=message_)
    if (stuck := _stuck(pod)) is not None:
        return replace(seen, reason=stuck[0], message=stuck[1])
    return seen


def vanished(last: Pod | None, job_id: str | None, asked: datetime, *, cancelled: bool, witnessed: bool) -> Observed:
    """What is to be said of an allocation whose pod is gone. `last`: the pod as it was seen last.

    `witnessed`: the API server told its deletion. Where it did not, nobody knows who took a pod away that was well.
    """
    if last is None:
        seen = Observed(JobState.ENDED, asked, job_id=job_id, ended=asked)
    else:
        seen = replace(observed(last, asked), log=None)
        if seen.state is JobState.ENDED:
            return seen
        seen = replace(seen, state=JobState.ENDED, ended=asked)
    if cancelled:
        return replace(seen, reason=Reason.CANCELLED.value, message=None)
    reason, message = taken(last or {"metadata": {}})
    known = witnessed or (last is not None and last["metadata"].get("deletionTimestamp"))
    if reason == rules.DELETED and not known:
        reason, message = rules.GONE, "the pod was gone when it was looked for, and nobody saw why"
    return replace(seen, reason=reason, message=message)


def give_up(seen: Observed, patience: timedelta) -> timedelta | None:
    """How long an allocation may stay as it is before it is given up; None: as long as it likes."""
    stuck = words.STUCK.get(seen.reason or "")
    if stuck is None or seen.state is JobState.ENDED:
        return None
    return words.AT_ONCE if stuck[1] else patience


def started_containers(pod: Pod) -> tuple[tuple[str, bool], ...]:
    """Names of our containers that have a log, in their order, and whether each has ended."""
    found = []
    for each in statuses(pod):
        now = each.get("state") or {}
        if "running" in now or "terminated" in now:
            found.append((each["name"], "terminated" in now))
    order = [each["name"] for each in [*listed(pod, "initContainers"), *listed(pod, "containers")]]
    ours = steps_before(pod) | {TRAIN}
    return tuple(sorted((each for each in found if each[0] in ours), key=lambda each: order.index(each[0])))


def owes_its_last_line(pod: Pod, container: str) -> bool:
    """Whether an ended container's script wrote that the job is over: it could, and it does when it is the last one."""
    end = terminated(pod, container) or {}
    code = end.get("exitCode")
    able = isinstance(code, int) and code < 128 and end.get("reason") not in (*NEVER_BEGAN, rules.OUT_OF_MEMORY)
    return able and (container == TRAIN or code != 0)


def keeps_its_log(pod: Pod) -> bool:
    """Whether its log is on a volume that outlives it."""
    return any("persistentVolumeClaim" in each for each in listed(pod, "volumes") if each.get("name") == "cache")


def _waiting(scheduled: Mapping[str, Any], guess: str) -> tuple[str | None, str | None]:
    reason, message = scheduled.get("reason"), scheduled.get("message")
    if reason == "Unschedulable":
        return reason, words.why_unschedulable(message or "no node fits", guess)
    if reason == "SchedulingGated":
        return reason, "the pod waits for admission, as by a queue of Kueue (spec.pods.queueName)"
    return reason or UNSCHEDULED, message


def _stuck(pod: Pod) -> tuple[str, str] | None:
    """A container that waits for what does not come by itself: the word, and message with remedy.

    Once training has begun, what runs beside it stops nothing.
    """
    if not {"running", "terminated"}.isdisjoint(state(pod, TRAIN)):
        return None
    for each in statuses(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        word = waiting.get("reason") or ""
        if word in words.STUCK:
            said = waiting.get("message") or ""
            image = each.get("image") or ""
            named = "" if not image or image in said else f", image {image}"
            return word, f"{word} in container {each.get('name')}{named}: {said} ({words.STUCK[word][0]})"
    return None
