"""What a queued job waits for, in words. Slurm's words are those of https://slurm.schedmd.com/job_reason_codes.html."""

from __future__ import annotations

import re

# `{gpus}` is what kind of node it waits for: "H100 node", or "node".
_WAITS = {
    "Resources": "no {gpus} is free; it starts when one is",
    "Priority": "jobs of higher priority go first",
    "BeginTime": "it was put off, as after a requeue; it starts by itself",
    "Cleaning": "what an earlier start of it left is being cleaned up",
    "Prolog": "the node is being prepared for it",
    "Licenses": "a licence that it asks for is not free",
    "Reservation": "its reservation has not begun yet",
    "Dependency": "it depends on a job that has not ended",
    "NodeDown": "a node that it asks for is down",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved; it starts when they are back",
    "PartitionDown": "its partition is down; an administrator must open it",
    "PartitionInactive": "its partition is inactive; an administrator must open it",
    "JobHeldUser": "it is held: `scontrol release` lets it go on",
    "JobHeldAdmin": "it is held by an administrator, who must release it",
    "JobHoldMaxRequeue": "it is held after too many requeues: `scontrol release` lets it go on",
}

_NEVER = {
    "BadConstraints": "no node has what spec.slurm.constraint and spec.gpus ask for",
    "PartitionConfig": "its partition has no nodes such as it asks for: see spec.slurm.partition and spec.gpus",
    "PartitionNodeLimit": "its partition allows fewer nodes: see spec.slurm.partition",
    "PartitionTimeLimit": "its partition allows less time: lower spec.timeLimitSeconds or see spec.slurm.partition",
    "InvalidAccount": "its account is not valid: see spec.slurm.account",
    "InvalidQOS": "its quality of service is not valid: see spec.slurm.qos",
    "AccountNotAllowed": "its account may not use the partition: see spec.slurm.account and spec.slurm.partition",
    "DependencyNeverSatisfied": "it depends on a job that failed",
    "DeadLine": "it cannot end before its deadline",
}

NEVER = frozenset(_NEVER)
"""Pending reasons of jobs that can never run as they are."""

_LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max|Min|Job|Resource|Time|[A-Z])\w*|Max\w+Per\w+|Association\w+Limit|JobArray\w+")
_HELD = "launch failed requeued held"


def waits_for(reason: str, gpu_type: str | None = None) -> str:
    """What a job with this pending reason waits for; the reason itself where it is a new one."""
    if _HELD in reason:
        return "it is held after a failed launch: `scontrol release` lets it go on"
    word = re.match(r"\w*", reason.strip().removeprefix("("))
    name = word[0] if word else ""
    if words := _WAITS.get(name) or _NEVER.get(name):
        gpus = f"{gpu_type} node" if gpu_type else "node"
        named = re.search(r"UnavailableNodes:(\S+?)\)?$", reason)
        return words.format(gpus=gpus) + (f" ({named[1]})" if named else "")
    if _LIMIT.fullmatch(name):
        return f"a limit of the account or the quality of service is reached ({name})"
    return reason
