"""Log text of a run -> typed progress records, and the fold of those into one picture of the run.

Pure and incremental: bytes go in as they were read, in any pieces; records come out for whole lines only. Nothing
here opens a file or asks for the time: the backends read logs, `lifecycle` decides what progress means for a phase,
`diagnosis` says why a run failed.

`lines` cuts bytes into lines, `stages` reads the markers of the operator's own job script, a file a log format
(`modded_nanogpt`) reads one line of a trainer, `parser` joins them and tells one run from the next, `fold` adds
records up.
"""

from speedrun_operator.progress.fold import Progress, Stage, fold, remaining_seconds
from speedrun_operator.progress.parser import FORMATS, ParserState, feed
from speedrun_operator.progress.records import (
    Compiling,
    Environment,
    LogPath,
    NewRun,
    PeakMemory,
    Record,
    StepLine,
    Symptom,
    Validation,
    WarmupEnd,
)
from speedrun_operator.progress.stages import Marker, parse_marker

__all__ = [
    "FORMATS",
    "Compiling",
    "Environment",
    "LogPath",
    "Marker",
    "NewRun",
    "ParserState",
    "PeakMemory",
    "Progress",
    "Record",
    "Stage",
    "StepLine",
    "Symptom",
    "Validation",
    "WarmupEnd",
    "feed",
    "fold",
    "parse_marker",
    "remaining_seconds",
]
