"""The names by which Kubernetes, Slurm and the shared file system know a Speedrun.

Everything here can be computed from the resource alone, so that a lost status loses no job.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

GROUP = "speedrun.dev"
VERSION = "v1alpha1"
PLURAL = "speedruns"
KIND = "Speedrun"
API_VERSION = f"{GROUP}/{VERSION}"
CRD_NAME = f"{PLURAL}.{GROUP}"
CRD_INSTALL = "`speedrun-operator crd | kubectl apply --server-side --force-conflicts -f -`"

FINALIZER = f"{GROUP}/operator"
FINISHED_LABEL = f"{GROUP}/finished"
JOB_PREFIX = "sr"
NAME_LIMIT = 63


def is_object_name(text: str) -> bool:
    """Whether Kubernetes takes it for a Speedrun's name: a DNS name, of at most NAME_LIMIT characters."""
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return len(text) <= NAME_LIMIT and re.fullmatch(rf"{part}(\.{part})*", text) is not None


def cluster8(cluster_id: str) -> str:
    """Eight characters that tell one Kubernetes cluster's jobs from another's on the same login.

    `cluster_id` is the kube-system namespace's UID or the setting of that name. A UID gives its first eight hex
    digits; any other text that is not 1 to 8 lower-case letters and digits is hashed.
    """
    plain = cluster_id.replace("-", "")
    if re.fullmatch(r"[0-9a-f]{32}", plain):
        return plain[:8]
    if re.fullmatch(r"[a-z0-9]{1,8}", cluster_id):
        return cluster_id
    return hashlib.sha256(cluster_id.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """Which Speedrun: unlike namespace and name, the UID is never given again."""

    namespace: str
    name: str
    uid: str

    @property
    def uid8(self) -> str:
        return self.uid.replace("-", "")[:8]

    def job_name(self, cluster: str, allocation: int) -> str:
        """The Slurm job's name: the idempotency key of one allocation. Only [a-z0-9-]."""
        return f"{JOB_PREFIX}-{cluster}-{self.uid}-{allocation}"

    def ledger(self, root: str, allocation: int) -> str:
        """The allocation's own directory on the shared file system."""
        return f"{root}/{self.namespace}/{self.name}-{self.uid8}/alloc-{allocation}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
