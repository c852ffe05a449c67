"""What became of a job that makes a cache entry: a reason with words that a person can act on, and whether another job
follows it. As of allocations, but for remedies: such a job is bounded by settings, and belongs to no Speedrun.
"""

from __future__ import annotations

import re
from datetime import datetime

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import SLURM_WORD
from speedrun_operator.diagnosis import Retry, diagnose, rule_of
from speedrun_operator.diagnosis.pending import NEVER, waits_for
from speedrun_operator.diagnosis.refusals import remedy
from speedrun_operator.lifecycle.causes import nodes_restarted
from speedrun_operator.lifecycle.observation import Observed
from speedrun_operator.lifecycle.situation import Policy

# What a job that makes an entry may be tried again for. Whoever cancelled it is not waiting for it: this Speedrun is.
_AGAIN = frozenset({
    Reason.NODE_FAILURE.value, Reason.PREEMPTED.value, Reason.LAUNCH_FAILED.value, Reason.CANCELLED.value,
    Reason.CACHE_MISSING.value,
})  # fmt: skip
_BOUNDS = {
    Reason.TIME_LIMIT.value: "its job reached its time limit: raise the setting prepare.minutes",
    Reason.OUT_OF_MEMORY.value: "its job used more memory than it was given: raise the setting prepare.memory_gib",
}
_SMALLER = "lower the settings prepare.cpus and prepare.memory_gib"
_NEVER = {
    "BadConstraints": f"no node has what it asks for: {_SMALLER}",
    "PartitionConfig": f"its partition has no node such as it asks for: {_SMALLER}",
    "PartitionTimeLimit": "its partition allows less time: lower the setting prepare.minutes",
}
_REFUSED = (
    (
        "partition name",
        "the cluster has no such partition: use one that `sinfo` lists as spec.slurm.partition, "
        "or as the setting prepare.partition, which goes first",
    ),
    ("time limit is invalid", "lower the setting prepare.minutes: the partition allows less"),
    ("node configuration is not available", f"no node of the partition has so many CPUs or so much memory: {_SMALLER}"),
    ("accounting/QOS policy", f"{_SMALLER}, or use another account or qos"),
)


def refused(said: str) -> str:
    """What sbatch said of a job that it refused for good, with what a person can do about it."""
    advice = next((words for text, words in _REFUSED if text in said), None) or remedy(said)
    return f"{said}; {advice}" if advice else said


def waits(job: Observed) -> str | None:
    """What a queued job waits for, in words; None where Slurm says nothing."""
    return _NEVER.get(job.reason) or waits_for(job.reason) if job.reason else None


def never_runs(job: Observed, policy: Policy) -> bool:
    """Whether a queued job can never start as it is, and has shown so for long enough."""
    return job.reason in NEVER and job.waited_for >= policy.never_after


def cause(job: Observed, controller_started: datetime | None) -> tuple[str, str]:
    """Reason and words of a job that ended without its entry. `controller_started`: Slurm's controller, last."""
    missing = job.log.missing if job.log else None
    if missing is not None:
        return Reason.CACHE_MISSING.value, missing
    if job.reason == Reason.COMPLETED.value:
        return Reason.CACHE_MISSING.value, "the entry is not where its job put it"
    ended = job.reason or Reason.JOB_FAILED.value
    if nodes_restarted(job, controller_started):
        ended = Reason.NODES_RESTARTED.value
    rule = diagnose(ended, job.log.symptoms if job.log else ())
    if rule is not None and rule.reason in _BOUNDS:
        return rule.reason, _BOUNDS[rule.reason]
    if ended == Reason.SUBMISSION_REJECTED.value:
        return ended, f"{job.message}; {_SMALLER}"
    if rule is None or rule.reason == Reason.JOB_FAILED.value:
        return ended, job.message or "its job failed"
    if rule.reason == Reason.CANCELLED.value:  # another one follows, so the remedy for a run is none here
        return rule.reason, job.message or rule.says
    return rule.reason, rule.message


def broken_node(job: Observed, reason: str) -> str | None:
    """The node of a job that ended for a fault of its node."""
    rule = rule_of(reason)
    broken = rule is not None and rule.avoids and job.node is not None and re.fullmatch(SLURM_WORD, job.node)
    return job.node if broken else None


def is_free(reason: str) -> bool:
    """Whether what ended a job is outside `backoffLimit`, and has a bound of its own."""
    rule = rule_of(reason)
    return reason == Reason.JOB_LOST.value or (rule is not None and rule.retry is Retry.FREE)


def may_follow(reason: str) -> bool:
    """Whether another job may bring what one that ended so did not."""
    rule = rule_of(reason)
    return reason in _AGAIN or is_free(reason) or (rule is not None and rule.retry is not Retry.NEVER)
