"""What the operator's settings say of pods."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from speedrun_operator.settings import PodSettings

GPU_LABEL_KEYS = (
    "nvidia.com/gpu.product",
    "gpu.nvidia.com/class",
    "gpu.nvidia.com/model",
    "node.kubernetes.io/instance-type",
)


@dataclass(frozen=True, slots=True)
class PodSite:
    """`python`: in the image or the cache. `cache_claim` empty: caches and logs go with the pod.

    `grace_seconds`: from SIGTERM to SIGKILL. `give_up`: how long a pod may stand with a fault that only an edit heals.
    """

    python: str = "python3"
    cache_claim: str = ""
    user_id: int = 1000
    gpu_resource: str = "nvidia.com/gpu"
    gpu_label_keys: tuple[str, ...] = GPU_LABEL_KEYS
    scheduler_name: str = ""
    sunk: bool = False
    grace_seconds: int = 20
    give_up: timedelta = timedelta(seconds=300)

    @classmethod
    def of(cls, given: PodSettings) -> PodSite:
        return cls(
            python=given.python,
            cache_claim=given.cache_volume_claim,
            user_id=given.user_id,
            gpu_resource=given.gpu_resource,
            gpu_label_keys=tuple(given.gpu_label_keys),
            scheduler_name=given.scheduler_name,
            sunk=given.sunk,
            grace_seconds=given.grace_seconds,
            give_up=timedelta(seconds=given.give_up_seconds),
        )
