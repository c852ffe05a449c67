"""How a pod ended, and who takes one away that has not: the reason and words for it. Pure.

What `train` came to goes first, for other containers end when it has. What was killed while the pod was being taken
away did not fail by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.pods import words
from speedrun_operator.backends.pods.fields import (
    Pod,
    condition,
    deletion_asked,
    moment,
    statuses,
    steps_before,
    terminated,
)
from speedrun_operator.backends.pods.places import LACKS, MISSING_BUILD_STEPS, TRAIN
from speedrun_operator.diagnosis import pods as rules

Ending = tuple[str, str | None]
NEVER_BEGAN = ("StartError", "ContainerCannotRun")
NODE_PATIENCE = timedelta(seconds=60)  # beyond its grace period a pod that is deleted may take so long to end
_KILLED = (137, 143)  # SIGKILL, and what our scripts make of SIGTERM
_SKEW = timedelta(seconds=2)  # between the node's clock and the API server's
_NO_BASH = re.compile(r"""exec: "bash": .*(not found|no such file)|executable file [`'"]bash['"`] not found""")


def ending(pod: Pod, overdue: timedelta) -> Ending | None:
    """How it ended; None: it has not, as far as it says. `overdue`: so long ago it was to have ended, if it was."""
    status = pod.get("status") or {}
    phase, train = status.get("phase"), terminated(pod, TRAIN)
    if phase == "Succeeded" or (train is not None and train.get("exitCode") == 0):
        return Reason.COMPLETED.value, None
    if phase == "Failed":
        return _failed(pod)
    if train is not None:
        return taken(pod) if _was_killed(pod, train) else _exit(TRAIN, train)
    if overdue <= NODE_PATIENCE:
        return None
    node = (pod.get("spec") or {}).get("nodeName")
    if node is None:
        return taken(pod)
    return rules.NODE_LOST, (
        f"the pod was to end, and its node {node} has not said that it did: the node does not answer, or a process "
        "hangs there"
    )


def taken(pod: Pod) -> Ending:
    """Who takes a pod away that has not ended by itself."""
    target = condition(pod, "DisruptionTarget")
    if target.get("reason") in words.DISRUPTED_BY:
        said = f": {target['message']}" if target.get("message") else ""
        taint = f" ({words.TAINTED})" if target["reason"] == words.BY_TAINT else ""
        return words.DISRUPTED_BY[target["reason"]], f"{target['reason']}{said}{taint}"
    if (by_queue := condition(pod, words.BY_KUEUE)).get("status") == "True":
        return rules.PREEMPTED, f"Kueue took the pod away: {by_queue.get('message') or by_queue.get('reason')}"
    word = (pod.get("status") or {}).get("reason") or ""
    if word in words.ENDED_BY or condition(pod, "Ready").get("reason") == rules.NODE_LOST:
        return words.ENDED_BY.get(word, rules.NODE_LOST), f"{word or rules.NODE_LOST}: the node does not answer"
    return rules.DELETED, "the pod was deleted before training finished, and not by the operator"


def _failed(pod: Pod) -> Ending:
    status = pod.get("status") or {}
    word, said = status.get("reason") or "", status.get("message") or ""
    told = f"{word}: {said}" if word and said else word or said
    if word == rules.EVICTED and words.SHARED_MEMORY.search(said):
        return rules.SHARED_MEMORY_FULL, told
    if word in words.ENDED_BY:
        return words.ENDED_BY[word], told
    found = _culprit(pod)
    if found is not None and not _was_killed(pod, found[1]) and found[1].get("reason") not in words.NODE_FAULTS:
        return _exit(*found)
    if words.REFUSED.match(word) or said.startswith("Pod was rejected"):
        return rules.REFUSED, f"the node refused the pod: {told}"
    if condition(pod, "DisruptionTarget").get("reason") in words.DISRUPTED_BY:
        return taken(pod)
    if found is not None:
        return taken(pod) if _was_killed(pod, found[1]) else _exit(*found)
    if pod["metadata"].get("deletionTimestamp"):
        return taken(pod)
    if not list(statuses(pod)):
        return rules.REFUSED, f"the node refused the pod: {told or 'it does not say why'}"
    return Reason.JOB_FAILED.value, told or "the pod failed and does not say why"


def _culprit(pod: Pod) -> tuple[str, Mapping[str, Any]] | None:
    """The container by which it failed, and its end: `train`, else a step before it, else whatever there is."""
    before, ended = steps_before(pod), []
    for each in statuses(pod):
        end = (each.get("state") or {}).get("terminated")
        if end and end.get("exitCode") != 0:
            ended.append((each["name"], end))
    return min(ended, key=lambda each: 0 if each[0] == TRAIN else 1 if each[0] in before else 2, default=None)


def _was_killed(pod: Pod, end: Mapping[str, Any]) -> bool:
    """Whether a container was killed since the pod is taken away: by a signal, and not before somebody did that."""
    if end.get("exitCode") not in _KILLED or end.get("reason") in (rules.OUT_OF_MEMORY, *words.NODE_FAULTS):
        return False
    signs = [condition(pod, "DisruptionTarget"), condition(pod, words.BY_KUEUE)]
    signs = [each for each in signs if each.get("status") == "True"]
    since = [moment(each.get("lastTransitionTime")) for each in signs]
    if pod["metadata"].get("deletionTimestamp"):
        since.append(deletion_asked(pod))
    finished = moment(end.get("finishedAt"))
    return any(finished is None or each is None or finished >= each - _SKEW for each in since)


def _exit(container: str, end: Mapping[str, Any]) -> Ending:
    word, code, said = end.get("reason") or "", end.get("exitCode"), end.get("message") or ""
    if word == rules.OUT_OF_MEMORY or (word in NEVER_BEGAN and "OOM-killed" in said):
        return rules.OUT_OF_MEMORY, f"container {container} used more memory than its limit"
    if word in words.NODE_FAULTS:
        return rules.NODE_LOST, f"{word}: the node lost container {container}, as when it restarts"
    if word in NEVER_BEGAN:
        if _NO_BASH.search(said):
            return rules.MISSING_BUILD_STEPS, f"container {container} did not start, the image needs bash: {said}"
        return rules.NOT_STARTED, f"container {container} did not start: {said or word}"
    # Where the container could not write it, these are the log's last lines, which may hold anything else.
    lacks = next((line for line in said.splitlines() if line.startswith(LACKS)), None)
    if container != TRAIN and code == MISSING_BUILD_STEPS and lacks is not None:
        return rules.MISSING_BUILD_STEPS, f"{lacks.removeprefix('speedrun: ')}; spec.pods.image names another"
    killed = f", killed by signal {code - 128}" if isinstance(code, int) and 128 < code < 160 else ""
    return Reason.JOB_FAILED.value, f"container {container} ended with exit code {code}{killed}"
