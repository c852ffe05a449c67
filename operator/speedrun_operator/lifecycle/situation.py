"""What a decision looks at, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import Status
from speedrun_operator.lifecycle.observation import Observed, Outcome, Prepared, PrepareOutcome, Unknown
from speedrun_operator.planning import Refusal, RunPlan
from speedrun_operator.preparation.needs import Need
from speedrun_operator.preparation.storage import Storage


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why nothing can be submitted for now. It heals without an edit, unless `permanent`."""

    reason: str
    message: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of the state machine. `lost_after`: a job that no witness knows for so long is lost.

    `retry_first`: the wait before the first retry, doubled for each further one up to `retry_longest`. `never_after`: a
    job whose waiting reason says that it can never run is given up after so long.
    `most_lost`: so many lost jobs of a run are each followed by another, and so many that a restart of the nodes ended;
    one more, and it has failed.
    """

    lost_after: timedelta = timedelta(seconds=300)
    most_lost: int = 5
    retry_first: timedelta = timedelta(seconds=10)
    retry_longest: timedelta = timedelta(seconds=600)
    never_after: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Situation:
    """A resource, and what is known of it now. An allocation missing from `observed` was not asked about.

    `gone`: allocations that were cancelled a short while ago, and have no live job. `prepared` and `ensured`: cache
    entries by key, as a poll saw them, and what asking for them came to. `controller_started`: when Slurm's controller
    was started last, if that is known. `login`: whom jobs are submitted as, where namespaces have logins of their own;
    empty: not known now.
    """

    resource: Resource
    plan: RunPlan | Refusal | None
    now: datetime
    cluster: str = ""
    login: str | None = None
    waiting: Waiting | None = None
    observed: Mapping[int, Observed] = field(default_factory=dict)
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    unanswered: Unknown | None = None
    controller_started: datetime | None = None
    storage: Storage | None = None
    prepared: Mapping[str, Prepared] = field(default_factory=dict)
    ensured: Mapping[str, PrepareOutcome] = field(default_factory=dict)
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit this allocation, whose name is in the status already written."""

    allocation: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for a cache entry; attempts up to `after` are known to have ended without it. `avoid`: nodes to keep off."""

    need: Need
    after: int
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A Kubernetes event to post once the status is written."""

    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The next status, what to submit, cancel and prepare, the events to post, and when to look again."""

    status: Status
    submit: tuple[Submit, ...] = ()
    cancel: tuple[int, ...] = ()
    prepare: tuple[Ask, ...] = ()
    notices: tuple[Notice, ...] = ()
    wake_at: datetime | None = None
