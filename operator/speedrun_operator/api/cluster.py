"""What is known of the cluster as a whole, from whoever runs it: the facts on which a submission waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Lifecycle(StrEnum):
    """Where a rented cluster stands.

    `HIDDEN`: it was shown, and is not any more. `OTHER`: a word that nobody here knows; what is known of its parts
    decides.
    """

    PROVISIONING = "provisioning"
    ACTIVE = "active"
    ENDING = "ending"
    ENDED = "ended"
    FAILED = "failed"
    HIDDEN = "hidden"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Ready:
    """Whether a part is ready. `known` False: nobody said so. `message`: the provider's own words."""

    known: bool = False
    ready: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A snapshot. What is not known is None, or Ready() with `known` False; unknown holds nothing back.

    `state`: the provider's word for `lifecycle`. `storage`: what kinds are configured. `nodes`: what Slurm itself says,
    once it was asked.
    """

    cluster: str
    name: str = ""
    lifecycle: Lifecycle | None = None
    state: str = ""
    scheduler: str | None = None
    slurm: Ready = field(default_factory=Ready)
    storage: tuple[str, ...] = ()
    storage_ready: Ready = field(default_factory=Ready)
    ssh: Ready = field(default_factory=Ready)
    nodes: Ready = field(default_factory=Ready)
