"""The fields of status that sum up allocations and runs: phase, loss and time, progress, clock, columns.

While live, phase, val_loss and train_time are those of the lowest-index active run; once finished they are the
result's.
"""

from __future__ import annotations

from datetime import datetime

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Clock, Run
from speedrun_operator.lifecycle.runs import TRAIN_STAGE
from speedrun_operator.progress.allocation import AllocationProgress
from speedrun_operator.progress.fold import Progress, remaining_seconds

MOST_REMAINING_SECONDS = 10 * 365 * 86400
_STAGE_CLOCK = {"image": "image_milliseconds", "code": "data_milliseconds", "data": "data_milliseconds"}


def shown_run(runs: tuple[Run, ...]) -> Run | None:
    """The run whose numbers the resource shows: the first active one, else the first not finished, else the last."""
    open_ = [each for each in runs if not each.phase.finished]
    active = [each for each in open_ if each.allocation is not None]
    # One that failed and is to be run again waits for the others of its series.
    at_work = [each for each in active if each.reason is None]
    return next(iter([*at_work, *active, *open_]), runs[-1] if runs else None)


def training(progress: Progress) -> dict[str, object]:
    """Step, pace and what is left of one run's training; ETA in whole seconds. None for what the log does not say."""
    share = left = None
    if progress.step is not None and progress.total_steps:
        share = min(100, 100 * progress.step // progress.total_steps)
        left = remaining_seconds(progress)
    known = left is not None and left <= MOST_REMAINING_SECONDS and progress.final is None
    return {
        "step": progress.step,
        "total_steps": progress.total_steps,
        "step_avg": progress.step_avg_ms,
        "progress_percentage": share,
        "estimated_remaining_seconds": round(left) if left is not None and known else None,
    }


def clock(allocation: Allocation, log: AllocationProgress | None, run: Run, before: Clock | None) -> Clock:
    """Where one allocation's time went, in milliseconds; what is not known yet stays as it was.

    Stage times are the node's own. The log does not say when compiling ended, so `compile` is what the training stage
    took beyond train_time, known once the stage has ended.
    """
    times: dict[str, int | None] = {"train_milliseconds": run.train_time_ms}
    if allocation.submitted and allocation.started:
        times["queue_milliseconds"] = _between(allocation.submitted, allocation.started)
    if allocation.started and allocation.ended:
        times["wall_milliseconds"] = _between(allocation.started, allocation.ended)
    record = log.run(run.index) if log else None
    for stage in record.stages if record else ():
        if stage.began_ms is None or stage.ended_ms is None:
            continue
        took = max(0, stage.ended_ms - stage.began_ms)
        if key := _STAGE_CLOCK.get(stage.name):
            times[key] = (times.get(key) or 0) + took
        elif stage.name == TRAIN_STAGE and run.train_time_ms is not None:
            times["compile_milliseconds"] = max(0, took - run.train_time_ms)
    return (before or Clock()).model_copy(update=times)


def _between(start: datetime, end: datetime) -> int:
    return max(0, round((end - start).total_seconds() * 1000))


def percentage(runs: tuple[Run, ...], current: int | None) -> int | None:
    """Of the training of all runs; `current` is that of the shown run. A run without a result has done nothing."""
    done = sum(each.counted for each in runs)
    if current is None and not done:
        return None
    shown = shown_run(runs)
    share = 0 if shown is None or shown.counted else current or 0
    return (100 * done + share) // len(runs)


def columns(allocations: tuple[Allocation, ...], runs: tuple[Run, ...]) -> dict[str, object]:
    """RUNS, JOB and NODE of `kubectl get`."""
    newest = allocations[-1] if allocations else None
    counted = sum(each.counted for each in runs)
    return {
        "runs_summary": f"{counted}/{len(runs)}" if runs else None,
        "job": newest.job_id if newest else None,
        "node": newest.node if newest else None,
    }


def phase_of(runs: tuple[Run, ...], allocations: tuple[Allocation, ...], suspended: bool) -> Phase:
    """The phase while work goes on."""
    by_id = {each.id: each for each in allocations}
    run = shown_run(runs)
    if suspended and all(each.state is AllocationState.ENDED for each in allocations):
        return Phase.SUSPENDED
    allocation = by_id.get(run.allocation) if run is not None and run.allocation is not None else None
    if run is None or allocation is None or allocation.state is AllocationState.SUBMITTING:
        return Phase.PENDING
    if run.phase.finished:  # its results are in, its job is not over yet
        return Phase.TRAINING
    return run.phase
