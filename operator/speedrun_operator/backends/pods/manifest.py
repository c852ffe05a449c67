"""RunPlan → the pod. Pure.

Named and labelled by the identity, so that a pod can be found and told apart without any memory. What Kubernetes would
replace in commands, `$(NAME)`, is escaped: scripts arrive as they were rendered.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from speedrun_operator.api.names import API_VERSION, GROUP, KIND, Identity
from speedrun_operator.api.spec import KeyRef, Toleration
from speedrun_operator.backends.pods import places, script
from speedrun_operator.backends.pods.code import GIT_VARIABLE
from speedrun_operator.backends.pods.gpus import ANY, Wanted
from speedrun_operator.backends.pods.quantity import amount
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.planning import RunPlan

Json = dict[str, Any]
CLUSTER_LABEL = f"{GROUP}/cluster"
UID_LABEL = f"{GROUP}/uid"
NAME_LABEL = f"{GROUP}/name"
ALLOCATION_LABEL = f"{GROUP}/allocation"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
SUNK = "sunk.coreweave.com"
OUR_NAMES = (f"{GROUP}/",)


def pod(
    plan: RunPlan,
    identity: Identity,
    allocation: int,
    *,
    name: str,
    cluster: str,
    site: PodSite,
    gpus: Wanted = ANY,
) -> Json:
    """The pod of one allocation. `gpus`: the labels of nodes that have the plan's GPU type."""
    claim = plan.pods.cache_volume_claim or site.cache_claim
    *before, train = script.parts(plan, identity, allocation)
    environment = _environment(plan, site)
    scheduler = plan.pods.scheduler_name or site.scheduler_name
    spec: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": site.grace_seconds,
        "activeDeadlineSeconds": plan.time_limit_minutes * 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": site.user_id,
            "runAsGroup": site.user_id,
            "fsGroup": site.user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_container(plan, each, environment, _resources(plan, site, gpus=False)) for each in before],
        "containers": [_container(plan, train, environment, _resources(plan, site, gpus=True))],
        "volumes": _volumes(plan, claim, package_name(identity, cluster)),
    }
    given: Json = {
        "schedulerName": scheduler,
        "nodeSelector": dict(plan.pods.node_selector),
        "imagePullSecrets": [{"name": each} for each in plan.pods.image_pull_secrets if each],
        "tolerations": _tolerations(plan, site),
        "affinity": _affinity(gpus.values if plan.gpu_count else (), plan.avoid),
    }
    spec |= {key: value for key, value in given.items() if value}
    labels = {
        "app.kubernetes.io/managed-by": "speedrun-operator",
        CLUSTER_LABEL: cluster,
        UID_LABEL: identity.uid,
        NAME_LABEL: identity.name,
        ALLOCATION_LABEL: str(allocation),
    }
    if plan.gpu_count and gpus.guess:
        labels[places.GUESS_LABEL] = gpus.guess
    if plan.pods.queue_name:
        labels[QUEUE_LABEL] = plan.pods.queue_name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": identity.namespace,
            "labels": labels,
            "annotations": _annotations(plan, identity, site),
            "ownerReferences": [owner(identity)],
        },
        "spec": spec,
    }


def owner(identity: Identity) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": identity.name,
        "uid": identity.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def package_name(identity: Identity, cluster: str) -> str:
    """The ConfigMap with the Python package of ours that goes with a Speedrun's pods."""
    return f"sr-{cluster}-{identity.uid}-package"


def package(identity: Identity, cluster: str, data: bytes) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": package_name(identity, cluster),
            "namespace": identity.namespace,
            "labels": {CLUSTER_LABEL: cluster, UID_LABEL: identity.uid},
            "ownerReferences": [owner(identity)],
        },
        "immutable": True,
        "binaryData": {"package.tar.gz": base64.b64encode(data).decode()},
    }


def _container(plan: RunPlan, part: script.Part, environment: list[Json], resources: Json) -> Json:
    mounts = [{"name": "cache", "mountPath": places.CACHE}, {"name": "shm", "mountPath": "/dev/shm"}]
    if part.name == "code":  # nobody else is shown what the code is made of
        if plan.package:
            mounts.append({"name": "package", "mountPath": "/package"})
        if plan.patch_ref:
            mounts.append({"name": "patch", "mountPath": places.PATCH_FOLDER})
        if plan.git_ref:
            environment = [*environment, _from_secret(GIT_VARIABLE, plan.git_ref)]
    return {
        "name": part.name,
        "image": plan.pods.image,
        # Kubernetes makes one dollar sign of two.
        "command": ["bash", "-c", part.script.replace("$", "$$")],
        "env": environment,
        "resources": resources,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _environment(plan: RunPlan, site: PodSite) -> list[Json]:
    return [
        *(_from_secret(name, ref) for name, ref in plan.secret_refs),
        {"name": "SPEEDRUN_JOB", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "SPEEDRUN_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "SPEEDRUN_PYTHON", "value": site.python},
    ]


def _from_secret(name: str, ref: KeyRef) -> Json:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def _resources(plan: RunPlan, site: PodSite, *, gpus: bool) -> Json:
    """Requests without equal CPU limits: a pod of the class Guaranteed would be pinned to CPUs, which drains a Slurm
    node that has the same ones."""
    given = plan.pods.resources
    requests = {"cpu": str(plan.cpus), "memory": f"{plan.memory_mib}Mi", **given.requests}
    limits: dict[str, str] = dict(given.limits)
    for resources in (requests, limits):
        resources.pop(site.gpu_resource, None)
    if gpus and plan.gpu_count:
        limits[site.gpu_resource] = str(plan.gpu_count)
    return {"requests": requests, **({"limits": limits} if limits else {})}


def is_guaranteed(plan: RunPlan, site: PodSite) -> bool:
    """Whether the pod comes to be of the class Guaranteed: each container's requests are its limits."""
    resources = _resources(plan, site, gpus=False)
    requests, limits = resources["requests"], resources.get("limits", {})
    same = (amount(requests[each]) == amount(limits.get(each, "")) is not None for each in ("cpu", "memory"))
    return all(same)


def _volumes(plan: RunPlan, claim: str, package: str) -> list[Json]:
    cache: Json = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    volumes: list[Json] = [
        {"name": "cache", **cache},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": plan.pods.shared_memory}},
    ]
    if plan.package:
        volumes.append({"name": "package", "configMap": {"name": package}})
    if plan.patch_ref:
        items = [{"key": plan.patch_ref.key, "path": places.PATCH_FILE}]
        volumes.append({"name": "patch", "configMap": {"name": plan.patch_ref.name, "items": items}})
    return volumes


def _tolerations(plan: RunPlan, site: PodSite) -> list[Json]:
    given = [_toleration(each) for each in plan.pods.tolerations]
    if plan.gpu_count:
        given.append({"key": site.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    return given


def _toleration(each: Toleration) -> Json:
    made: Json = {"key": each.key, "operator": each.operator, "value": each.value, "effect": each.effect}
    made = {key: value for key, value in made.items() if value}
    if each.toleration_seconds is not None:
        made["tolerationSeconds"] = each.toleration_seconds
    return made


def _affinity(values: tuple[tuple[str, tuple[str, ...]], ...], avoid: tuple[str, ...]) -> Json:
    """A node that any of the keys calls one of the type; rather not one to avoid, by its name: labels may differ."""
    affinity: Json = {}
    if values:
        terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(each)}]} for key, each in values]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if avoid:
        others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in avoid]
        preference = {"weight": 100, "preference": {"matchFields": others}}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [preference]
    return {"nodeAffinity": affinity} if affinity else {}


def _annotations(plan: RunPlan, identity: Identity, site: PodSite) -> dict[str, str]:
    """The user's, then what makes SUNK's scheduler keep the node for it, where it is that scheduler."""
    made: dict[str, str] = {}
    if site.sunk:
        options: Mapping[str, str] = {
            "account": plan.slurm.account,
            "partition": plan.slurm.partition,
            "qos": plan.slurm.qos,
            "reservation": plan.slurm.reservation,
            "exclusive": "none" if plan.exclusive else "",
            "timeout": str(plan.time_limit_minutes * 60),
            "comment": f"speedrun {identity}",
        }
        made = {f"{SUNK}/{key}": value for key, value in options.items() if value}
    return {**made, **{key: value for key, value in plan.pods.annotations.items() if not key.startswith(OUR_NAMES)}}
