"""The two nodes, as an administrator handles them, and Speedruns that ask for one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cluster.faults.world import World

FIRST, SECOND = "slurm-h100-0", "slurm-h100-1"


def on(node: str, run: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """`run` on that node only."""
    return run | {"spec": run["spec"] | {"slurm": {"nodeList": [node]}, **spec}}


def declare_dead(world: World, node: str) -> None:
    """What runs on the node has failed, by an administrator's word; the node takes new jobs at once."""
    world.admin("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    # Refused where its daemon has brought it back by itself already.
    world.slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")


@contextlib.contextmanager
def drained(world: World, node: str) -> Iterator[None]:
    """The node takes no new jobs while the context lasts."""
    world.admin("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        yield
    finally:
        # Refused where it takes jobs already: a controller that was killed may have forgotten.
        world.slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
