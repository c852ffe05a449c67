"""Lines of modded-nanogpt's trainers, and of every trainer that prints the same.

    step:1670/1670 train_time:163524ms step_avg:97.92ms
    step:1670/1670 val_loss:3.2755 train_time:163621ms step_avg:97.98ms

Fields come in any number and order, so a line is read as `key:value` pairs. It must begin with `step:` and digits,
behind a launcher's rank label at most: the same words occur in the middle of other lines, and in the source code that
a log opens with. A line without a whole `train_time` (number and unit) is no step line: it was torn, or another
program printed it.
"""

import re

from speedrun_operator.progress import quantities
from speedrun_operator.progress.records import (
    Compiling,
    Environment,
    LogPath,
    PeakMemory,
    Record,
    StepLine,
    Validation,
    WarmupEnd,
)

_LABEL = r"(?:\[(?:default|rank)[0-9]{1,6}\]: ?|\[[0-9]{1,6},[0-9]{1,6}\]<std(?:out|err)>: ?| {0,6}[0-9]{1,6}: )"
_LABELLED = re.compile(_LABEL)
# Two ranks that write at once glue their lines together: the label of the second follows the unit of the first.
_GLUED = re.compile(rf"(?<=s)(?={_LABEL})")
_STEP = re.compile(r"step:([0-9]{1,9})/([1-9][0-9]{0,8})((?: +[A-Za-z_][A-Za-z0-9_]*:[^ ]*)+)")
_PEAK = re.compile(
    r"peak memory (?:allocated: ([0-9]{1,9}) MiB reserved: ([0-9]{1,9}) MiB|consumption: ([0-9]{1,9}) MiB)"
)
_TORCH = re.compile(r"Running [Pp]y[Tt]orch (\S+) compiled for CUDA (\S+)")
_PYTHON = re.compile(r"Running Python (\S+)")
_TRITON = re.compile(r"Running Triton version (\S+)")
_LOG_PATH = re.compile(r"logs/\S+\.txt")
_SOURCE = re.compile(r"""import |from \S+ import |#|\"\"\"|'''""")

SEPARATOR = "=" * 100


def begins_source(line: str) -> bool:
    """Whether a log with this first line opens with source code: a trainer's own log file does, its stdout does not."""
    return line == SEPARATOR or _SOURCE.match(line) is not None


def ends_source(line: str) -> bool:
    """Whether the source code at the top of a log ends with this line."""
    return line == SEPARATOR


def read_line(line: str) -> list[Record]:
    """The records on one line: none for most lines, one as a rule, more where ranks wrote at once."""
    line = _without_label(line)
    if line.startswith("step:"):
        return [record for part in _GLUED.split(line) if (record := _step(_without_label(part)))]
    event = _event(line)
    return [event] if event else []


def _without_label(line: str) -> str:
    label = _LABELLED.match(line)
    return line[label.end() :] if label else line


def _step(line: str) -> StepLine | Validation | None:
    match = _STEP.match(line)
    if not match:
        return None
    step, total_steps = int(match[1]), int(match[2])
    fields: dict[str, str] = {}
    for token in match[3].split():
        key, _, value = token.partition(":")
        fields.setdefault(key, value)
    train_time_ms = _time(fields.pop("train_time", ""))
    if train_time_ms is None:
        return None
    step_avg_ms = _average(fields.pop("step_avg", ""))
    text = fields.pop("val_loss", "")
    val_loss = quantities.decimal(text)
    extras = tuple(fields.items())
    if val_loss is None and not quantities.is_not_finite(text):
        return StepLine(step, total_steps, train_time_ms, step_avg_ms, extras)
    return Validation(step, total_steps, val_loss, text, train_time_ms, step_avg_ms, extras)


def _time(text: str) -> int | None:
    number, unit = quantities.suffixed(text)
    return quantities.milliseconds(number, unit) if unit else None


def _average(text: str) -> float | None:
    number, unit = quantities.suffixed(text)
    average = quantities.decimal(number) if unit else None
    if average is None or not 0 <= average <= quantities.MAX_MILLISECONDS:
        return None
    return float(average) * (1000 if unit == "s" else 1)


def _event(line: str) -> Record | None:
    if line.startswith("Compiling model"):
        return Compiling()
    if line == "Resetting Model":
        return WarmupEnd()
    if line.startswith("Running "):
        return _environment(line)
    if match := _PEAK.match(line):
        return PeakMemory(int(match[1] or match[3]), int(match[2]) if match[2] else None)
    if _LOG_PATH.fullmatch(line):
        return LogPath(line)
    return None


def _environment(line: str) -> Environment | None:
    if match := _TORCH.match(line):
        return Environment(torch=match[1], cuda=None if match[2] == "None" else match[2])
    if match := _PYTHON.match(line):
        return Environment(python=match[1])
    if match := _TRITON.match(line):
        return Environment(triton=match[1])
    return None
