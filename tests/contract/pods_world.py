"""The bed's Kubernetes as a place for the backend Pods: a namespace, real Speedruns as owners, a real node."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from contract.wire import Wire
from speedrun_operator.api.names import Identity
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.backends.pods.backend import PodsBackend
from speedrun_operator.backends.pods.manifest import ALLOCATION_LABEL, CLUSTER_LABEL, UID_LABEL
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.kube.access import Access, Credentials, Files
from speedrun_operator.kube.client import Kube
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.observation import Outcome
from speedrun_operator.planning import RunPlan
from testbed.image import IMAGE
from testbed.kubernetes import Kubernetes

SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}}


@dataclass(frozen=True)
class _Wired:
    """The credentials of a kubeconfig, for the server at the other end of a wire."""

    kubeconfig: Path
    wire: Wire

    async def read(self, before: Credentials | None) -> Credentials:
        found = await Files(str(self.kubeconfig), None, explicit=True).read(before)
        return replace(found, server=f"https://127.0.0.1:{self.wire.port}")


class PodsWorld:
    """Implements World. `kubeconfig`: of an account with the operator's rights. Between the two is a Wire."""

    refusal = "memory limit"

    def __init__(self, api: Kubernetes, kubeconfig: Path) -> None:
        self._api, self._kubeconfig = api, kubeconfig
        self.cluster = f"t{uuid.uuid4().hex[:7]}"
        self.namespace = f"contract-{self.cluster}"
        self.wire = Wire(int(api.url("kube-apiserver").rpartition(":")[2]))
        self._opened: list[tuple[Kube, PodsBackend]] = []

    async def open(self) -> None:
        await asyncio.to_thread(
            self._api.call,
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}},
        )
        await self.wire.open()
        self.backend = self.another()

    async def close(self) -> None:
        for kube, backend in self._opened:
            await backend.close()
            await kube.close()
        await self.wire.close()
        await asyncio.to_thread(self._api.call, "DELETE", f"/api/v1/namespaces/{self.namespace}")

    async def ref(self, name: str) -> AllocationRef:
        path = f"/apis/speedrun.dev/v1alpha1/namespaces/{self.namespace}/speedruns"
        body = {
            "apiVersion": "speedrun.dev/v1alpha1",
            "kind": "Speedrun",
            "metadata": {"generateName": f"{name}-"},
            "spec": {"recipe": {"name": "replay"}, "backend": "Pods"},
        }
        made = json.loads(await asyncio.to_thread(self._api.call, "POST", path, body))["metadata"]
        identity = Identity(self.namespace, made["name"], made["uid"])
        # Claimed a while ago: no operator before us may still be about to make its pod.
        return AllocationRef(identity, 0, datetime.now(UTC) - timedelta(minutes=2), "modded-nanogpt")

    def another(self, *, log_bytes: int = 65536, site: PodSite | None = None) -> PodsBackend:
        kube = Kube(Access(_Wired(self._kubeconfig, self.wire)))
        pods = Pods(kube, f"{CLUSTER_LABEL}={self.cluster}", [self.namespace])
        backend = PodsBackend(pods, site or PodSite(grace_seconds=2), self.cluster, log_bytes=log_bytes)
        self._opened.append((kube, backend))
        return backend

    async def passes(self) -> None:
        await asyncio.sleep(0.1)

    def somewhere(self) -> Mapping[str, Any]:
        return {"backend": "Pods", "pods": {"image": IMAGE, "resources": SMALL}}

    def waits(self) -> Mapping[str, Any]:
        selector = {"speedrun.test/held": "true"}
        return {"backend": "Pods", "pods": {"image": IMAGE, "resources": SMALL, "nodeSelector": selector}}

    def nowhere(self) -> Mapping[str, Any]:
        too_little = {"requests": {"memory": "64Mi"}, "limits": {"memory": "32Mi"}}
        return {"backend": "Pods", "pods": {"image": IMAGE, "resources": too_little}}

    async def submit_unheard(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        await self.backend.observe([ref])  # connects
        self.wire.deaf_after = 3000  # a look is shorter, a pod is longer
        submitting = asyncio.create_task(self.backend.submit(ref, plan))
        deadline = time.monotonic() + 20
        while not await self.jobs(ref) or not self.wire.lost_bytes:
            assert not submitting.done(), submitting.result()
            assert time.monotonic() < deadline, "the pod was not made, or its answer was heard"
            await asyncio.sleep(0.02)
        self.wire.cut()
        return await submitting

    async def jobs(self, ref: AllocationRef) -> list[str]:
        return [each["metadata"]["uid"] for each in await asyncio.to_thread(self.pods, ref)]

    def pods(self, ref: AllocationRef) -> list[dict[str, Any]]:
        labels = f"{UID_LABEL}%3D{ref.identity.uid},{ALLOCATION_LABEL}%3D{ref.allocation}"
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={labels}"
        return list(json.loads(self._api.call("GET", path))["items"])

    def log(self, ref: AllocationRef) -> bytes:
        (pod,) = self.pods(ref)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/log?container="
        spec = pod["spec"]
        names = [each["name"] for each in [*spec.get("initContainers", []), *spec["containers"]]]
        return b"".join(self._api.call("GET", path + name) for name in names)

    def left(self, ref: AllocationRef) -> list[str]:
        labels = f"{UID_LABEL}%3D{ref.identity.uid}"
        path = f"/api/v1/namespaces/{self.namespace}/configmaps?labelSelector={labels}"
        return [each["metadata"]["name"] for each in json.loads(self._api.call("GET", path))["items"]]

    def remote_commands(self) -> int | None:
        return None

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        await self.wire.close()
        yield
        await self.wire.open()
