"""One poll's answer, read from its sections: what squeue, sacct, the ledgers and the logs said. Pure.

Nothing on stdout makes the reading fail: what cannot be read was not said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from speedrun_operator.backends.slurm.commands import Section
from speedrun_operator.backends.slurm.queue import (
    ACCOUNTING_OFF,
    Row,
    epoch,
    number,
    parse_sacct,
    parse_squeue,
    read_storage,
)
from speedrun_operator.preparation.manifest import Manifest, read_manifest
from speedrun_operator.preparation.storage import Storage


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log: `size` of the file, `offset` of `data` in it. `shrunk`: the file is another one now."""

    size: int
    offset: int
    data: bytes = field(repr=False)
    shrunk: bool = False


@dataclass(frozen=True, slots=True)
class ExitMarker:
    """What a job's script wrote last. `signal`: the one that ended it (TERM, INT, USR1), if one did."""

    job_id: str
    code: int
    at: datetime | None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll's answer, by allocation name. `now` is by the login's clock.

    `queue_known` False: squeue gave no answer, so nothing is known of any job; `said` is what it gave instead.
    `accounting_known` False: sacct gave none, or there was nobody to ask about. Where accounting is off
    (`accounting_off`) there is nothing to ask, and it is True. `owners` holds the job that the allocation belongs to,
    or `cancelled`; `entries` what the cache entries say that jobs of these names make.
    """

    now: datetime
    queue_known: bool
    accounting_known: bool
    accounting_off: bool
    rows: Mapping[str, Sequence[Row]]
    accounted: Mapping[str, Sequence[Row]]
    owners: Mapping[str, str]
    exits: Mapping[str, ExitMarker]
    logs: Mapping[str, LogPart]
    entries: Mapping[str, Manifest] = field(default_factory=dict)
    storage: Storage | None = None
    said: str = ""


def read_poll(sections: Sequence[Section], prefix: str | tuple[str, ...], names: Sequence[str]) -> Poll | None:
    """A poll's sections as a Poll; None when the answer is not whole."""
    if not sections or sections[-1].words != ("done",):
        return None
    now: datetime | None = None
    queue_known = accounting_off = False
    asked: list[bool] = []
    rows: list[Row] = []
    accounted: list[Row] = []
    owners: dict[str, str] = {}
    exits: dict[str, ExitMarker] = {}
    logs: dict[str, LogPart] = {}
    entries: dict[str, Manifest] = {}
    storage: Storage | None = None
    instead = ""
    for section in sections:
        match section.words:
            case ("now", seconds):
                now = epoch(seconds)
            case ("squeue", "0"):
                queue_known = True
                rows = parse_squeue(section.body.decode(errors="replace"), prefix)
            case ("squeue", _):
                instead = section.body.decode(errors="replace")
            case ("sacct", code):
                said = section.body.decode(errors="replace")
                off = ACCOUNTING_OFF in said
                accounting_off |= off
                asked.append(code == "0" or off)
                accounted += parse_sacct(said, names) if code == "0" else []
            case ("owner", name, job):
                owners[name] = job
            case ("exit", name, *fields):
                if marker := _exit_marker(fields):
                    exits[name] = marker
            case ("storage", *numbers):
                storage = read_storage(numbers)
            case ("entry", name):
                entries[name] = read_manifest(section.body.decode(errors="replace"))
            case ("log", name, size, offset, *shrunk):
                if part := _log_part(size, offset, section.body, bool(shrunk)):
                    logs[name] = part
            case _:
                pass
    if now is None:
        return None
    known = bool(asked) and all(asked)
    return Poll(
        now,
        queue_known,
        known,
        accounting_off,
        _by_name(rows),
        _by_name(accounted),
        owners,
        exits,
        logs,
        entries,
        storage,
        instead,
    )


def _exit_marker(fields: Sequence[str]) -> ExitMarker | None:
    said = dict(part.split("=", 1) for part in fields if "=" in part)
    code = number(said.get("exit", ""))
    if code is None:
        return None
    return ExitMarker(said.get("job", ""), code, epoch(said.get("time", "")), said.get("signal"))


def _log_part(size: str, offset: str, data: bytes, shrunk: bool) -> LogPart | None:
    bytes_, start = number(size), number(offset)
    return LogPart(bytes_, start, data, shrunk) if bytes_ is not None and start is not None else None


def _by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found
