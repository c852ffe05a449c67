"""The last part of a log, kept in a ConfigMap of the Speedrun where no volume outlives the pod. Pure."""

from __future__ import annotations

import base64
import gzip
from collections import deque
from collections.abc import Mapping
from typing import Any

from speedrun_operator.api.names import Identity
from speedrun_operator.backends.pods.manifest import CLUSTER_LABEL, UID_LABEL, owner

MOST_KEPT = 512 * 1024  # bytes, compressed; a ConfigMap has 1 MiB, and base64 makes four of three
PIECE = 64 * 1024
KEY = "log.gz"


class Tail:
    """The last part of a text that comes in pieces: as much as MOST_KEPT holds, compressed as it comes.

    What is compressed piece by piece is one gzip file all the same.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._rest = bytearray()

    def add(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= PIECE:
            self._close(PIECE)

    def compressed(self) -> bytes:
        """The gzip file; empty if nothing was added."""
        rest = gzip.compress(bytes(self._rest), mtime=0) if self._rest else b""
        return b"".join(self._pieces) + rest

    def _close(self, size: int) -> None:
        piece = gzip.compress(bytes(self._rest[:size]), mtime=0)
        del self._rest[:size]
        self._pieces.append(piece)
        self._size += len(piece)
        while self._size > self._most - 2 * PIECE and len(self._pieces) > 1:  # the rest may be as long again
            self._size -= len(self._pieces.popleft())


def kept_name(pod: str) -> str:
    """The ConfigMap with a pod's log."""
    return f"{pod}-log"


def kept_log(identity: Identity, cluster: str, pod: str, compressed: bytes) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": kept_name(pod),
            "namespace": identity.namespace,
            "labels": {CLUSTER_LABEL: cluster, UID_LABEL: identity.uid},
            "ownerReferences": [owner(identity)],
        },
        "immutable": True,
        "binaryData": {KEY: base64.b64encode(compressed).decode()},
    }


def shown_of(identity: Identity, allocation: int, pod: str, claim: str) -> str:
    """The command that shows a pod's log; behind it, as a comment, where the log is when the pod is gone.

    `claim`: the volume's that keeps it; empty: none does.
    """
    command = f"kubectl logs -n {identity.namespace} {pod} --all-containers --ignore-errors"
    path = f"{identity.ledger('speedruns', allocation)}/log"
    return f"{command} # without the pod: {path} on the volume of claim {claim}" if claim else command


def claim_of(pod: Mapping[str, Any]) -> str:
    """The claim of the volume that a pod's log is kept on; empty: it goes with the pod."""
    volumes = {each.get("name"): each for each in (pod.get("spec") or {}).get("volumes") or []}
    return str(volumes.get("cache", {}).get("persistentVolumeClaim", {}).get("claimName", ""))


def shown_by(namespace: str, pod: str) -> str:
    """The command that shows a kept log."""
    path = "{.binaryData." + KEY.replace(".", "\\.") + "}"
    return f"kubectl get configmap -n {namespace} {kept_name(pod)} -o jsonpath='{path}' | base64 -d | gunzip"
