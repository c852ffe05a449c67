"""What a backend says of an allocation: the outcome of submitting it, and what witnesses see of it later.

*Unknown* is a value of its own: no answer, an empty answer and a failed query never mean *ended*.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from speedrun_operator.preparation.manifest import Manifest
from speedrun_operator.progress.allocation import AllocationProgress


@dataclass(frozen=True, slots=True)
class Accepted:
    """It is there, under this number. `submitted` is by the backend's own clock."""

    job_id: str
    submitted: datetime | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """It is certainly not there, and only another spec helps."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Busy:
    """It is certainly not there, and the same may go through later."""

    reason: str
    message: str
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may be there. Settled by asking again, never by submitting blindly."""

    reason: str
    message: str
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class Ready:
    """A cache entry that is there."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Underway:
    """A job makes a cache entry. `broken`: why the entry that was there before is made anew."""

    attempt: int
    job_id: str
    submitted: datetime | None
    broken: str | None = None


Outcome = Accepted | Rejected | Busy | Unknown

PrepareOutcome = Ready | Underway | Rejected | Busy | Unknown


class JobState(StrEnum):
    """What a witness says of a job. `UNSEEN`: nobody knows it (yet, or any more), which is not an end."""

    UNSEEN = "Unseen"
    QUEUED = "Queued"
    RUNNING = "Running"
    ENDED = "Ended"


@dataclass(frozen=True, slots=True)
class Observed:
    """One allocation as witnesses describe it at `asked` (the backend's clock).

    `log` is None until all of it that was there at first has been read, so that nothing runs backwards after a restart.
    `log_complete`: it was read to its end after the end of the job. `unseen_for`: how long every answer in a row has
    lacked it; `job_id` is then that of the job that once took the allocation, if one did; `fenced`: none did, and none
    will any more. `quiet_for`: how long its log has not grown while it ran. `waited_for`: how long it has waited with
    this reason. `give_up_after`: as it is it can never run, and is waited for so long all the same. `give_up_as`: the
    reason for which it is then ended, where that is not its spec's fault. `unread`: why its log cannot be read, which
    is neither silence nor an end.
    """

    state: JobState
    asked: datetime
    job_id: str | None = None
    node: str | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    reason: str | None = None
    message: str | None = None
    log: AllocationProgress | None = None
    log_complete: bool = False
    unseen_for: timedelta = timedelta(0)
    fenced: bool = False
    quiet_for: timedelta = timedelta(0)
    waited_for: timedelta = timedelta(0)
    give_up_after: timedelta | None = None
    give_up_as: str | None = None
    unread: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cache entry that a job makes: the job as witnesses describe it, and what the entry says once it is there."""

    job: Observed
    manifest: Manifest | None = None
