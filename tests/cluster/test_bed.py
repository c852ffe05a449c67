"""The Kubernetes half of the bed is the real thing, and survives what later tests do to it."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from testbed.facts import Facts
from testbed.kubectl import Kubectl, KubectlFailed
from testbed.kubernetes import COMPONENTS, ApiError, Kubernetes
from testbed.processes import wait_for


def config_map(name: str, owner: dict[str, str] | None = None) -> str:
    metadata: dict[str, object] = {"name": name}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap"} | owner]
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def test_versions(kubectl: Kubectl) -> None:
    versions = json.loads(kubectl("version", "-o", "json"))
    assert versions["clientVersion"]["gitVersion"].startswith("v1.34.")
    assert versions["serverVersion"]["gitVersion"].startswith("v1.34.")
    assert versions["serverVersion"]["minor"] == "34"


def test_rbac_refuses_a_service_account_until_a_role_is_bound(
    kubectl: Kubectl, kubernetes: Kubernetes, namespace: str, tmp_path: Path
) -> None:
    kubectl("create", "serviceaccount", "nobody", "-n", namespace)
    path = tmp_path / "kubeconfig"
    kubernetes.service_account_kubeconfig(namespace, "nobody", path)
    assert path.stat().st_mode & 0o777 == 0o600
    theirs = kubectl.acting_as(path)
    assert f"system:serviceaccount:{namespace}:nobody" in theirs("auth", "whoami")
    with pytest.raises(KubectlFailed, match="forbidden"):
        theirs("get", "configmaps")
    account = f"--serviceaccount={namespace}:nobody"
    kubectl("create", "rolebinding", "view", "--clusterrole=view", account, "-n", namespace)

    def allowed() -> bool:
        try:
            return "kube-root-ca.crt" in theirs("get", "configmaps")
        except KubectlFailed:
            return False

    wait_for("the binding to count", allowed, timeout=10)


def test_a_token_for_a_service_account_that_is_absent_is_refused(kubernetes: Kubernetes, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match='"nobody-at-all" not found'):
        kubernetes.service_account_kubeconfig("default", "nobody-at-all", tmp_path / "kubeconfig")


def test_a_stranger_on_this_machine_may_not_write(bed: Facts, kubernetes: Kubernetes) -> None:
    trusting = ssl.create_default_context(cafile=kubernetes.pki / "ca.crt")
    body = config_map("stranger").encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{bed.api_url}/api/v1/namespaces/default/configmaps", body, headers)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, context=trusting, timeout=10)
    with refusal.value:
        assert refusal.value.code == 403
    with pytest.raises(OSError):  # etcd wants a client certificate before it says anything
        urllib.request.urlopen(f"{kubernetes.url('etcd')}/health", context=trusting, timeout=10)


def test_a_deleted_namespace_goes_with_what_is_in_it(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-n", namespace, "-f", "-", stdin=config_map("inside"))
    kubectl("delete", "namespace", namespace, "--timeout=30s")
    assert kubectl("get", "namespace", namespace, "--ignore-not-found") == ""


def test_what_an_object_owns_is_collected_after_it(kubectl: Kubectl, namespace: str) -> None:
    made = kubectl("create", "-n", namespace, "-f", "-", "-o", "json", stdin=config_map("owner"))
    owner = {"name": "owner", "uid": json.loads(made)["metadata"]["uid"]}
    kubectl("create", "-n", namespace, "-f", "-", stdin=config_map("owned", owner))
    kubectl("delete", "configmap", "owner", "-n", namespace)

    def gone() -> bool:
        return kubectl("get", "configmap", "owned", "-n", namespace, "--ignore-not-found") == ""

    wait_for("the garbage collector", gone, timeout=40)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_killed_component_comes_back_where_it_was(
    component: str, kubectl: Kubectl, kubernetes: Kubernetes, namespace: str
) -> None:
    kubectl("create", "-n", namespace, "-f", "-", stdin=config_map("kept"))
    url = kubernetes.url(component)
    kubernetes.kill(component)
    assert not kubernetes.healthy(component)
    kubernetes.start(component)
    assert kubernetes.url(component) == url
    kubernetes.wait_ready("kube-apiserver")
    assert "kept" in kubectl("get", "configmaps", "-n", namespace, "-o", "name")


def test_a_frozen_api_server_keeps_its_clients_waiting(kubernetes: Kubernetes) -> None:
    kubernetes.pause("kube-apiserver")
    with pytest.raises(TimeoutError):
        kubernetes.call("GET", "/api/v1/namespaces/default", timeout=0.5)
    kubernetes.resume("kube-apiserver")
    kubernetes.wait_ready("kube-apiserver")
    assert kubernetes.exists("/api/v1/namespaces/default")
