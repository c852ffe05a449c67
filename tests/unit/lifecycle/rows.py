"""Rows of the tables that tell whole lives: what is seen, and what a user then sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from speedrun_operator.lifecycle.observation import Accepted, Observed
from unit.builders import REPLAY, STARTED, TRAINING, JobLog, at, ended, running
from unit.lifecycle.lives import Life, Step, heard, seen, woken


@dataclass(frozen=True)
class Row:
    """After `step`: phase and reason, conditions (`+` True, `-` False, `?` Unknown), allocations that are submitted and
    cancelled, reasons of events, and fields of status by name. `after`: seconds since the row before."""

    step: Step
    phase: str
    reason: str | None
    says: str = ""
    submits: Sequence[int] = ()
    tells: Sequence[str] = ()
    cancels: Sequence[int] = ()
    shows: Mapping[str, Any] = field(default_factory=dict)
    after: float = 10


Spec = Mapping[str, Any]


def job(number: int) -> str:
    """The job's number of an allocation."""
    return str(17 + number)


def accepted(*numbers: int) -> Step:
    """These allocations were taken."""
    return woken(outcomes={number: Accepted(job(number), at(1)) for number in numbers})


def log(number: int = 0) -> JobLog:
    """The log of an allocation's job."""
    return JobLog().job(17 + number)


def works(number: int, written: JobLog, **fields: Any) -> Observed:
    return running(written, job_id=job(number), **fields)


def over(number: int, written: JobLog | None, reason: str = "Completed", **fields: Any) -> Observed:
    return ended(written, reason, job_id=job(number), message=f"words for {reason}", **fields)


DONE = log().ran(0, "3.27", time=50_000)
HELD = {"val_loss": None, "train_time": None, "step": None, "progress_percentage": None}

OPENED = Row(woken(), "Pending", None, "+Admitted -Submitted -Started ?Succeeded -Finished", submits=[0])
ACCEPTED = Row(
    heard(Accepted("17", at(1))), "Queued", None, "+Submitted -Started +BackendReachable", tells=["Submitted"]
)
RUNS = Row(seen(running(STARTED)), "Preparing", None, "+Started", tells=["Started"])
TRAINS = Row(
    seen(running(TRAINING)),
    "Training",
    None,
    tells=["Training"],
    shows={"val_loss": 10.8258, "train_time": "0.250s", "step": 5, "total_steps": 20, "progress_percentage": 25},
)
AT_WORK = [OPENED, ACCEPTED, RUNS, TRAINS]


def play(rows: Sequence[Row], spec: Mapping[str, Any] = REPLAY) -> Life:
    """Live through `rows`; fails at the first that is not as it says. What was lived."""
    life = Life(spec)
    for number, row in enumerate(rows):
        decision = life.live(row.step, row.after)
        status, where = decision.status, f"row {number}"
        assert (status.phase, status.reason) == (row.phase, row.reason), where
        conditions = {f"{each.type}": {"True": "+", "False": "-"}.get(each.status, "?") for each in status.conditions}
        assert {said[1:]: said[0] for said in row.says.split()}.items() <= conditions.items(), where
        assert [each.allocation for each in decision.submit] == list(row.submits), where
        assert list(decision.cancel) == list(row.cancels), where
        assert [each.reason for each in decision.notices] == list(row.tells), where
        assert {name: getattr(status, name) for name in row.shows} == row.shows, where
    return life


def play_twice(rows: Sequence[Row], spec: Mapping[str, Any] = REPLAY) -> None:
    """Live through `rows`, deciding each a second time: the same again must change nothing and tell nothing."""
    life = Life(spec)
    for row in rows:
        before = len(life.status.allocations)
        first = life.live(row.step, row.after)
        if len(first.status.allocations) == before:  # else the step would speak of another allocation now
            life.seconds += 0 if first.wake_at else 10
            second = life.decide(row.step)
            assert second.status == first.status
            assert second.notices == ()
