"""What the operator remembers of one allocation between polls, and how a poll's answer becomes an observation. Pure.

Witnesses, in this order: squeue, sacct, the exit marker that the job's script leaves in the ledger. sacct is a witness
of ends only: what it calls running and squeue does not know is a job that Slurm lost. The marker says that a signal
ended the job, but only accounting says why (cancelled, preempted, time limit), so that is given some time.
All of this memory can be lost: the next operator reads the log again from its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.reading import Reading
from speedrun_operator.backends.slurm.answer import ExitMarker, LogPart, Poll
from speedrun_operator.backends.slurm.queue import SAY_TIME_LIMIT, Row, number
from speedrun_operator.backends.slurm.script import LIMIT_SIGNAL
from speedrun_operator.lifecycle.observation import JobState, Observed
from speedrun_operator.progress.allocation import AllocationProgress

ACCOUNTING_SECONDS = 120.0  # how far behind a job's end sacct may be
SIGNALLED = 128  # exit codes above it are those of signals
FENCE = "cancelled"  # the owner of an allocation that was cancelled before any job took it
SETTLE_SECONDS = 5.0  # a log may still grow on its way through a shared file system after the job's end
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Memory:
    """One allocation's log as far as it was read, and since when it is ended, unseen, or waits (monotonic seconds).

    `size` is the log's when it was last looked at; `caught_up`: all that was there at first has been read; `grown_at`:
    when the log of the running job last grew; `stale`: an exit marker that an earlier start of the job left; `owner`:
    as the ledger last said it.
    """

    reading: Reading
    caught_up: bool = False
    size: int = 0
    ended_since: float | None = None
    unseen_since: float | None = None
    grown_at: float | None = None
    waits_for: str | None = None
    waits_since: float | None = None
    stale: ExitMarker | None = None
    owner: str | None = None

    @property
    def behind(self) -> bool:
        """Whether the log holds more than was read."""
        return self.reading.offset < self.size

    def unanswered(self) -> Memory:
        """After a poll that said nothing: absence counts only over answers in a row."""
        return replace(self, unseen_since=None)


def absorb(memory: Memory, poll: Poll, name: str, monotonic: float) -> tuple[Memory, Observed]:
    """`memory` with the answer of a poll whose queue is known, and what it shows of the allocation `name`."""
    before = memory.size
    memory = _with_log(memory, poll.logs.get(name))
    grew = memory.size != before
    owner, marker = poll.owners.get(name), poll.exits.get(name)
    if owner != memory.owner or grew:  # a job began, or is at work: before, it could not be missed
        memory = replace(memory.unanswered(), owner=owner)
    row = _choose(poll.rows.get(name, ()), owner)
    if row is None:
        ends = [each for each in poll.accounted.get(name, ()) if each.state is JobState.ENDED]
        row = _choose(ends, owner)
    elif row.state is JobState.QUEUED:
        memory = replace(memory, stale=marker)  # it was requeued
    if marker == memory.stale:
        marker = None
    if row is not None:
        seen = _of_row(row, poll.now)
    elif marker is not None:
        seen = _of_marker(marker, poll.now)
    elif poll.accounting_known:
        since = memory.unseen_since if memory.unseen_since is not None else monotonic
        unseen_for = timedelta(seconds=monotonic - since)
        memory = replace(memory, unseen_since=since, ended_since=None)
        return memory, replace(_unseen(owner, poll.now), log=_log(memory), unseen_for=unseen_for)
    else:
        return replace(memory.unanswered(), ended_since=None), replace(_unseen(owner, poll.now), log=_log(memory))
    seen = replace(seen, log=_log(memory))
    if seen.state is not JobState.ENDED:
        return _alive(replace(memory, unseen_since=None, ended_since=None), seen, grew, monotonic)
    since = memory.ended_since if memory.ended_since is not None else monotonic
    memory = replace(memory, unseen_since=None, ended_since=since)
    never_ran = row is not None and row.started is None and memory.size == 0
    settled = never_ran or memory.reading.progress.exit_code is not None or monotonic - since >= SETTLE_SECONDS
    if row is None and marker is not None and marker.code > SIGNALLED and not poll.accounting_off:
        settled = monotonic - since >= ACCOUNTING_SECONDS
    seen = replace(seen, log_complete=settled and not memory.behind)
    if memory.reading.progress.at_limit and seen.reason != Reason.COMPLETED.value:
        seen = replace(seen, reason=Reason.TIME_LIMIT.value, message=SAY_TIME_LIMIT)
    if (missed := memory.reading.progress.missing) is not None:
        seen = replace(seen, reason=Reason.CACHE_MISSING.value, message=f"the job missed a cache entry: {missed}")
    return memory, seen


def _alive(memory: Memory, seen: Observed, grew: bool, monotonic: float) -> tuple[Memory, Observed]:
    """With how long its log has been quiet while it runs, or how long it has waited for the same reason."""
    if seen.state is JobState.RUNNING:
        grown_at = monotonic if grew or memory.grown_at is None else memory.grown_at
        memory = replace(memory, grown_at=grown_at, waits_for=None, waits_since=None)
        return memory, replace(seen, quiet_for=timedelta(seconds=monotonic - grown_at))
    since = memory.waits_since if memory.waits_for == seen.reason and memory.waits_since is not None else monotonic
    memory = replace(memory, grown_at=None, waits_for=seen.reason, waits_since=since)
    return memory, replace(seen, waited_for=timedelta(seconds=monotonic - since))


def _log(memory: Memory) -> AllocationProgress | None:
    return memory.reading.progress if memory.caught_up else None


def _with_log(memory: Memory, part: LogPart | None) -> Memory:
    if part is None:
        return replace(memory, caught_up=True)
    if part.shrunk:
        return replace(memory, reading=Reading(memory.reading.log_format), caught_up=False, size=part.size)
    if part.offset != memory.reading.offset:  # an answer to an older question
        return replace(memory, size=max(memory.size, part.size))
    reading = memory.reading.after(part.data)
    return replace(memory, reading=reading, size=part.size, caught_up=memory.caught_up or reading.offset >= part.size)


def _choose(rows: Sequence[Row], owner: str | None) -> Row | None:
    """The job that has the allocation. Before one has it: one that still may, rather than one that ended; the newest.

    Once a job has it, no other says anything of it: two can exist after an unknown submission.
    """
    if owner is not None and number(owner) is not None:
        rows = [row for row in rows if row.job_id == owner]
    return max(
        rows,
        key=lambda row: (row.state is not JobState.ENDED, row.submitted or _LONG_AGO, int(row.job_id)),
        default=None,
    )


def _unseen(owner: str | None, now: datetime) -> Observed:
    """No job is known; the ledger may still tell whether one ever began."""
    began = owner if owner is not None and number(owner) is not None else None
    return Observed(JobState.UNSEEN, now, job_id=began, fenced=owner == FENCE)


def _of_row(row: Row, now: datetime) -> Observed:
    reason, message = row.why
    return Observed(
        state=row.state,
        asked=now,
        job_id=row.job_id,
        node=row.node,
        submitted=row.submitted,
        started=row.started,
        ended=(row.ended or now) if row.state is JobState.ENDED else None,
        reason=reason,
        message=message,
    )


def _of_marker(marker: ExitMarker, now: datetime) -> Observed:
    reason, message = Reason.COMPLETED, None
    if marker.signal == LIMIT_SIGNAL:
        reason, message = Reason.TIME_LIMIT, SAY_TIME_LIMIT
    elif marker.signal is not None:
        reason = Reason.CANCELLED
        message = f"SIG{marker.signal} ended the job, and Slurm's accounting does not say who sent it, or why"
    elif marker.code != 0:
        reason, message = Reason.JOB_FAILED, f"the job's script ended with exit code {marker.code}"
    return Observed(
        state=JobState.ENDED,
        asked=now,
        job_id=marker.job_id or None,
        ended=marker.at or now,
        reason=reason.value,
        message=message,
    )
