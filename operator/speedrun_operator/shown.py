"""A Speedrun as it is shown outside its own status: a small projection that outlives the object's stay in memory."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from speedrun_operator.api.names import Identity
from speedrun_operator.api.phases import AllocationState, ConditionType, Phase
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import Status

SAID = (ConditionType.ADMITTED, ConditionType.BACKEND_REACHABLE, ConditionType.STALLED)


@dataclass(frozen=True, slots=True)
class Shown:
    """What is not known is None. `conditions`: those of SAID that are True or False, of what is not finished."""

    identity: Identity
    created: datetime
    phase: Phase
    recipe: str
    backend: str
    target: float | None = None
    val_loss: float | None = None
    train_seconds: float | None = None
    progress: float | None = None
    """Done, of 1."""
    step_seconds: float | None = None
    remaining_seconds: float | None = None
    queue_seconds: float | None = None
    """From submission to start, of the allocation that started last."""
    queued_since: datetime | None = None
    """Of an allocation that waits: since then."""
    ended: datetime | None = None
    conditions: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def of(cls, resource: Resource) -> Shown:
        spec, status = resource.spec, resource.status
        finished = status.phase is not None and status.phase.finished
        clock = status.clock
        done = 100 if finished and status.val_loss is not None else status.progress_percentage
        return cls(
            identity=resource.identity,
            created=resource.created,
            phase=status.phase or Phase.PENDING,
            recipe=spec.recipe.name if spec else "",
            backend=spec.backend.value if spec else "",
            target=status.plan.target if status.plan else None,
            val_loss=status.val_loss,
            train_seconds=_seconds(status.train_time_ms),
            progress=None if done is None else done / 100,
            step_seconds=_seconds(status.step_avg),
            remaining_seconds=status.estimated_remaining_seconds,
            queue_seconds=_seconds(clock.queue_milliseconds) if clock else None,
            queued_since=None if finished else _queued_since(status),
            ended=status.completion_time,
            conditions=() if finished else _conditions(status),
        )

    def queued(self, now: datetime) -> float | None:
        """Seconds in the queue: of what waits there now, else of what started last."""
        if self.queued_since is not None:
            return max(0.0, (now - self.queued_since).total_seconds())
        return self.queue_seconds


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _queued_since(status: Status) -> datetime | None:
    waiting = [each for each in status.allocations if each.state is AllocationState.QUEUED]
    return min((each.submitted or each.claimed for each in waiting), default=None)


def _conditions(status: Status) -> tuple[tuple[str, bool], ...]:
    said = [(type_.value, status.condition(type_)) for type_ in SAID]
    return tuple((type_, each.status == "True") for type_, each in said if each and each.status != "Unknown")
