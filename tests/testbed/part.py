"""What every part of the bed (etcd and the API server, Slurm, the login, ...) looks like to the frame in bed.py.

A part keeps everything that it needs to find its processes again under `Place.state`: `down` is often called by
another process than the one that called `up`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from testbed.processes import Processes

# TESTBED_NAME gives a bed of its own beside the machine's: for people who work on two clones at once.
NAME = os.environ.get("TESTBED_NAME", "")
SUFFIX = f"-{NAME}" if NAME else ""
STATE = Path(f"/srv/speedrun-testbed{SUFFIX}")
PROFILES = ("fast", "default", "bench")


def default_cache() -> Path:
    """Where built tools are kept between beds: $SPEEDRUN_CACHE or ~/.cache/speedrun-operator."""
    return Path(os.environ.get("SPEEDRUN_CACHE") or Path.home() / ".cache" / "speedrun-operator")


def say_nothing(line: str) -> None:
    """A `say` for those who want no progress lines."""


@dataclass(frozen=True)
class Place:
    """Where one bed lives and how it talks.

    `state` is the root of this bed's state (each part makes its own directories below; logs go to `logs`), `cache`
    holds what is built once, `profile` is one of PROFILES, `say` takes one progress line for the person who waits.
    """

    state: Path = STATE
    cache: Path = field(default_factory=default_cache)
    profile: str = "default"
    say: Callable[[str], None] = say_nothing
    processes: Processes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"unknown profile {self.profile!r}: choose one of {', '.join(PROFILES)}")
        object.__setattr__(self, "processes", Processes(self.state / "processes"))

    @property
    def logs(self) -> Path:
        return self.state / "log"


class Part(Protocol):
    """One part of the bed.

    `up` starts it, waits until it has been proven ready and returns facts (flat; they go into state.json and into
    `python -m testbed env`); it raises StartFailed. Keys that others rely on: `kubeconfig`, `api_url`, `kubectl`;
    `ssh_host`, `ssh_port`, `ssh_user`, `ssh_key`, `ssh_known_hosts`; `slurm_conf`; `job_python`.
    `down` stops it by recorded process ids and never raises for something that is gone already.
    """

    name: str

    def up(self) -> dict[str, str]: ...

    def down(self) -> None: ...
