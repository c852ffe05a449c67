"""The fields of status that sum up allocations and runs: phase, loss and time, progress, clock, columns.

While live, phase, val_loss and train_time are those of the lowest-index active run; once finished they are the
result's.
"""

from __future__ import annotations

from datetime import datetime

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Clock, PlanSummary, Run
from speedrun_operator.lifecycle.runs import TRAIN_STAGE
from speedrun_operator.progress.allocation import AllocationProgress
from speedrun_operator.progress.fold import Progress, remaining_seconds

MOST_REMAINING_SECONDS = 10 * 365 * 86400
_STAGE_CLOCK = {"image": "image_milliseconds", "code": "data_milliseconds", "data": "data_milliseconds"}


def shown_run(runs: tuple[Run, ...]) -> Run | None:
    """The run whose numbers the resource shows: the first that is not finished, else the last."""
    return next((each for each in runs if not each.phase.finished), runs[-1] if runs else None)


def training(progress: Progress) -> dict[str, object]:
    """Step, pace and what is left of one run's training; ETA in whole seconds. None for what the log does not say."""
    percentage = left = None
    if progress.step is not None and progress.total_steps:
        percentage = min(100, 100 * progress.step // progress.total_steps)
        left = remaining_seconds(progress)
    known = left is not None and left <= MOST_REMAINING_SECONDS and progress.final is None
    return {
        "step": progress.step,
        "total_steps": progress.total_steps,
        "step_avg": progress.step_avg_ms,
        "progress_percentage": percentage,
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


def columns(plan: PlanSummary | None, allocations: tuple[Allocation, ...], runs: tuple[Run, ...]) -> dict[str, object]:
    """RUNS, RESULT, JOB and NODE of `kubectl get`."""
    newest = allocations[-1] if allocations else None
    counted = [each for each in runs if each.counted]
    result = None
    if plan is not None and counted and counted[0].val_loss is not None:
        result = f"{plan.metric}={counted[0].val_loss:g}"
    return {
        "runs_summary": f"{len(counted)}/{len(runs)}" if runs else None,
        "result": result,
        "job": newest.job_id if newest else None,
        "node": newest.node if newest else None,
    }


def phase_of(runs: tuple[Run, ...], allocations: tuple[Allocation, ...]) -> Phase:
    """The phase while work goes on."""
    run = shown_run(runs)
    if run is None or not allocations:
        return Phase.PENDING
    newest = allocations[-1]
    if newest.state is AllocationState.SUBMITTING:
        return Phase.PENDING
    return run.phase
