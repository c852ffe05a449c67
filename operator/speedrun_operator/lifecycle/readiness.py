"""What a Speedrun waits for while its cluster is not ready. Pure.

What is not known holds nothing back: then the login and Slurm decide, as they do without a platform.
"""

from __future__ import annotations

from speedrun_operator.api.cluster import ClusterState, Lifecycle, Ready
from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import Backend, Spec
from speedrun_operator.lifecycle.situation import Waiting

SUNK = "sunk"
KEEP = "its nodes and storage go with it, and nothing more is submitted"


def awaited(facts: ClusterState | None, spec: Spec | None = None) -> Waiting | None:
    """The first thing that is missing, in the order in which a cluster comes up; None where it may be tried.

    Without a spec: of one that is to run on Slurm.
    """
    slurm = spec is None or spec.backend is Backend.SLURM
    if facts is None:
        return None
    over = ended(facts)
    if over is not None:
        return over
    if facts.lifecycle is Lifecycle.HIDDEN:
        message = (
            f"the platform does not show the cluster {_named(facts)} to this account any more: it was deleted, or the "
            "account has lost its right to it; compare with `speedrun-operator clusters`"
        )
        return Waiting(Reason.CLUSTER_NOT_SHOWN.value, message)
    if slurm and facts.scheduler is not None and facts.scheduler.lower() != SUNK:
        message = (
            f"the cluster {_named(facts)} has the scheduler {facts.scheduler!r} and no Slurm: use one whose scheduler "
            "is SUNK, or backend Pods"
        )
        return Waiting(Reason.SCHEDULER_NOT_SUNK.value, message, permanent=True)
    if facts.lifecycle not in (None, Lifecycle.ACTIVE, Lifecycle.OTHER):
        remedy = "; look at it in the console" if facts.lifecycle is Lifecycle.FAILED else ""
        return Waiting(
            Reason.CLUSTER_PROVISIONING.value, f"the cluster {_named(facts)} is {facts.state or 'not active'}{remedy}"
        )
    if not slurm:
        return None
    parts = (
        (Reason.SLURM_NOT_READY, "Slurm", facts.slurm),
        (Reason.STORAGE_NOT_READY, f"storage ({', '.join(facts.storage) or 'none configured'})", facts.storage_ready),
        (Reason.SSH_NOT_READY, "SSH access", facts.ssh),
    )
    for reason, name, part in parts:
        if part.known and not part.ready:
            return Waiting(reason.value, f"{name} of the cluster {_named(facts)} is not ready{_why(part)}")
    if facts.nodes.known and not facts.nodes.ready:
        return Waiting(
            Reason.SLURM_NOT_READY.value,
            f"the platform says that {_named(facts)} is ready, but sinfo does not{_why(facts.nodes)}",
        )
    return None


def ended(facts: ClusterState | None) -> Waiting | None:
    """Said of a cluster that ends or has ended; what runs there is not followed for ever."""
    if facts is None or facts.lifecycle not in (Lifecycle.ENDING, Lifecycle.ENDED):
        return None
    return Waiting(Reason.CLUSTER_ENDED.value, f"the cluster {_named(facts)} is {facts.state}: {KEEP}")


def gone(facts: ClusterState | None) -> Waiting | None:
    """Said of a cluster that has ended: nobody is there to be asked any more."""
    return ended(facts) if facts is not None and facts.lifecycle is Lifecycle.ENDED else None


def _named(facts: ClusterState) -> str:
    return facts.name or facts.cluster


def _why(part: Ready) -> str:
    return f": {part.message}" if part.message else ""
