"""The pod that a plan comes to, and what the API server's refusals of one mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.pods import gpus, manifest
from speedrun_operator.backends.pods.outcome import read_refusal
from speedrun_operator.backends.pods.site import GPU_LABEL_KEYS, PodSite
from speedrun_operator.kube.client import ApiError, NotFound, Refused, Unavailable
from speedrun_operator.lifecycle.observation import Busy, Rejected, Unknown
from speedrun_operator.planning import Refusal, RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped

IDENTITY = Identity("lab", "mine", "0f0e0d0c-1111-2222-3333-444455556666")
SITE = Site(pod_image="registry.local/trainer:1")


def planned(recipe: str = "replay", **spec: Any) -> RunPlan:
    made = plan(Spec.model_validate({"recipe": {"name": recipe}, "backend": "Pods", **spec}), shipped(), SITE)
    assert isinstance(made, RunPlan), made
    return made.for_runs([(0, "A")])


def made(each: RunPlan, site: PodSite | None = None, **more: Any) -> dict[str, Any]:
    return manifest.pod(each, IDENTITY, 0, name="sr-c-u-0", cluster="c", site=site or PodSite(), **more)


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def test_it_is_owned_named_and_labelled_by_the_identity() -> None:
    metadata = made(planned())["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("sr-c-u-0", "lab")
    assert metadata["labels"]["speedrun.dev/uid"] == IDENTITY.uid
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (IDENTITY.uid, True, False)


@pytest.mark.parametrize("recipe", ["replay", "smoke", "modded-nanogpt"])
def test_it_holds_to_the_restricted_pod_security_standard(recipe: str) -> None:
    spec = made(planned(recipe))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for each in containers({"spec": spec}):
        assert each["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {next(key for key in each if key != "name") for each in spec["volumes"]} <= {
        "emptyDir", "configMap", "persistentVolumeClaim",
    }  # fmt: skip


def test_the_steps_are_init_containers_and_only_training_has_the_gpus() -> None:
    pod = made(planned("modded-nanogpt"))
    assert [each["name"] for each in containers(pod)] == ["code", "image", "data", "downloads", "train"]
    gpus_of = [each["resources"].get("limits", {}).get("nvidia.com/gpu") for each in containers(pod)]
    assert gpus_of == [None, None, None, None, "8"]


def test_kubernetes_replaces_nothing_in_the_scripts() -> None:
    spec = {"env": [{"name": "MINE", "value": "$(SPEEDRUN_JOB) $$ '\"` \\"}]}
    (train,) = made(planned(**spec))["spec"]["containers"]
    script = train["command"][2]
    assert "$" not in script.replace("$$", "")
    assert "export MINE='$(SPEEDRUN_JOB) $$ '\"'\"'\"` \\'" in script.replace("$$", "$")


@pytest.mark.parametrize("recipe", sorted(shipped()))
def test_no_recipe_makes_the_class_guaranteed(recipe: str) -> None:
    """A pod of that class would be pinned to CPUs, which drains a Slurm node on the same machine."""
    for each in containers(made(planned(recipe))):
        assert {"cpu", "memory"} <= set(each["resources"]["requests"])
        assert not {"cpu", "memory"} & set(each["resources"].get("limits", {}))


def test_what_the_spec_asks_of_the_pod_is_there() -> None:
    options = {
        "image": "registry.local/mine:2",
        "imagePullSecrets": ["pull"],
        "resources": {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi", "nvidia.com/gpu": "99"}},
        "annotations": {"team": "lab", "speedrun.dev/uid": "forged"},
        "schedulerName": "mine",
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "lab", "operator": "Exists", "tolerationSeconds": 5, "effect": "NoExecute"}],
        "cacheVolumeClaim": "shared",
        "sharedMemory": "2Gi",
        "queueName": "lab",
    }
    pod = made(planned(pods=options, gpus={"count": 4}))
    spec = pod["spec"]
    (train,) = spec["containers"]
    assert (train["image"], spec["imagePullSecrets"]) == ("registry.local/mine:2", [{"name": "pull"}])
    assert train["resources"] == {
        "requests": {"cpu": "8", "memory": "64Mi"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "4"},
    }
    assert pod["metadata"]["annotations"] == {"team": "lab"}
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lab"
    assert (spec["schedulerName"], spec["nodeSelector"]) == ("mine", {"pool": "a"})
    assert spec["tolerations"][0]["tolerationSeconds"] == 5
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "shared"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}


def test_sunks_scheduler_gets_its_annotations_and_a_grace_below_its_limit() -> None:
    site = PodSite(scheduler_name="tenant-slurm-slurm-scheduler", sunk=True)
    pod = made(planned("modded-nanogpt", slurm={"partition": "h100", "account": "lab"}), site)
    assert pod["spec"]["schedulerName"] == "tenant-slurm-slurm-scheduler"
    assert pod["spec"]["terminationGracePeriodSeconds"] < 25
    assert pod["metadata"]["annotations"] == {
        "sunk.coreweave.com/account": "lab",
        "sunk.coreweave.com/partition": "h100",
        "sunk.coreweave.com/exclusive": "none",
        "sunk.coreweave.com/timeout": "3600",
        "sunk.coreweave.com/comment": "speedrun lab/mine",
    }
    for each in containers(pod):
        assert float(each["resources"]["requests"]["cpu"]) > 0 and each["resources"]["requests"]["memory"]


def test_without_any_image_nothing_is_planned() -> None:
    spec = Spec.model_validate({"recipe": {"name": "replay"}, "backend": "Pods"})
    refused = plan(spec, shipped(), Site())
    assert isinstance(refused, Refusal) and refused.message.startswith("spec.pods.image: ")


def test_a_count_that_the_recipe_cannot_use_makes_no_pod() -> None:
    spec = Spec.model_validate({"recipe": {"name": "modded-nanogpt"}, "backend": "Pods", "gpus": {"count": 3}})
    refused = plan(spec, shipped(), SITE)
    assert isinstance(refused, Refusal) and "runs on 1, 2, 4, 8 GPUs, not on 3" in refused.message


NODES = [
    {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "node.kubernetes.io/instance-type": "gd-8xh100ib-i128"},
    {"gpu.nvidia.com/class": "B200", "node.kubernetes.io/instance-type": "gd-8xgb200"},
    {"nvidia.com/gpu.product": "NVIDIA-L40S", "gpu.nvidia.com/model": "L40"},
    {"unrelated": "h100"},
]


@pytest.mark.parametrize(
    ("gpu_type", "found"),
    [
        (
            "h100",
            {
                "nvidia.com/gpu.product": ("NVIDIA-H100-80GB-HBM3",),
                "node.kubernetes.io/instance-type": ("gd-8xh100ib-i128",),
            },
        ),
        ("B200", {"gpu.nvidia.com/class": ("B200",)}),
        ("L40S", {"nvidia.com/gpu.product": ("NVIDIA-L40S",)}),
        ("A100", {}),
    ],
)  # fmt: skip
def test_nodes_with_a_type_of_gpu_are_known_by_any_of_their_labels(
    gpu_type: str, found: dict[str, tuple[str, ...]]
) -> None:
    assert dict(gpus.values_by_key(gpu_type, GPU_LABEL_KEYS, NODES)) == found


@pytest.mark.parametrize("gpu_type", sorted(gpus.PRODUCTS))
def test_names_of_products_tell_their_own_type_and_no_other(gpu_type: str) -> None:
    for name in gpus.PRODUCTS[gpu_type]:
        node = {"nvidia.com/gpu.product": name}
        assert [each for each in gpus.PRODUCTS if gpus.values_by_key(each, GPU_LABEL_KEYS, [node])] == [gpu_type]


def test_any_of_the_labels_will_do() -> None:
    values = gpus.values_by_key("H100", GPU_LABEL_KEYS, NODES)
    affinity = made(planned(gpus={"type": "H100", "count": 8}), gpus=gpus.Wanted(values))["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [len(each["matchExpressions"]) for each in terms] == [1, 1]  # terms are alternatives


def quota(requested: str, used: str, limited: str) -> str:
    return f'pods "sr-1" is forbidden: exceeded quota: q, requested: {requested}, used: {used}, limited: {limited}'


def test_a_node_to_avoid_is_one_of_the_last_to_be_taken_and_beside_the_type() -> None:
    plan_ = planned(gpus={"type": "H100", "count": 8}).for_runs([(0, "A")], avoid=["node-a", "node-b"])
    wanted = gpus.Wanted(gpus.values_by_key("H100", GPU_LABEL_KEYS, NODES))
    affinity = made(plan_, gpus=wanted)["spec"]["affinity"]["nodeAffinity"]
    assert len(affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == 2
    (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("node-a", "node-b")]
    assert preferred == {"weight": 100, "preference": {"matchFields": fields}}
    assert "affinity" not in made(planned())["spec"]


QUOTA = 'pods "sr-1" is forbidden: exceeded quota: tight, requested: pods=1, used: pods=0, limited: pods=0'
REFUSALS: list[Any] = [
    (Refused(422, "spec.containers[0].resources.requests: Invalid value"), Rejected, "SubmissionRejected"),
    (Refused(403, QUOTA), Busy, "QuotaExceeded"),
    (Refused(403, quota("pods=1", "pods=3", "pods=3")), Busy, "room"),
    (Refused(403, quota("count/pods=1", "count/pods=0", "count/pods=0")), Busy, "room"),
    (Refused(403, quota("requests.cpu=8", "requests.cpu=3", "requests.cpu=8")), Busy, "room"),
    (Refused(403, quota("requests.cpu=8", "requests.cpu=0", "requests.cpu=4")), Rejected, "so much requests.cpu:"),
    (
        Refused(
            403,
            quota(
                "limits.memory=64Gi,requests.nvidia.com/gpu=8",
                "limits.memory=1Gi,requests.nvidia.com/gpu=0",
                "limits.memory=64000Mi,requests.nvidia.com/gpu=8",
            ),
        ),
        Rejected,
        "so much limits.memory: ask",
    ),
    (Refused(403, 'pods "x" is forbidden: status unknown for quota: q, resources: pods'), Busy, "room"),
    (
        Refused(403, 'pods "x" is forbidden: failed quota: q: must specify limits.memory for: code,train'),
        Rejected,
        "set spec.pods.resources.limits",
    ),
    (
        Refused(403, 'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 64Gi'),
        Rejected,
        "LimitRange",
    ),
    (
        Refused(403, 'pods "x" is forbidden: minimum cpu usage per Container is 100m, but request is 10m'),
        Rejected,
        "LimitRange",
    ),
    (
        Refused(
            403, 'pods "x" is forbidden: cpu max limit to request ratio per Pod is 2, but provided ratio is 4.000000'
        ),
        Rejected,
        "LimitRange",
    ),
    (
        Refused(
            403, 'pods "x" is forbidden: error looking up service account n/default: serviceaccount "default" not found'
        ),
        Busy,
        "ServiceAccountMissing",
    ),
    (Refused(403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'), Rejected, "SubmissionRejected"),
    (Refused(403, 'admission webhook "v.example" denied the request: no'), Rejected, "SubmissionRejected"),
    (Refused(403, 'User "u" cannot create resource "pods" in API group ""'), Busy, "Forbidden"),
    (
        Refused(403, "unable to create new content in namespace x because it is being terminated"),
        Busy,
        "NamespaceTerminating",
    ),
    (NotFound(404, 'namespaces "x" not found'), Busy, "NamespaceGone"),
    (Unavailable(429, "too many requests"), Busy, "ApiServerBusy"),
    (Unavailable(500, 'failed calling webhook "v.example": connection refused'), Busy, "AdmissionUnavailable"),
    (Unavailable(504, "request did not complete within the allotted timeout"), Unknown, "ApiServerUnreachable"),
    (Unavailable(0, "the API server does not answer"), Unknown, "ApiServerUnreachable"),
]


@pytest.mark.parametrize(("error", "kind", "says"), REFUSALS, ids=lambda each: getattr(each, "status", None))
def test_what_a_refused_creation_means(error: ApiError, kind: type, says: str) -> None:
    """`says`: the reason, or a part of the remedy."""
    outcome = read_refusal(error)
    assert isinstance(outcome, kind)
    reason, message = getattr(outcome, "reason", ""), getattr(outcome, "message", "")
    assert str(error) in message
    assert says in (reason, "") or says in message


def test_a_plan_without_runs_makes_no_pod() -> None:
    with pytest.raises(ValueError, match="no runs"):
        made(replace(planned(), runs=()))
