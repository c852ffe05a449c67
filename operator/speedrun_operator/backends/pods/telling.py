"""What is told of an allocation: what its pod shows, with its log, and for how long it has been so.

A log that cannot be read is unknown. It is neither silence nor an end: while the pod is there, it may still be read.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.pods.memory import SETTLE_SECONDS, Memory
from speedrun_operator.backends.pods.observe import give_up
from speedrun_operator.backends.pods.troubles import is_silent, trouble
from speedrun_operator.backends.pods.words import STUCK
from speedrun_operator.diagnosis import rule_of
from speedrun_operator.lifecycle.observation import JobState, Observed

TOLD_SECONDS = 30.0  # a log that cannot be read is worth a word after so long
UNREAD_SECONDS = 3600.0  # and is given up so long after the end


def told(seen: Observed, memory: Memory, grew: bool, now: float, patience: timedelta) -> Observed:
    """`seen` with the log. `grew`: it did at this look, at `now`, monotonic seconds. `patience`: with what is stuck."""
    seen = replace(seen, log=memory.reader.progress, unread=_unread(memory, now))
    if seen.state is JobState.ENDED:
        return _ended(seen, memory, grew, now)
    seen = _with_trouble(seen, memory)
    reason = "Stuck" if seen.reason in STUCK else seen.reason
    since = memory.waits_since if memory.waits_for == reason and memory.waits_since is not None else now
    memory.waits_for, memory.waits_since = reason, since
    memory.ended_since = memory.settles_since = None
    memory.grown_at = now if grew or memory.grown_at is None or not memory.reader.begun else memory.grown_at
    read_at = memory.read_at if memory.read_at is not None else memory.grown_at
    quiet = max(0.0, read_at - memory.grown_at)  # what was not read may be anything but silence
    return replace(
        seen,
        quiet_for=timedelta(seconds=quiet),
        waited_for=timedelta(seconds=now - since) if reason else timedelta(0),
        give_up_after=give_up(seen, patience),
        give_up_as=memory.trouble,
    )


def _with_trouble(seen: Observed, memory: Memory) -> Observed:
    """With the remedy for what is no fault of the spec, which is remembered while the pod is stuck."""
    word, message = seen.reason or "", seen.message or ""
    if word not in STUCK:
        memory.trouble = None
    elif not is_silent(word, message):
        memory.trouble = trouble(word, message)
    rule = rule_of(memory.trouble)
    if rule is None:
        return seen
    words = rule.message.replace(rule.remedy, rule.in_pods or rule.remedy)
    return replace(seen, message=message.replace(f"({STUCK[word][0]})", f"({words})"))


def _unread(memory: Memory, now: float) -> str | None:
    """Why the log has not been readable for a while; the same words all the time."""
    error = memory.reader.error
    if error is None:
        memory.read_at, memory.unread_since, memory.unread = now, None, None
        return None
    if memory.unread_since is None:
        memory.unread_since, memory.unread = now, f"the pod's log cannot be read: {error}"
    return memory.unread if now - memory.unread_since >= TOLD_SECONDS else None


def _ended(seen: Observed, memory: Memory, grew: bool, now: float) -> Observed:
    reader = memory.reader
    if memory.cancelled and seen.reason != Reason.COMPLETED.value:
        seen = replace(seen, reason=Reason.CANCELLED.value, message=None)
    memory.ended_since = memory.ended_since if memory.ended_since is not None else now
    if grew or reader.behind or reader.error is not None or memory.settles_since is None:
        memory.settles_since = now
    given_up = now - memory.settles_since >= SETTLE_SECONDS
    if memory.unread_since is not None:
        most = UNREAD_SECONDS if _by_itself(seen.reason) else SETTLE_SECONDS
        given_up = now - max(memory.unread_since, memory.ended_since) >= most
    log = seen.log if seen.log is not None or not given_up else reader.so_far
    return replace(seen, log=log, log_complete=reader.whole or given_up)


def _by_itself(reason: str | None) -> bool:
    """Whether it ended by itself, so that its log decides. What was taken away is run again, rather than waited for."""
    rule = rule_of(reason)
    return reason != Reason.CANCELLED.value and (rule is None or not rule.infrastructure)
