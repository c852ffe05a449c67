"""What to do about a job that sbatch refused for good."""

from __future__ import annotations

_REMEDIES = (
    ("partition name", "the cluster has no such partition: use one that `sinfo` lists as spec.slurm.partition"),
    ("not in this partition", "spec.slurm.nodeList names nodes that are not in the partition"),
    ("not permitted to use this partition", "choose another spec.slurm.partition"),
    ("account/partition combination", "correct spec.slurm.account, or ask the administrator to add this user to Slurm"),
    ("qos specification", "correct spec.slurm.qos"),
    ("time limit is invalid", "lower spec.timeLimitSeconds: the partition allows less"),
    ("accounting/QOS policy", "ask for less (spec.gpus, spec.timeLimitSeconds), or use another account or qos"),
    ("gres", "see spec.gpus: the partition has no such GPUs"),
    ("GRES", "see spec.gpus: the partition has no such GPUs"),
    ("node configuration is not available", "no node of the partition has so many GPUs, CPUs or so much memory"),
    ("feature specification", "correct spec.slurm.constraint"),
    ("node name", "correct spec.slurm.nodeList and spec.slurm.exclude"),
    ("eservation", "correct spec.slurm.reservation"),
)  # fmt: skip


def remedy(said: str) -> str | None:
    """What a person can do about what sbatch said; None where it says all itself."""
    return next((words for text, words in _REMEDIES if text in said), None)
