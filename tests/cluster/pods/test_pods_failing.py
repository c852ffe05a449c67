"""Pods that fail, on a real node: each is seen for what it is, with a reason, and with what a person can do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.pods.pods import on_pods, pods_of, slow_pod, trains
from cluster.speedruns import Speedruns, condition
from cluster.waiting import until
from testbed.kubectl import Kubectl
from testbed.node import Node


def waits_for(runs: Speedruns, name: str, *said: str) -> None:
    """It waits as Unschedulable, and its message has all of `said`."""

    def told(status: dict[str, Any]) -> bool:
        message = (status.get("allocations") or [{}])[-1].get("message", "")
        return status.get("reason") == "Unschedulable" and all(each in message for each in said)

    status = runs.wait(name, f"waiting: {said}", told, 30)
    assert status["phase"] == "Queued"


def test_what_fits_on_no_node_says_which_resource_and_how_many_nodes(runs: Speedruns, node: Node) -> None:
    runs.apply(on_pods("big", pods={"resources": {"requests": {"memory": "900Gi"}}}))
    waits_for(runs, "big", "0/1 nodes are available: 1 Insufficient memory", "ask for less")
    runs.apply(on_pods("elsewhere", gpus={"type": "B200", "count": 8}))
    waits_for(runs, "elsewhere", "see spec.gpus.type")
    runs.apply(on_pods("claimless", pods={"cacheVolumeClaim": "not-there"}))
    waits_for(runs, "claimless", 'persistentvolumeclaim "not-there" not found', "create the claim")


def test_an_image_that_cannot_be_pulled_fails_the_run_in_bounded_time(runs: Speedruns) -> None:
    """BR-036: the message has reason and image from the first; then it is Failed and the pod is removed."""
    runs.apply(on_pods("nope", pods={"image": "127.0.0.1:1/acme/trainer:nope"}, runs=3))
    first = runs.wait("nope", "told", lambda status: "mage" in (status.get("reason") or ""))
    message = first["allocations"][0]["message"]
    assert "127.0.0.1:1/acme/trainer:nope" in message and "imagePullSecrets" in message
    assert first["phase"] == "Preparing"
    status = runs.wait_finished("nope", timeout=40)
    assert (status["phase"], status["reason"]) == ("Failed", "NeverRuns")
    assert "127.0.0.1:1/acme/trainer:nope" in condition(status, "Finished")["message"]
    assert len(status["allocations"]) == 1  # the next would be the same
    until("its pod removed", lambda: pods_of(runs, "nope") == [])


def test_a_secret_that_is_missing_is_named_and_no_object_shows_one(runs: Speedruns, kubectl: Kubectl) -> None:
    """BR-036: CreateContainerConfigError says which Secret, and is given up in bounded time."""
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "token"}}}]
    runs.apply(on_pods("without", env=env))
    status = runs.wait_finished("without")
    assert (status["phase"], status["reason"]) == ("Failed", "NeverRuns")
    assert "CreateContainerConfigError in container train" in condition(status, "Finished")["message"]
    assert 'secret "mine" not found' in condition(status, "Finished")["message"]
    kubectl("create", "secret", "generic", "mine", "-n", runs.namespace, "--from-literal=token=s3cr3t-words")
    runs.apply(on_pods("with", env=env, parameters={"steps": 60, "intervalMilliseconds": 1000}))
    runs.wait("with", "training", trains)
    (pod,) = pods_of(runs, "with")
    name = pod["metadata"]["name"]
    inside = kubectl("exec", "-n", runs.namespace, name, "-c", "train", "--", "bash", "-c", 'echo "$TOKEN"')
    assert inside.strip() == "s3cr3t-words"
    shown = kubectl("get", "speedruns,pods,events,configmaps", "-n", runs.namespace, "-o", "json")
    assert "s3cr3t-words" not in shown + kubectl("logs", "-n", runs.namespace, name, "--all-containers")


@pytest.mark.full
def test_a_volume_that_cannot_be_mounted_is_named_and_given_up(runs: Speedruns, kubectl: Kubectl, node: Node) -> None:
    """BR-036: nothing of it is in the pod's status, only in its events."""
    node.claim(runs.namespace, "broken", node.layout.cache / "not-there")
    runs.apply(on_pods("unmounted", pods={"cacheVolumeClaim": "broken"}))
    status = runs.wait("unmounted", "told", lambda status: status.get("reason") == "FailedMount", timeout=60)
    assert "claim broken" in status["allocations"][0]["message"]
    status = runs.wait_finished("unmounted", timeout=60)
    assert (status["phase"], status["reason"]) == ("Failed", "NeverRuns")
    assert "FailedMount" in condition(status, "Finished")["message"]


@pytest.mark.full
def test_an_image_name_that_is_none_fails_at_once(runs: Speedruns) -> None:
    """BR-036: InvalidImageName heals by an edit only, so nothing is waited for."""
    runs.apply(on_pods("misnamed", pods={"image": "a//b:c:d"}))
    status = runs.wait_finished("misnamed", timeout=40)
    assert (status["phase"], status["reason"]) == ("Failed", "NeverRuns")
    assert "InvalidImageName" in condition(status, "Finished")["message"]


def test_a_pod_deleted_by_hand_is_a_failure_and_no_success(runs: Speedruns, kubectl: Kubectl) -> None:
    """BR-041: deleted before training finished, and said so; never Running without a pod."""
    runs.apply(slow_pod("taken"))
    runs.wait("taken", "training", trains)
    (pod,) = pods_of(runs, "taken")
    kubectl("delete", "pod", pod["metadata"]["name"], "-n", runs.namespace, "--wait=false")
    status = runs.wait_finished("taken")
    assert (status["phase"], status["reason"]) == ("Failed", "PodDeleted")
    assert "deleted before training finished" in condition(status, "Finished")["message"]


def test_a_drained_node_is_seen_and_the_run_made_again(runs: Speedruns, kubectl: Kubectl, node: Node) -> None:
    runs.apply(slow_pod("moved"))
    runs.wait("moved", "training", trains)
    kubectl("drain", node.layout.name, "--pod-selector=speedrun.dev/name=moved", "--delete-emptydir-data")
    status = runs.wait("moved", "made again", lambda status: len(status.get("allocations", [])) == 2)
    assert status["allocations"][0]["reason"] == "Drained"
    assert "EvictionByEvictionAPI" in status["allocations"][0]["message"]
    runs.wait_event("moved", lambda each: each[1] == "Drained")
    waits_for(runs, "moved", "1 node(s) were unschedulable")
    kubectl("uncordon", node.layout.name)
    runs.wait("moved", "training again", trains)


def test_the_same_name_again_never_adopts_the_old_pod(runs: Speedruns, kubectl: Kubectl) -> None:
    """BR-044: a new Speedrun of the same name has a pod of its own, while the old one still terminates and holds the
    log of a better run; nothing of that shows on it, and it waits for nothing."""
    first = on_pods("nano", parameters={"steps": 60, "intervalMilliseconds": 500, "valLoss": "3.2100"})
    runs.apply(first)
    runs.wait("nano", "training", trains)
    old = runs.get("nano")["metadata"]["uid"]
    (dying,) = pods_of(runs, "nano")
    hold(kubectl, dying, ["speedrun.test/hold"])
    try:
        kubectl("delete", "sr", "nano", "-n", runs.namespace, "--wait=false")
        runs.wait_gone("nano")
        assert [each["metadata"]["uid"] for each in pods_of(runs, "nano")] == [dying["metadata"]["uid"]]
        runs.apply(on_pods("nano", parameters={"steps": 3, "intervalMilliseconds": 10, "valLoss": "3.2500"}))
        status = runs.wait_finished("nano")
        new = runs.get("nano")["metadata"]["uid"]
        assert new != old and new in status["allocations"][0]["name"]
        assert (status["val_loss"], status["runsSummary"]) == (3.25, "1/1")
        pods = {each["metadata"]["labels"]["speedrun.dev/uid"]: each["metadata"] for each in pods_of(runs, "nano")}
        assert set(pods) == {old, new} and pods[old].get("deletionTimestamp") and pods[new]["name"] != pods[old]["name"]
    finally:
        hold(kubectl, dying, None)
    until("the old pod gone", lambda: len(pods_of(runs, "nano")) == 1)
    assert runs.status("nano") == status


def hold(kubectl: Kubectl, pod: dict[str, Any], finalizers: list[str] | None) -> None:
    """Whether a pod that is deleted stays there."""
    patch = json.dumps({"metadata": {"finalizers": finalizers}})
    where = (pod["metadata"]["name"], "-n", pod["metadata"]["namespace"])
    kubectl("patch", "pod", *where, "--type=merge", "-p", patch)


@pytest.mark.full
def test_a_namespace_without_room_makes_it_wait_and_then_run(runs: Speedruns, kubectl: Kubectl) -> None:
    quota: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"pods": "0"}},
    }
    kubectl("apply", "-n", runs.namespace, "-f", "-", stdin=json.dumps(quota))
    until("quota counted", lambda: "0" in kubectl(
        "get", "quota", "tight", "-n", runs.namespace, "-o", "jsonpath={.status.used.pods}"
    ))  # fmt: skip
    runs.apply(on_pods("crowded"))
    status = runs.wait(
        "crowded", "told", lambda status: condition(status, "Submitted").get("reason") == "QuotaExceeded"
    )
    assert (status["phase"], pods_of(runs, "crowded")) == ("Pending", [])
    assert "exceeded quota: tight" in condition(status, "Submitted")["message"]
    kubectl("delete", "quota", "tight", "-n", runs.namespace)
    assert runs.wait_finished("crowded")["phase"] == "Succeeded"


@pytest.mark.full
def test_a_locked_node_is_told_and_one_that_is_lost_given_up_in_bounded_time(
    runs: Speedruns, kubectl: Kubectl, node: Node
) -> None:
    """BR-041: first that the pod is taken away and why, then, where its node never answers, a recorded end.

    The lock is set by hand: of a bed's one node, the controllers would take no pod away if it were merely lost.
    """
    runs.apply(slow_pod("lost", backoffLimit=0))
    runs.wait("lost", "training", trains)
    node.pause_part("kubelet")
    kubectl("taint", "node", node.layout.name, "sunk.coreweave.com/lock=locked:NoExecute")
    try:
        status = runs.wait("lost", "told", lambda status: status.get("reason") == "Terminating", timeout=30)
        assert "DeletionByTaintManager" in status["allocations"][0]["message"]
        assert "sunk.coreweave.com/lock" in status["allocations"][0]["message"]
        status = runs.wait_finished("lost", timeout=120)
    finally:
        kubectl("taint", "node", node.layout.name, "sunk.coreweave.com/lock-")
    assert (status["phase"], status["reason"]) == ("Failed", "NodeLost")
    assert node.layout.name in condition(status, "Finished")["message"]
