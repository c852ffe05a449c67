"""From a job's end and the signs in its log to one rule.

A scheduler's own word for the end (a node failed, preempted, the time limit) goes first: what a program prints when it
is taken away says nothing. Otherwise the earliest specific sign wins, then a general one; wrappers come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from speedrun_operator.api.phases import Reason
from speedrun_operator.diagnosis import containers, downloads, gpus, pods, scheduler
from speedrun_operator.diagnosis.rule import Rule, Weight

RULES: tuple[Rule, ...] = (*scheduler.RULES, *containers.RULES, *downloads.RULES, *gpus.RULES, *pods.RULES)
"""All of them. Where one line has signs of several, the first of these is meant."""

_BY_REASON = {rule.reason: rule for rule in RULES}
_BY_END = {word: rule for rule in RULES for word in rule.ends}
# Flat, since every line of every log goes through it: about 10 microseconds a line.
_SIGNS = tuple(
    (sign.text, sign, rule.reason)
    for weight in Weight
    for rule in RULES
    if rule.weight is weight
    for sign in rule.signs
)
# Slurm calls some ends a cancellation that its own line in the log tells apart.
_KINDS_OF_CANCELLATION = frozenset({
    Reason.TIME_LIMIT.value, Reason.PREEMPTED.value, Reason.NODE_FAILURE.value, "Requeued", "HardwareMemory",
})  # fmt: skip
_ITS_OWN_END = (None, Reason.COMPLETED.value, Reason.JOB_FAILED.value)


def sign_of(line: str) -> str | None:
    """The reason that a line of a log is a sign of; None for most lines."""
    for text, sign, reason in _SIGNS:
        if text in line and sign.is_in(line):
            return reason
    return None


def rule_of(reason: str | None) -> Rule | None:
    """The rule of a reason that a status holds."""
    return _BY_REASON.get(reason) if reason is not None else None


def for_pods(reason: str | None, message: str | None) -> str | None:
    """A message of a rule with the remedy as it is for pods."""
    rule = rule_of(reason)
    if rule is None or message is None or not rule.in_pods:
        return message
    return message.replace(rule.remedy, rule.in_pods)


def diagnose(ended: str | None, signs: Sequence[str]) -> Rule | None:
    """The cause of an end. None: there is no sign of any.

    `ended`: the backend's word for how the job ended. `signs`: reasons that `sign_of` saw in the log, in their order.
    """
    found = [rule for each in signs if (rule := _BY_REASON.get(each))]
    if ended == Reason.CANCELLED.value:
        told = next((rule for rule in found if rule.reason in _KINDS_OF_CANCELLATION), None)
        return told or _BY_END[ended]
    if ended in _BY_END:
        return _BY_END[ended]
    return _best(found) if ended in _ITS_OWN_END else None


def _best(found: Iterable[Rule]) -> Rule | None:
    order = list(Weight)
    return min(found, key=lambda rule: order.index(rule.weight), default=None)
