"""Values that are the chart's own, of the release, its rights and its pod: what each does."""

from __future__ import annotations

from typing import Any

from testbed.helm import Object, of_kind
from unit.chart.rendering import LOGIN, PLATFORM, Row, container, known, nested, one, pod, rights, volume

DIGEST = "sha256:" + "0a" * 32


def names(objects: list[Object], *kinds: str) -> set[str]:
    return {each["metadata"]["name"] for each in of_kind(objects, *kinds)}


def template(objects: list[Object]) -> Any:
    """What the pod of the Deployment has as metadata."""
    return one(objects, "Deployment")["spec"]["template"]["metadata"]


ROWS: list[Row] = [
    ("nameOverride", "00123", {}, lambda o: one(o, "Deployment", "speedrun-00123")),
    ("fullnameOverride", "runs", {}, lambda o: names(o, "Deployment", "ServiceAccount", "ConfigMap") == {"runs"}),
    ("image.repository", "host:5000/a/b", {}, lambda o: container(o)["image"] == "host:5000/a/b:0.1.0"),
    ("image.tag", "00123", {}, lambda o: container(o)["image"].endswith("/speedrun-operator:00123")),
    ("image.digest", DIGEST, nested("image.tag", "1"), lambda o: container(o)["image"].endswith(f"tor@{DIGEST}")),
    ("image.pullPolicy", "Always", {}, lambda o: container(o)["imagePullPolicy"] == "Always"),
    ("image.pullSecrets", ["00123"], {}, lambda o: pod(o)["imagePullSecrets"] == [{"name": "00123"}]),
    ("crds.install", True, {}, lambda o: one(o, "CustomResourceDefinition", "speedruns.speedrun.dev")),
    ("crds.install", False, {}, lambda o: not of_kind(o, "CustomResourceDefinition")),
    (
        "crds.keep",
        True,
        nested("crds.install", True),
        lambda o: one(o, "CustomResourceDefinition")["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"},
    ),
    (
        "crds.keep",
        False,
        nested("crds.install", True),
        lambda o: "annotations" not in one(o, "CustomResourceDefinition")["metadata"],
    ),
    ("uninstall.detach", False, {}, lambda o: not of_kind(o, "Job")),
    (
        "uninstall.detach",
        True,
        {},
        lambda o: one(o, "Job")["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete",
    ),
    ("watch.namespaces", ["a", "00123"], {}, lambda o: known(o)["watch"]["namespaces"] == ["a", "00123"]),
    (
        "watch.namespaces",
        ["a", "00123"],
        {},
        lambda o: {each[0] for each in rights(o) if "speedruns" in each} == {"a", "00123"},
    ),
    ("watch.createNamespaces", True, nested("watch.namespaces", ["00123"]), lambda o: one(o, "Namespace", "00123")),
    ("watch.createNamespaces", False, {}, lambda o: not of_kind(o, "Namespace")),
    (
        "login.keySecret",
        "00123",
        {"login": LOGIN},
        lambda o: volume(o, "login")[0]["secret"]["name"] == "00123",
    ),
    (
        "login.keySecretKey",
        "00123",
        {"login": LOGIN},
        lambda o: volume(o, "login")[0]["secret"]["items"] == [{"key": "00123", "path": "key"}],
    ),
    (
        "login.knownHostsSecret",
        "00123",
        {"login": LOGIN},
        lambda o: volume(o, "login")[1]["secret"]["name"] == "00123",
    ),
    (
        "login.knownHostsSecretKey",
        "00123",
        {"login": LOGIN},
        lambda o: volume(o, "login")[1]["secret"]["items"] == [{"key": "00123", "path": "known_hosts"}],
    ),
    (
        "logins",
        {"00123": {"secret": "0x10", "port": 2222}, "b": {"secret": "b", "host": "h", "root": "/b"}},
        {"login": {"host": "slurm-login.tenant-slurm.svc"}},
        lambda o: (
            known(o)["logins"]
            == {"00123": {"secret": "0x10", "port": 2222}, "b": {"secret": "b", "host": "h", "root": "/b"}}
        ),
    ),
    (
        "logins",
        {"a": {"secret": "0x10"}, "b": {"secret": "b"}, "c": {"secret": "b"}},
        {"login": {"host": "slurm-login.tenant-slurm.svc"}},
        lambda o: (
            {each for each in rights(o) if each[0] == "speedrun-system" and "secrets" in each}
            == {("speedrun-system", "", "secrets", name, "get") for name in ("0x10", "b")}
        ),
    ),
    (
        "loginsReadSeconds",
        1000000,
        {"logins": {"a": {"secret": "a", "host": "h"}}},
        lambda o: known(o)["logins_read_seconds"] == 1000000,
    ),
    (
        "platform.tokenSecret",
        "00123",
        {"platform": PLATFORM},
        lambda o: volume(o, "platform")[0]["secret"]["name"] == "00123",
    ),
    (
        "platform.tokenSecretKey",
        "00123",
        {"platform": PLATFORM},
        lambda o: volume(o, "platform")[0]["secret"]["items"] == [{"key": "00123", "path": "token"}],
    ),
    (
        "clusterId",
        "prod",
        {},
        lambda o: known(o)["cluster_id"] == "prod" and not [each for each in rights(o) if "namespaces" in each],
    ),
    ("rbac.create", False, {}, lambda o: rights(o) == set() and not of_kind(o, "RoleBinding", "ClusterRoleBinding")),
    (
        "rbac.clusterWide",
        True,
        nested("watch.namespaces", []),
        lambda o: ("", "speedrun.dev", "speedruns", "", "watch") in rights(o),
    ),
    (
        "rbac.secretNames",
        ["hf", "00123"],
        {},
        lambda o: {each[3:] for each in rights(o) if "secrets" in each} == {("hf", "get"), ("00123", "get")},
    ),
    ("rbac.secretNames", [], {}, lambda o: not [each for each in rights(o) if "secrets" in each]),
    ("rbac.nodes", True, {}, lambda o: ("", "", "nodes", "", "list") in rights(o)),
    (
        "rbac.tokenReview",
        True,
        {},
        lambda o: (
            {each[2:] for each in rights(o) if each[1].startswith("auth")}
            == {("tokenreviews", "", "create"), ("subjectaccessreviews", "", "create")}
        ),
    ),
    ("serviceAccount.create", False, {}, lambda o: pod(o)["serviceAccountName"] == "default"),
    ("serviceAccount.create", False, {}, lambda o: not of_kind(o, "ServiceAccount")),
    (
        "serviceAccount.name",
        "00123",
        {},
        lambda o: (
            {each["subjects"][0]["name"] for each in of_kind(o, "RoleBinding")} == {"00123"}
            and pod(o)["serviceAccountName"] == one(o, "ServiceAccount")["metadata"]["name"] == "00123"
        ),
    ),
    (
        "serviceAccount.annotations",
        {"a/b": "00123"},
        {},
        lambda o: one(o, "ServiceAccount")["metadata"]["annotations"] == {"a/b": "00123"},
    ),
    (
        "serviceAccount.tokenExpirationSeconds",
        1000000,
        {},
        lambda o: volume(o, "account")[0]["serviceAccountToken"] == {"path": "token", "expirationSeconds": 1000000},
    ),
    (
        "healthPort",
        8181,
        {},
        lambda o: known(o)["health_address"] == "0.0.0.0:8181" and container(o)["ports"][0]["containerPort"] == 8181,
    ),
    (
        "resources",
        {"limits": {"memory": 128849018880, "cpu": "00123"}},
        {},
        lambda o: container(o)["resources"]["limits"] == {"memory": 128849018880, "cpu": "00123"},
    ),
    ("terminationGracePeriodSeconds", 90, {}, lambda o: pod(o)["terminationGracePeriodSeconds"] == 90),
    ("nodeSelector", {"pool": "00123"}, {}, lambda o: pod(o)["nodeSelector"] == {"pool": "00123"}),
    (
        "tolerations",
        [{"key": "a", "value": "00123", "tolerationSeconds": 1000000}],
        {},
        lambda o: pod(o)["tolerations"] == [{"key": "a", "value": "00123", "tolerationSeconds": 1000000}],
    ),
    ("affinity", {"podAffinity": {}}, {}, lambda o: pod(o)["affinity"] == {"podAffinity": {}}),
    ("priorityClassName", "00123", {}, lambda o: pod(o)["priorityClassName"] == "00123"),
    ("podLabels", {"a": "00123"}, {}, lambda o: template(o)["labels"]["a"] == "00123"),
    (
        "podLabels",
        {"app.kubernetes.io/instance": "other"},
        {},
        lambda o: template(o)["labels"]["app.kubernetes.io/instance"] == "speedrun",
    ),
    ("podAnnotations", {"a": "1e3"}, {}, lambda o: template(o)["annotations"]["a"] == "1e3"),
    (
        "podSecurityContext",
        {"runAsUser": 1000000},
        {},
        lambda o: pod(o)["securityContext"]["runAsUser"] == 1000000,
    ),
    (
        "securityContext",
        {"readOnlyRootFilesystem": False},
        {},
        lambda o: container(o)["securityContext"]["readOnlyRootFilesystem"] is False,
    ),
    (
        "extraEnv",
        [{"name": "HTTPS_PROXY", "value": "00123"}],
        {},
        lambda o: container(o)["env"][-1] == {"name": "HTTPS_PROXY", "value": "00123"},
    ),
]
