"""What the page is made of: plain figures, taken at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from speedrun_operator.api.phases import Phase
from speedrun_operator.distribution import Counted
from speedrun_operator.shown import Shown


@dataclass(frozen=True, slots=True)
class LoginFigures:
    """One login node. Counts since the start."""

    name: str
    connected: bool
    connects: int
    connect_failures: int
    commands: Mapping[str, int]
    """By outcome."""
    latency: Counted


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """In bytes; `used` is of 1."""

    size: int
    free: int
    used: float


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine does. Counts since the start; the keys are (backend, outcome)."""

    live: Sequence[Shown] = ()
    finished: Sequence[Shown] = ()
    finished_counts: Mapping[tuple[str, Phase], int] = field(default_factory=dict)
    polls: Mapping[tuple[str, str], int] = field(default_factory=dict)
    submissions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    preparations: int = 0
    cancellations: int = 0
    watching: bool = False
    storage: StorageFigures | None = None
    logins: Sequence[LoginFigures] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything. `work` is empty until the CRD and the API server are there."""

    version: str
    now: datetime
    beat_age: float
    lag: Counted
    requests: Mapping[tuple[str, str], int]
    """By (API, HTTP status)."""
    token_ends: Mapping[str, datetime]
    """By API."""
    crd_installed: bool | None = None
    crd_stale: bool | None = None
    namespaces: Sequence[str] = ()
    work: Work = field(default_factory=Work)
