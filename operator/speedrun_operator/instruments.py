"""What the operator's parts know and count, gathered for /healthz and /metrics. They are read; nothing is told to us.

Asked from the threads of the listeners: each part is read at one stroke, or by what it says may be asked so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from speedrun_operator import __version__
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.crd import CrdWatch
from speedrun_operator.handlers import Watcher
from speedrun_operator.heart import Heart
from speedrun_operator.kube.access import Access
from speedrun_operator.kube.client import Kube
from speedrun_operator.kube.served import Served
from speedrun_operator.lifecycle.observation import Accepted, Busy, Rejected, Unknown
from speedrun_operator.login import Login
from speedrun_operator.metrics.figures import Figures, LoginFigures, StorageFigures, Work
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.reconcile import Engine
from speedrun_operator.shown import Shown

KUBERNETES, PLATFORM = "kubernetes", "platform"
OUTCOMES = {Accepted: "accepted", Rejected: "rejected", Busy: "busy", Unknown: "unknown"}
POLLED = {True: "answered", False: "unanswered"}


@dataclass(frozen=True)
class Workers:
    """The parts that work once the API server is there. `kinds`: the backends that are set up.

    `logins`: those that there are now.
    """

    engine: Engine
    watcher: Watcher
    kinds: Sequence[Kind]
    logins: Callable[[], Sequence[Login]]


@dataclass
class Instruments:
    """See the module. `workers` is set when they start."""

    heart: Heart
    kube: Kube
    held: Access
    crd: CrdWatch
    api: PlatformApi | None
    namespaces: Sequence[str]
    workers: Workers | None = field(default=None)

    def counts(self) -> Mapping[str, int | float | None]:
        """What /healthz shows beside its word. `working`: the API server and the CRD are there, and the parts run."""
        now = datetime.now(UTC)
        counts: dict[str, int | float | None] = {
            "working": self.workers is not None,
            "credential_renewals": self.held.renewals,
            "credential_expires_seconds": _seconds_to(self.held.end, now),
        }
        if self.workers is not None:
            counts |= _counts(self.workers)
        if self.api is not None:
            counts |= {
                "platform_requests": sum([*self.api.answers.values()]),
                "platform_token_expires_seconds": _seconds_to(self._platform_end(), now),
            }
        return counts

    def figures(self) -> Figures:
        """What /metrics shows."""
        served = self.crd.served
        ends = {KUBERNETES: self.held.end, PLATFORM: self._platform_end()}
        answers = {KUBERNETES: self.kube.answers, PLATFORM: self.api.answers if self.api else {}}
        return Figures(
            version=__version__,
            now=datetime.now(UTC),
            beat_age=self.heart.age,
            lag=self.heart.late.counted(),
            requests={
                (api, str(code) if code else "none"): count
                for api, codes in answers.items()
                for code, count in dict(codes).items()
            },
            token_ends={api: end for api, end in ends.items() if end is not None},
            crd_installed=None if served is None else served is not Served.MISSING,
            crd_stale=served is Served.STALE if served in (Served.STALE, Served.CURRENT) else None,
            namespaces=self.namespaces,
            work=_work(self.workers) if self.workers is not None else Work(),
        )

    def _platform_end(self) -> datetime | None:
        token = self.api.tokens.held if self.api is not None else None
        return token.end if token is not None else None


def _counts(workers: Workers) -> Mapping[str, int]:
    engine, health = workers.engine, [each.health() for each in workers.logins()]
    return {
        "polls": sum([*engine.polls.values()]),
        "submissions": engine.jobs.submissions,
        "preparations": engine.jobs.preparations,
        "cancellations": engine.jobs.cancellations,
        "storage_used_percent": round(100 * engine.storage.share) if engine.storage else 0,
        "remote_commands": sum(each.commands + each.commands_not_run + each.commands_unknown for each in health),
    }


def _work(workers: Workers) -> Work:
    engine = workers.engine
    live = [Shown.of(each) for each in engine.live()]
    outcomes, polls = Counter(engine.jobs.outcomes), Counter(engine.polls)
    storage = engine.storage
    return Work(
        live=sorted(live, key=lambda each: each.created, reverse=True),
        finished=engine.finished.newest(),
        finished_counts=engine.finished.counts(),
        polls={(kind.value, word): polls[kind, said] for kind in workers.kinds for said, word in POLLED.items()},
        submissions={
            (kind.value, word): outcomes[kind, type_] for kind in workers.kinds for type_, word in OUTCOMES.items()
        },
        preparations=engine.jobs.preparations,
        cancellations=engine.jobs.cancellations,
        watching=workers.watcher.running,
        storage=StorageFigures(storage.size, storage.free, storage.share) if storage else None,
        # Two Secrets may be of one user: a series is there once.
        logins=[_login(each) for each in {str(each.target): each for each in workers.logins()}.values()],
    )


def _login(login: Login) -> LoginFigures:
    health = login.health()
    return LoginFigures(
        name=str(login.target),
        connected=health.state == "connected",
        connects=health.connects,
        connect_failures=health.connect_failures,
        commands={
            "completed": health.commands,
            "not_run": health.commands_not_run,
            "unknown": health.commands_unknown,
        },
        latency=health.latency,
    )


def _seconds_to(end: datetime | None, now: datetime) -> float | None:
    return None if end is None else round((end - now).total_seconds(), 1)
