"""What the operator remembers of one allocation between polls, and how a poll's answer becomes an observation. Pure.

Witnesses, in this order: squeue, sacct, the exit marker that the job's script leaves in the ledger. All of this memory
can be lost: the next operator reads the log again from its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.slurm.commands import Section
from speedrun_operator.backends.slurm.queue import (
    SAY_ENDED,
    Row,
    end_reason,
    epoch,
    parse_sacct,
    parse_squeue,
)
from speedrun_operator.lifecycle.observation import JobState, Observed
from speedrun_operator.progress import ParserState, feed
from speedrun_operator.progress.allocation import AllocationProgress, add

ACCOUNTING_OFF = "Slurm accounting storage is disabled"
SETTLE_SECONDS = 5.0  # a log may still grow on its way through a shared file system after the job's end


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log: `size` of the file, `offset` of `data` in it. `shrunk`: the file is another one now."""

    size: int
    offset: int
    data: bytes = field(repr=False)
    shrunk: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll's answer. `queue_known` False: squeue could not be asked, so nothing is known of any job.

    `accounting_known` False: sacct could not be asked. Where accounting is off there is nothing to ask, and it is True.
    """

    now: datetime
    queue_known: bool
    accounting_known: bool
    rows: Mapping[str, Sequence[Row]]
    ended_rows: Mapping[str, Sequence[Row]]
    owners: Mapping[str, str]
    exits: Mapping[str, Mapping[str, str]]
    logs: Mapping[str, LogPart]


@dataclass(frozen=True, slots=True)
class Memory:
    """One allocation's log position, what its log says, and since when it is ended or unseen (monotonic seconds)."""

    log_format: str
    offset: int = 0
    parser: ParserState | None = None
    progress: AllocationProgress = field(default_factory=AllocationProgress)
    caught_up: bool = False
    size: int = 0
    ended_since: float | None = None
    unseen_since: float | None = None


def read_poll(sections: Sequence[Section], prefix: str, names: Sequence[str]) -> Poll | None:
    """A poll's sections as a Poll; None when the answer is not whole."""
    if not sections or sections[-1].words != ("done",):
        return None
    now: datetime | None = None
    queue_known = accounting_known = False
    rows: list[Row] = []
    ended: list[Row] = []
    owners: dict[str, str] = {}
    exits: dict[str, dict[str, str]] = {}
    logs: dict[str, LogPart] = {}
    for section in sections:
        match section.words:
            case ("now", seconds):
                now = epoch(seconds)
            case ("squeue", code):
                queue_known = code == "0"
                rows = parse_squeue(section.body.decode(errors="replace"), prefix) if queue_known else []
            case ("sacct", code):
                said = section.body.decode(errors="replace")
                accounting_known = code == "0" or ACCOUNTING_OFF in said
                ended = parse_sacct(said, names) if code == "0" else []
            case ("owner", name, job):
                owners[name] = job
            case ("exit", name, *fields):
                exits[name] = dict(part.split("=", 1) for part in fields if "=" in part)
            case ("log", name, size, offset, *shrunk) if size.isdecimal() and offset.isdecimal():
                logs[name] = LogPart(int(size), int(offset), section.body, bool(shrunk))
            case _:
                pass
    if now is None:
        return None
    return Poll(now, queue_known, accounting_known, _by_name(rows), _by_name(ended), owners, exits, logs)


def _by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found


def absorb(memory: Memory, poll: Poll, name: str, monotonic: float) -> tuple[Memory, Observed | None]:
    """`memory` with one poll's answer, and what it shows; None where the answer says nothing of the allocation."""
    memory = _with_log(memory, poll.logs.get(name))
    row = _choose(poll.rows.get(name, ()), poll.owners.get(name))
    if row is None and not poll.queue_known:
        return memory, None
    if row is None:
        row = _choose(poll.ended_rows.get(name, ()), poll.owners.get(name))
    exit_ = poll.exits.get(name)
    if row is None and exit_ is None and not poll.accounting_known:
        return replace(memory, unseen_since=None, ended_since=None), Observed(JobState.UNSEEN, poll.now)
    if row is None and exit_ is None:
        since = memory.unseen_since if memory.unseen_since is not None else monotonic
        memory = replace(memory, unseen_since=since, ended_since=None)
        return memory, Observed(JobState.UNSEEN, poll.now, unseen_for=timedelta(seconds=monotonic - since))
    memory = replace(memory, unseen_since=None)
    seen = _of_row(row, poll.now) if row is not None else _of_exit(exit_ or {}, poll.now)
    if seen.state is not JobState.ENDED:
        return replace(memory, ended_since=None), replace(seen, log=_log(memory))
    since = memory.ended_since if memory.ended_since is not None else monotonic
    memory = replace(memory, ended_since=since)
    read_all = memory.offset >= memory.size
    complete = read_all and (memory.progress.exit_code is not None or monotonic - since >= SETTLE_SECONDS)
    return memory, replace(seen, log=_log(memory), log_complete=complete)


def _log(memory: Memory) -> AllocationProgress | None:
    return memory.progress if memory.caught_up else None


def _with_log(memory: Memory, part: LogPart | None) -> Memory:
    if part is None:
        return replace(memory, caught_up=True)
    if part.shrunk:
        return Memory(memory.log_format, ended_since=memory.ended_since, size=part.size)
    if part.offset != memory.offset:
        return memory
    parser, records = feed(memory.parser or ParserState(memory.log_format), part.data)
    progress = memory.progress
    for record in records:
        progress = add(progress, record)
    offset = memory.offset + len(part.data)
    return replace(
        memory,
        offset=offset,
        parser=parser,
        progress=progress,
        size=part.size,
        caught_up=memory.caught_up or offset >= part.size,
    )


def _choose(rows: Sequence[Row], owner: str | None) -> Row | None:
    """Of several jobs with one name, the one that owns the allocation; before any started, the newest."""
    for row in rows:
        if row.job_id == owner:
            return row
    return max(rows, key=lambda each: int(each.job_id), default=None)


def _of_row(row: Row, now: datetime) -> Observed:
    reason: str | None = row.waits_for
    message: str | None = None
    ended: datetime | None = None
    if row.state is JobState.ENDED:
        said = end_reason(row.word)
        reason, message = said.value, SAY_ENDED.get(said)
        ended = row.ended or now
    return Observed(
        state=row.state,
        asked=now,
        job_id=row.job_id,
        node=row.node,
        submitted=row.submitted,
        started=row.started,
        ended=ended,
        reason=reason,
        message=message,
    )


def _of_exit(marker: Mapping[str, str], now: datetime) -> Observed:
    code = marker.get("exit", "")
    reason = Reason.COMPLETED if code == "0" else Reason.JOB_FAILED
    at = epoch(marker.get("time", ""))
    return Observed(
        state=JobState.ENDED,
        asked=now,
        job_id=marker.get("job"),
        ended=at or now.astimezone(UTC),
        reason=reason.value,
        message=None if code == "0" else f"the job's script ended with exit code {code or 'unknown'}",
    )
