"""Records added up: how far a run is, what it printed last, and its result if it has one.

No decisions here: whether a loss reaches a target, a run stalls or counts is for `lifecycle` and `verdict`.
Markers change nothing: where one log holds several runs, the caller keeps a `Progress` for each and goes by the
markers' `run`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from speedrun_operator.progress.records import (
    Compiling,
    Environment,
    NewRun,
    PeakMemory,
    Record,
    StepLine,
    Validation,
    WarmupEnd,
)


class Stage(StrEnum):
    """What the training program is doing, as far as its own lines tell."""

    NONE = "none"
    COMPILING = "compiling"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class Progress:
    """One run so far. None means that the log has not said it yet."""

    stage: Stage = Stage.NONE
    step: int | None = None
    total_steps: int | None = None
    step_avg_ms: float | None = None
    """Mean time of a step as last printed; kept over lines that print `nan`."""
    train_time_ms: int | None = None
    """As last printed; it may fall once (untimed first steps). Of a run with a result it is the result's."""
    last_validation: Validation | None = None
    final: Validation | None = None
    """The run's result: the validation at the last step, and no other. Its `val_loss` is None when the run diverged."""
    validations: int = 0
    diverged_step: int | None = None
    """Step of the first validation that was nan or infinite."""
    peak_memory: PeakMemory | None = None
    torch: str | None = None


def fold(progress: Progress, record: Record) -> Progress:
    """`progress` with one more record of the same log."""
    match record:
        case StepLine():
            return _after_step(progress, record)
        case Validation():
            return _after_validation(progress, record)
        case NewRun():
            return Progress(torch=progress.torch)  # runs of one program print their environment once
        case Compiling():
            return replace(progress, stage=Stage.COMPILING)
        case WarmupEnd():
            return replace(progress, stage=Stage.TRAINING)
        case PeakMemory():
            return replace(progress, peak_memory=record)
        case Environment(torch=str(torch)):
            return replace(progress, torch=torch)
        case _:
            return progress


def _after_step(progress: Progress, line: StepLine) -> Progress:
    if progress.final is not None:  # the result's clock is the one that counts, whatever is printed after it
        return progress
    return replace(
        progress,
        stage=Stage.TRAINING,
        step=line.step,
        total_steps=line.total_steps,
        step_avg_ms=progress.step_avg_ms if line.step_avg_ms is None else line.step_avg_ms,
        train_time_ms=line.train_time_ms,
    )


def _after_validation(progress: Progress, line: Validation) -> Progress:
    first_divergence = line.is_diverged and progress.diverged_step is None
    return replace(
        progress,
        stage=Stage.TRAINING,
        step=line.step,
        total_steps=line.total_steps,
        step_avg_ms=progress.step_avg_ms if line.step_avg_ms is None else line.step_avg_ms,
        train_time_ms=line.train_time_ms,
        last_validation=line,
        final=line if line.is_final else progress.final,
        validations=progress.validations + 1,
        diverged_step=line.step if first_divergence else progress.diverged_step,
    )


def remaining_seconds(progress: Progress) -> float | None:
    """Timed training that is left, in seconds, at the mean pace so far; None when unknown.

    Validations, the compile before and whatever follows training are not in it: their time is not in `step_avg`.
    """
    if progress.step is None or progress.total_steps is None or progress.step_avg_ms is None:
        return None
    return max(progress.total_steps - progress.step, 0) * progress.step_avg_ms / 1000
