"""What is made for an allocation and in which order, over a real HTTP server, and what is not made at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.backends.pods.backend import PodsBackend
from speedrun_operator.backends.pods.observe import observed
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.lifecycle.observation import Accepted, Busy, Outcome, Rejected
from unit.pods.server import Server, serving
from unit.pods.test_pod_manifest import containers, planned

REF = AllocationRef(Identity("a", "mine", "0f0e0d0c-1111-2222-3333-444455556666"), 0, datetime.now(UTC), "trainer")


@asynccontextmanager
async def backend(server: Server, **site: Any) -> AsyncIterator[PodsBackend]:
    async with serving(server) as pods:
        yield PodsBackend(pods, PodSite(**site), "c1")


async def submitted(
    server: Server, recipe: str = "replay", site: Mapping[str, Any] | None = None, **spec: Any
) -> Outcome:
    async with backend(server, **(site or {})) as one:
        return await one.submit(REF, planned(recipe, **spec))


async def test_the_package_is_there_before_the_pod_that_mounts_it() -> None:
    server = Server()
    assert isinstance(await submitted(server, "smoke"), Accepted)
    assert [kind for kind, _ in server.made] == ["configmaps", "pods"]
    (_, package), (_, pod) = server.made
    assert package["metadata"]["name"] in [each.get("configMap", {}).get("name") for each in pod["spec"]["volumes"]]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("configmaps is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=9, limited: 9", Busy),
        ('User "u" cannot create resource "configmaps" in API group ""', Busy),
        ("admission webhook denied the request: no", Rejected),
    ],
)
async def test_where_the_package_is_refused_no_pod_holds_gpus_for_it(said: str, kind: type) -> None:
    server = Server()
    server.refused["configmaps"] = said
    outcome = await submitted(server, "smoke")
    assert isinstance(outcome, kind) and said in getattr(outcome, "message", "")
    assert server.made == []


def resources(cpu: str, memory: str, limits: Mapping[str, str]) -> dict[str, Any]:
    return {"pods": {"resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": dict(limits)}}}


@pytest.mark.parametrize(
    ("given", "guaranteed"),
    [
        (resources("8", "64Gi", {"cpu": "8", "memory": "64Gi"}), True),
        (resources("8", "64Gi", {"cpu": "8000m", "memory": "65536Mi"}), True),
        (resources("8", "64Gi", {"cpu": "9", "memory": "64Gi"}), False),
        (resources("8", "64Gi", {"cpu": "8", "memory": "65Gi"}), False),
        (resources("8", "64Gi", {"memory": "64Gi"}), False),
        (resources("8", "64Gi", {"cpu": "8"}), False),
        (resources("8", "64Gi", {}), False),
        ({"pods": {"resources": {"limits": {"cpu": "2", "memory": "1536Mi"}}}}, True),  # the recipe's own requests
        ({}, False),
    ],
)
async def test_sunk_gets_no_pod_of_the_class_guaranteed(given: dict[str, Any], guaranteed: bool) -> None:
    """The class as Kubernetes defines it, worked out here of what would be made."""
    server, elsewhere = Server(), Server()
    outcome = await submitted(server, "smoke", {"sunk": True}, **given)
    assert isinstance(await submitted(elsewhere, "smoke", **given), Accepted), "elsewhere it may be of any class"
    made = containers(elsewhere.made[-1][1])
    if guaranteed:
        assert isinstance(outcome, Rejected) and outcome.message.startswith("spec.pods.resources: ")
        assert server.made == []
        assert all({"cpu", "memory"} <= set(each["resources"]["limits"]) for each in made)
    else:
        assert isinstance(outcome, Accepted)
        assert all(each["resources"]["requests"] != each["resources"].get("limits", {}) for each in made)


def asked_for(pod: Mapping[str, Any]) -> dict[str, list[str]]:
    """Labels, any of which a node may have, with their values."""
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found = [each["matchExpressions"] for each in terms["nodeSelectorTerms"]]
    assert all(len(each) == 1 and each[0]["operator"] == "In" for each in found)
    return {each["key"]: each["values"] for (each,) in found}


H100 = {"gpus": {"type": "h100", "count": 8}}
UNFIT = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."


def told(pod: Mapping[str, Any]) -> str:
    """What is said of it while it fits on no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNFIT}
    metadata = {**pod["metadata"], "uid": "uid-1", "creationTimestamp": "2026-07-01T12:00:00Z"}
    status = {"phase": "Pending", "conditions": [condition]}
    seen = observed({**pod, "metadata": metadata, "status": status}, datetime.now(UTC))
    return seen.message or ""


async def test_a_type_of_gpu_is_asked_for_by_the_labels_that_nodes_have() -> None:
    server = Server()
    server.nodes = [{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, {"nvidia.com/gpu.product": "NVIDIA-L40S"}]
    await submitted(server, **H100)
    pod = server.made[-1][1]
    assert asked_for(pod) == {"nvidia.com/gpu.product": ["NVIDIA-H100-80GB-HBM3"]}
    assert "speedrun.dev/gpu-type" not in pod["metadata"]["labels"] and "likely" not in told(pod)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (None, "the operator may not list nodes, so that only likely names of the GPU type were asked for: allow it"),
        ([{"nvidia.com/gpu.product": "NVIDIA-L40S"}], "no node had the GPU type when the pod was made"),
    ],
    ids=["unread", "unseen"],
)
async def test_a_guessed_label_is_one_that_nodes_really_have_and_the_guess_is_told(
    nodes: list[dict[str, str]] | None, says: str
) -> None:
    server = Server()
    server.nodes = nodes
    await submitted(server, **H100)
    pod = server.made[-1][1]
    asked = asked_for(pod)
    assert "NVIDIA-H100-80GB-HBM3" in asked["nvidia.com/gpu.product"]
    assert "gd-8xh100ib-i128" in asked["node.kubernetes.io/instance-type"]
    assert UNFIT in told(pod) and says in told(pod) and "spec.gpus.type" in told(pod)
