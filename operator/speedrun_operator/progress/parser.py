"""The incremental parser: pieces of a log in, records out, with a small state between that can be written down.

It knows the log formats by name and does what takes more than one line: leave out source code at the top, tell the
runs in one log apart, and leave out lines that a batch script prints again. A log that shrank or was replaced starts
over with a fresh state.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from speedrun_operator.progress import modded_nanogpt
from speedrun_operator.progress.lines import MAX_LINE_BYTES, LineState, split
from speedrun_operator.progress.records import Compiling, Environment, NewRun, Record, StepLine, Symptom, Validation
from speedrun_operator.progress.stages import parse_marker

_REMEMBERED = 4  # a batch script prints a run's last three validations again


@dataclass(frozen=True, slots=True)
class LogFormat:
    """How one kind of trainer writes: the records of a line, and where a dump of its source code begins and ends."""

    read_line: Callable[[str], Sequence[Record]]
    begins_source: Callable[[str], bool]
    ends_source: Callable[[str], bool]


FORMATS: Mapping[str, LogFormat] = MappingProxyType(
    {
        "modded-nanogpt": LogFormat(modded_nanogpt.read_line, modded_nanogpt.begins_source, modded_nanogpt.ends_source),
    }
)
"""Log formats by the name that a recipe gives them."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """Where in the log we are: past its first line, in source code, and at which step and validations of a run."""

    started: bool = False
    in_source: bool = False
    step: int | None = None
    total_steps: int | None = None
    validations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParserState:
    """What the parser must remember of the bytes it was fed. A new one belongs to offset 0 of a log."""

    format: str
    lines: LineState = field(default_factory=LineState)
    scan: _Scan = field(default_factory=_Scan)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"unknown log format {self.format!r}: use one of {', '.join(sorted(FORMATS))}")

    @classmethod
    def after_gap(cls, format: str) -> "ParserState":
        """A state for reading from within a log: what comes before the first line end is left out."""
        return cls(format, LineState(skipping=True), _Scan(started=True))

    def to_json(self) -> str:
        """The state as one line of JSON, of 32 KiB at most."""
        scan = self.scan
        return json.dumps(
            {
                "format": self.format,
                "pending": self.lines.pending.decode("latin-1"),
                "skipping": self.lines.skipping,
                "started": scan.started,
                "in_source": scan.in_source,
                "step": scan.step,
                "total_steps": scan.total_steps,
                "validations": scan.validations,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "ParserState":
        """The state that `to_json` wrote. Raises ValueError for anything else: read the log from offset 0 then."""
        try:
            data = json.loads(text)
            lines = LineState(data["pending"].encode("latin-1"), bool(data["skipping"]))
            step, total_steps = (None if data[key] is None else int(data[key]) for key in ("step", "total_steps"))
            seen = tuple(str(validation) for validation in data["validations"][-_REMEMBERED:])
            scan = _Scan(bool(data["started"]), bool(data["in_source"]), step, total_steps, seen)
            if len(lines.pending) > MAX_LINE_BYTES:
                raise ValueError("the open line is too long")
            return cls(str(data["format"]), lines, scan)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"no parser state ({error}): read the log again from its start") from error


Watch = Callable[[str], str | None]
"""Looks for signs of trouble: a line -> the reason that it is a sign of."""


def feed(state: ParserState, chunk: bytes, watch: Watch | None = None) -> tuple[ParserState, tuple[Record, ...]]:
    """The next bytes of a log -> the state after them and the records of the lines that they complete. Never raises.

    `watch` sees the lines that the log format has no record for, but for source code.
    """
    lines, complete = split(state.lines, chunk)
    log_format, scan = FORMATS[state.format], state.scan
    records: list[Record] = []
    for line in complete:
        scan, found = _read(log_format, scan, line, watch)
        records += found
    return ParserState(state.format, lines, scan), tuple(records)


def _read(log_format: LogFormat, scan: _Scan, line: str, watch: Watch | None) -> tuple[_Scan, Sequence[Record]]:
    if marker := parse_marker(line):
        if "attempt" in marker.words:  # a job starts over: nothing before it counts for what comes
            return _Scan(started=True), (marker, NewRun())
        # What follows our own marker is never printed again from before it.
        return replace(scan, started=True, in_source=False, validations=()), (marker,)
    if scan.in_source:
        return (replace(scan, in_source=False) if log_format.ends_source(line) else scan), ()
    if not scan.started:
        scan = replace(scan, started=True, in_source=log_format.begins_source(line))
    records: list[Record] = []
    read = log_format.read_line(line)
    for record in read:
        scan, found = _follow(scan, record)
        records += found
    if not read and watch is not None and (reason := watch(line)) is not None:
        records.append(Symptom(reason))
    return scan, records


def _follow(scan: _Scan, record: Record) -> tuple[_Scan, Sequence[Record]]:
    if isinstance(record, Compiling | Environment) and scan.step is not None:
        return _Scan(started=True), (NewRun(), record)
    if not isinstance(record, StepLine | Validation):
        return scan, (record,)
    restarts = scan.step is not None and record.step == 0 < scan.step
    seen = () if restarts else scan.validations
    if isinstance(record, Validation):
        validation = f"{record.step}/{record.total_steps} {record.text} {record.train_time_ms}"
        if validation in seen:
            return scan, ()
        seen = (*seen, validation)[-_REMEMBERED:]
    is_new = scan.step is not None and (record.step < scan.step or record.total_steps != scan.total_steps)
    if is_new:
        seen = seen[-1:] if isinstance(record, Validation) else ()
    following = _Scan(True, False, record.step, record.total_steps, seen)
    return following, (NewRun(), record) if is_new else (record,)
