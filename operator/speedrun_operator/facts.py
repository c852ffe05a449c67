"""What a cluster has: partitions, their nodes and GPUs, as it said of itself. Types and the questions to them; pure.

Unknown is a value: an untyped GPU has type None, a driver that no job has told yet is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

# What Slurm puts behind a node's state: not responding, rebooting, powering down, in maintenance.
_ASIDE = "*@^!%$"
_IN_USE = frozenset({
    "idle", "mix", "mixed", "alloc", "allocated", "comp", "completing", "plnd", "planned", "resv", "reserved",
})  # fmt: skip
_MODELS = frozenset({
    "v100", "p100", "t4", "a10", "a30", "a40", "a100", "l4", "l40", "l40s", "h100", "h200", "h800", "gh200", "b100",
    "b200", "b300", "gb200", "gb300", "rtx6000", "mi250x", "mi300x", "mi325x",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one node: `type` as the cluster writes it (nvidia_h100), None where it writes none."""

    type: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Nodes:
    """`count` nodes of a partition that are alike and in the same state."""

    count: int
    state: str
    gpus: tuple[Gpus, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether they can run a job, now or when they have run another. Powered off (`~`) they can be woken."""
        word = self.state.rstrip(_ASIDE + "~#-+")
        return word in _IN_USE and not set(_ASIDE) & set(self.state)


@dataclass(frozen=True, slots=True)
class Partition:
    """`most_minutes`: the longest time limit it takes; None: any. `up`: whether it takes and starts jobs."""

    name: str
    nodes: tuple[Nodes, ...] = ()
    default: bool = False
    most_minutes: int | None = None
    up: bool = True

    @property
    def size(self) -> int:
        return sum(each.count for each in self.nodes)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """`controller_started`: when Slurm's controller was, by the cluster's clock.

    `drivers`: driver versions that jobs found lately, by the name of the GPU: {"NVIDIA H100 80GB HBM3": ("580.95",)}.
    """

    partitions: tuple[Partition, ...] = ()
    controller_started: datetime | None = None
    drivers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def partition(self, name: str) -> Partition | None:
        return next((each for each in self.partitions if each.name == name), None)


def words(text: str) -> frozenset[str]:
    """`nvidia_h100_80gb` → nvidia, h100, 80gb: the words that make up the name of a GPU, a partition or a feature."""
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def count_of(nodes: Nodes, gpu_type: str | None, partition: str) -> int | None:
    """How many GPUs of `gpu_type` (None: of any) each node has; None where it has GPUs and nothing says their type.

    Where GRES names no type, features and the partition's name do, as SUNK's do (compute-h100).
    """
    if gpu_type is None:
        return max((each.count for each in nodes.gpus), default=0)
    wanted = words(gpu_type)
    named = [each.count for each in nodes.gpus if each.type is not None and wanted <= words(each.type)]
    if named:
        return max(named)
    untyped = [each.count for each in nodes.gpus if each.type is None or not words(each.type) & _MODELS]
    told = frozenset(word for each in (*nodes.features, partition) for word in words(each))
    if not untyped or (told & _MODELS and not wanted <= told):
        return 0
    return max(untyped) if wanted <= told else None


def has(facts: ClusterFacts) -> str:
    """What the cluster has, for a person: `compute-h100: 2 nodes of 8 nvidia_h100 (2 idle); …`."""
    if not facts.partitions:
        return "no partition at all"
    return "; ".join(map(describe, facts.partitions))


def describe(partition: Partition) -> str:
    """One partition, for a person."""
    kinds: dict[str, dict[str, int]] = {}
    for each in partition.nodes:
        states = kinds.setdefault(_gpus_text(each.gpus), {})
        states[each.state] = states.get(each.state, 0) + each.count
    told = [
        f"{sum(states.values())} {'node' if sum(states.values()) == 1 else 'nodes'}{gpus} "
        f"({', '.join(f'{count} {state}' for state, count in states.items())})"
        for gpus, states in kinds.items()
    ]
    closed = "" if partition.up else ", not up"
    default = ", the default" if partition.default else ""
    return f"{partition.name}{default}{closed}: {' and '.join(told) or 'no nodes'}"


def drivers_of(facts: ClusterFacts, gpu_type: str | None) -> tuple[str, ...]:
    """Driver versions known of nodes with this GPU."""
    if gpu_type is None:
        return ()
    found = [versions for name, versions in facts.drivers.items() if words(gpu_type) <= words(name)]
    return tuple(version for versions in found for version in versions)


def major(version: str) -> int:
    """`580.95.05` → 580; 0 for what is no version."""
    digits = re.match(r"[0-9]{1,6}", version)
    return int(digits[0]) if digits else 0


def usable_nodes(partition: Partition, gpu_type: str | None, count: int) -> int:
    """Nodes that can run a job with so many GPUs of the type, counting those whose type nobody says."""
    return sum(each.count for each in fitting(partition.nodes, gpu_type, count, partition.name) if each.usable)


def fitting(nodes: Iterable[Nodes], gpu_type: str | None, count: int, partition: str) -> list[Nodes]:
    """Nodes that have so many GPUs of the type, or may have."""
    return [
        each
        for each in nodes
        if (found := count_of(each, gpu_type, partition)) is None or found >= count
        if max((gpus.count for gpus in each.gpus), default=0) >= count
    ]


def _gpus_text(gpus: tuple[Gpus, ...]) -> str:
    return " of " + " and ".join(f"{each.count} {each.type or 'GPUs'}" for each in gpus) if gpus else " without GPUs"
