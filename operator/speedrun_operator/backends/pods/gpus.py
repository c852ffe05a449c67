"""Which nodes have GPUs of a type: their labels tell it, under one of several keys, in one of many spellings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# What NVIDIA's GPU feature discovery says in nvidia.com/gpu.product, and CoreWeave in the type of an instance.
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "A100": (
        *("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-80GB-PCIe", "NVIDIA-A100-PCIE-40GB"),
        "gd-8xa100-i128",
    ),
    "B200": ("b200-8x",),
    "GB200": ("gb200-4x",),
    "H100": ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL", "gd-8xh100ib-i128"),
    "H200": ("NVIDIA-H200-NVL", "gd-8xh200ib-i128"),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Labels of nodes with a type of GPU: keys, any of which will do, each with its values.

    `guess`: why they are only what nodes are likely to have; empty: nodes have them.
    """

    values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    guess: str = ""


ANY = Wanted()


def values_by_key(
    gpu_type: str, keys: Sequence[str], nodes: Iterable[Mapping[str, str]]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """For each key the values on `nodes` that name the type, sorted; keys without any are left out.

    A value that has the type as a word of its own (`NVIDIA-H100-80GB-HBM3`) goes before one that has it inside
    (`gd-8xh100ib-i128`), so that L40 is not taken for L40S where both are told apart.
    """
    nodes = list(nodes)
    found = []
    for key in keys:
        values = {node[key] for node in nodes if node.get(key)}
        whole = {value for value in values if _is_word(gpu_type, value)}
        inside = {value for value in values if _is_inside(gpu_type, value)}
        if whole or inside:
            found.append((key, tuple(sorted(whole or inside))))
    return tuple(found)


def guessed(gpu_type: str, keys: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What such labels are likely to say: the type itself, and what its products are called."""
    spellings = (gpu_type, gpu_type.upper(), gpu_type.lower(), f"NVIDIA-{gpu_type.upper()}")
    values = tuple(dict.fromkeys((*spellings, *PRODUCTS.get(gpu_type.upper(), ()))))
    return tuple((key, values) for key in keys)


def _is_word(gpu_type: str, value: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(gpu_type.lower())}(?![a-z0-9])", value.lower()) is not None


def _is_inside(gpu_type: str, value: str) -> bool:
    """Not behind a letter other than the x of `8xh100`, and not before a digit: GB200 is no B200, A1000 no A100."""
    return re.search(rf"(?<![a-wyz0-9]){re.escape(gpu_type.lower())}(?![0-9])", value.lower()) is not None
