"""The log of one allocation, added up: its runs, each with its stages and its training progress.

An allocation's job runs one training run after another into one log. Markers of the job script say which run the
lines belong to and when a stage began and ended; everything between goes to that run's `Progress`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from speedrun_operator.progress.fold import Progress, Stage, fold
from speedrun_operator.progress.records import Record, Symptom
from speedrun_operator.progress.stages import Marker

MOST_RUNS = 256
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
MOST_STAGES = 64
MOST_SYMPTOMS = 16
MOST_WORDS = 512
MOST_UNIT = 32
MOST_FACT = 128
MOST_FACTS = 16


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of a run. Times are milliseconds since the epoch, by the node's clock; None: not said (yet).

    `done` of `total`, counted in `unit`, is how far a stage is that says so.
    """

    name: str
    began_ms: int | None = None
    ended_ms: int | None = None
    exit_code: int | None = None
    done: int | None = None
    total: int | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run inside the allocation. `exit_code` is there once the job script said that the run ended.

    `symptoms`: signs of trouble in the stage that it is in, each once. What a stage survived, it survived: they go when
    the next stage begins, and when training does.
    """

    index: int
    stages: tuple[StageRecord, ...] = ()
    progress: Progress = field(default_factory=Progress)
    exit_code: int | None = None
    symptoms: tuple[str, ...] = ()
    hardware: tuple[tuple[str, str], ...] = ()

    @property
    def trained(self) -> bool:
        """Whether it reached Training."""
        return self.progress.stage is Stage.TRAINING

    @property
    def stage(self) -> StageRecord | None:
        """The stage that it is in, or was in last."""
        return self.stages[-1] if self.stages else None


@dataclass(frozen=True, slots=True)
class AllocationProgress:
    """What a job's log says so far. `exit_code` is there once the job script wrote its last line.

    `hardware` is what the job found there, by name; a run's is what its samples came to. `own` are stages that belong
    to no run, as in jobs that prepare. `code`: which commit the runs have, where the job looked that up. `missing` is
    the cache entry that the job missed.

    `at_limit`: Slurm's signal ahead of the time limit came. `stopped`: a stop file in the ledger ended the series.
    `symptoms`: signs of trouble outside of runs.
    """

    runs: tuple[RunRecord, ...] = ()
    exit_code: int | None = None
    at_limit: bool = False
    stopped: bool = False
    symptoms: tuple[str, ...] = ()
    hardware: tuple[tuple[str, str], ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    own: RunRecord | None = None
    missing: str | None = None

    def run(self, index: int) -> RunRecord | None:
        return next((each for each in self.runs if each.index == index), None)


def add(allocation: AllocationProgress, record: Record) -> AllocationProgress:
    """`allocation` with one more record of its log.

    Records before the first run's marker belong to no run, and neither do those between a run's end and the next run:
    a process that a run left behind must not take its result back.
    """
    if isinstance(record, Marker):
        return _after_marker(allocation, record)
    outside = not allocation.runs or allocation.runs[-1].exit_code is not None
    if isinstance(record, Symptom) and outside:
        return replace(allocation, symptoms=_with(allocation.symptoms, record))
    if outside:
        return allocation
    last = allocation.runs[-1]
    if isinstance(record, Symptom):
        last = replace(last, symptoms=_with(last.symptoms, record))
    else:
        progress = fold(last.progress, record)
        begins = progress.stage is Stage.TRAINING and not last.trained
        last = replace(last, progress=progress, symptoms=() if begins else last.symptoms)
    return replace(allocation, runs=(*allocation.runs[:-1], last))


def _with(symptoms: tuple[str, ...], new: Symptom) -> tuple[str, ...]:
    return symptoms if new.reason in symptoms else (*symptoms, new.reason)[:MOST_SYMPTOMS]


def _after_marker(allocation: AllocationProgress, marker: Marker) -> AllocationProgress:
    if "attempt" in marker.words:
        return AllocationProgress()
    if "job" in marker.words and "end" in marker.words:
        return replace(allocation, exit_code=marker.integer("exit"))
    if "job" in marker.words and "limit" in marker.words:
        return replace(allocation, at_limit=True)
    if "job" in marker.words and "stopped" in marker.words:
        return replace(allocation, stopped=True)
    stage = marker.text("stage")
    if stage is not None and marker.text("cache") == "missing":
        words = f"{stage} {marker.text('key')}: {marker.text('why')}"
        return replace(allocation, missing=words[:MOST_WORDS])
    if stage is not None and marker.text("run") is None:
        return replace(allocation, own=_after_stage(allocation.own or RunRecord(-1), stage, marker))
    if "hardware" in marker.words and marker.text("run") is None:
        return replace(allocation, hardware=_facts(marker))
    if "code" in marker.words and marker.text("run") is None:
        return replace(allocation, code=allocation.code or _facts(marker))
    index = marker.integer("run")
    if index is None or not 0 <= index < MOST_RUNS:
        return allocation
    run = allocation.run(index) or RunRecord(index)
    others = tuple(each for each in allocation.runs if each.index != index)
    if stage is not None:
        run = _after_stage(run, stage, marker)
    elif "hardware" in marker.words:
        run = replace(run, hardware=_facts(marker))
    elif "begin" in marker.words:
        run = RunRecord(index)
    elif "end" in marker.words:
        run = replace(run, exit_code=marker.integer("exit"))
    return replace(allocation, runs=(*others, run))


def _facts(marker: Marker) -> tuple[tuple[str, str], ...]:
    return tuple((name, value[:MOST_FACT]) for name, value in marker.fields[:MOST_FACTS])


def _after_stage(run: RunRecord, name: str, marker: Marker) -> RunRecord:
    time = marker.milliseconds("time")
    if not _NAME.fullmatch(name):
        return run
    if "begin" in marker.words:
        return replace(run, stages=(*run.stages, StageRecord(name, began_ms=time))[-MOST_STAGES:], symptoms=())
    if not run.stages or run.stages[-1].name != name:
        return run
    if "progress" in marker.words:
        far = replace(
            run.stages[-1],
            done=marker.integer("done"),
            total=marker.integer("total"),
            unit=(marker.text("unit") or "")[:MOST_UNIT] or None,
        )
        return replace(run, stages=(*run.stages[:-1], far))
    if "end" in marker.words:
        ended = replace(run.stages[-1], ended_ms=time, exit_code=marker.integer("exit"))
        return replace(run, stages=(*run.stages[:-1], ended))
    return run
