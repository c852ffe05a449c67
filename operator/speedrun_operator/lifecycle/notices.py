"""What changed between two statuses, as Kubernetes events."""

from __future__ import annotations

from speedrun_operator.api.phases import ConditionType, Phase
from speedrun_operator.api.status import Condition, Status
from speedrun_operator.lifecycle.situation import Notice


def between(old: Status, new: Status) -> tuple[Notice, ...]:
    """Events for the transitions from `old` to `new`, in the order in which a person would tell them."""
    told = [_lost(old, new), *_conditions(old, new), *_phases(old, new)]
    return tuple(notice for notice in told if notice is not None)


def _lost(old: Status, new: Status) -> Notice | None:
    """A job that Slurm lost, where another follows it; of the last one, the end tells."""
    if not old.allocations or len(new.allocations) == len(old.allocations):
        return None
    lost = new.allocations[len(old.allocations) - 1]
    return Notice(True, lost.reason or "", f"{lost.message}; another job follows")


def _conditions(old: Status, new: Status) -> list[Notice | None]:
    return [
        _admitted(old.condition(ConditionType.ADMITTED), new.condition(ConditionType.ADMITTED)),
        _turned_true(old, new, ConditionType.SUBMITTED),
        _turned_true(old, new, ConditionType.STARTED),
        _reachable(old.condition(ConditionType.BACKEND_REACHABLE), new.condition(ConditionType.BACKEND_REACHABLE)),
    ]


def _admitted(old: Condition | None, new: Condition | None) -> Notice | None:
    if new is None or new.status == "True":
        return None
    if old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return None
    return Notice(True, new.reason, new.message)


def _turned_true(old: Status, new: Status, type_: ConditionType) -> Notice | None:
    before, after = old.condition(type_), new.condition(type_)
    if after is None or after.status != "True" or (before is not None and before.status == "True"):
        return None
    return Notice(False, after.reason, after.message)


def _reachable(old: Condition | None, new: Condition | None) -> Notice | None:
    if new is None or (old is not None and old.status == new.status):
        return None
    if new.status == "False":
        return Notice(True, new.reason, new.message)
    return Notice(False, new.reason, new.message) if old is not None and old.status == "False" else None


def _phases(old: Status, new: Status) -> list[Notice | None]:
    if old.phase == new.phase:
        return []
    finished = new.condition(ConditionType.FINISHED)
    if new.phase is not None and new.phase.finished and finished is not None:
        refused = new.condition(ConditionType.ADMITTED)
        if refused is not None and refused.status == "False":
            return []  # the refusal was told already
        return [Notice(new.phase is not Phase.SUCCEEDED, finished.reason, finished.message)]
    if new.phase in (Phase.COMPILING, Phase.TRAINING):
        return [Notice(False, new.phase.value, f"job {new.job} is {new.phase.value.lower()}")]
    return []
