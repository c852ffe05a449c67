"""Which changes of status are written at once, and which may wait for the second poll."""

from __future__ import annotations

from speedrun_operator.api.status import Status

# Numbers that move with every step of a live run.
_QUIET = (
    "step",
    "total_steps",
    "step_avg",
    "progress_percentage",
    "estimated_remaining_seconds",
    "train_time",
    "train_time_ms",
    "clock",
)
# What a run leaves beside: it comes with a phase as a rule, and is written with the next.
_QUIET_OF_RUNS = ("train_time", "train_time_ms", "stages", "hardware")


def is_urgent(old: Status, new: Status) -> bool:
    """Whether more than a live run's running numbers changed: a phase, a loss, a condition, an allocation."""
    return _still(old) != _still(new)


def _still(status: Status) -> Status:
    runs = tuple(run.model_copy(update=dict.fromkeys(_QUIET_OF_RUNS)) for run in status.runs)
    made = tuple(each.model_copy(update={"done": None, "total": None}) for each in status.preparing)
    return status.model_copy(update={**dict.fromkeys(_QUIET), "runs": runs, "preparing": made})
