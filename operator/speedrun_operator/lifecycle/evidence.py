"""What a run leaves to compare it by: its stages with their times, and what it ran on."""

from __future__ import annotations

import re

from speedrun_operator.api.status import Hardware, Run, StageSummary
from speedrun_operator.progress.allocation import AllocationProgress, StageRecord

CAUSES = ("power", "thermal", "hardware")
MOST_STAGES = 12


def with_evidence(run: Run, log: AllocationProgress | None) -> Run:
    """`run` with what its log says of stages and hardware; what it does not say stays as it was."""
    record = log.run(run.index) if log is not None else None
    if record is None or log is None:
        return run
    stages = tuple(_stage(each) for each in record.stages[-MOST_STAGES:] if each.exit_code is not None)
    found, samples = dict(log.hardware), dict(record.hardware)
    throttled = tuple(cause for cause in CAUSES if cause in samples.get("throttled", "").split(","))
    hardware = Hardware(
        node=found.get("node"),
        gpu=found.get("gpu"),
        count=_number(found.get("gpus")),
        driver=found.get("driver"),
        torch=record.progress.torch,
        clock=_number(samples.get("clock")) or None,
        throttled=throttled if samples else None,
    )
    update: dict[str, object] = {"stages": stages or None}
    if hardware != Hardware():
        update["hardware"] = hardware
    return run.model_copy(update=update)


def _stage(record: StageRecord) -> StageSummary:
    known = record.began_ms is not None and record.ended_ms is not None
    took = max(0, (record.ended_ms or 0) - (record.began_ms or 0)) / 1000 if known else None
    return StageSummary(name=record.name, seconds=took, exit_code=record.exit_code)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,9}", text) else None
