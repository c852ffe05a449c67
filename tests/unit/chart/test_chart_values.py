"""Every value of the chart does what its comment says, and nothing but what it may be is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.chart import documented
from testbed.helm import CHART, HelmFailed, Object
from unit.chart import values_around, values_pod
from unit.chart.conftest import Render
from unit.chart.rendering import BASE, LOGIN, PLATFORM, Row, container, known, merged, nested, one, pod, settings

OWN: list[Row] = [*values_pod.ROWS, *values_around.ROWS]

# Values that are settings of the operator: other than their defaults, and as the operator then has them.
SETTINGS: dict[str, Any] = {
    "watch.resyncSeconds": 1000000,
    "login.host": "slurm-login.tenant-slurm.svc",
    "login.port": 2222,
    "login.user": "00123",
    "login.connectTimeoutSeconds": 12.5,
    "login.maxChannels": 4,
    "slurm.root": "/shared/00123",
    "slurm.python": "/opt/venv/bin/python",
    "slurm.gpuPartition": "00123",
    "slurm.partition": "0x10",
    "slurm.pollSeconds": 1000000,
    "slurm.lostAfterSeconds": 1000000,
    "slurm.neverAfterSeconds": 61,
    "slurm.releaseSeconds": 121,
    "pods.enabled": True,
    "pods.image": "registry.example/trainer:00123",
    "pods.python": "/cache/bin/python",
    "pods.cacheVolumeClaim": "00123",
    "pods.userId": 1000660000,
    "pods.gpuResource": "example.com/gpu",
    "pods.gpuLabelKeys": ["a", "00123"],
    "pods.schedulerName": "00123",
    "pods.sunk": True,
    "pods.graceSeconds": 21,
    "pods.pollSeconds": 6,
    "pods.giveUpSeconds": 301,
    "prepare.partition": "00123",
    "prepare.cpus": 9,
    "prepare.memoryGib": 1000000,
    "prepare.minutes": 1000000,
    "cache.mostGib": 10000000,
    "cache.ledgerDays": 90,
    "cache.periodSeconds": 86400,
    "policy.allowedRecipes": ["00123", "smoke"],
    "policy.allowedRepositories": ["https://github.com/me/*"],
    "policy.customRecipes": True,
    "policy.foreignSources": True,
    "policy.ownNamespace": True,
    "metrics.speedruns": 1000000,
    "platform.url": "https://api.example/v1",
    "platform.organization": "00123",
    "platform.cluster": "0x10",
    "platform.pollSeconds": 31,
    "platform.warnSeconds": 601,
    "platform.remindSeconds": 1000000,
    "logFormat": "text",
    "logLevel": "debug",
}


@pytest.mark.parametrize(("name", "value", "more", "holds"), OWN, ids=[f"{each[0]}={each[1]}"[:60] for each in OWN])
def test_a_value_does_what_its_comment_says(
    name: str, value: Any, more: dict[str, Any], holds: Callable[[list[Object]], Any], render: Render
) -> None:
    assert holds(render(more, nested(name, value)))


def test_values_that_are_settings_reach_the_operator_as_they_are(render: Render, tmp_path: Path) -> None:
    values = [nested(name, value) for name, value in SETTINGS.items()]
    read = settings(render({"login": LOGIN, "platform": PLATFORM}, *values), tmp_path)
    for name, value in SETTINGS.items():
        found: Any = read
        for part in name.split("."):
            found = getattr(found, snake(part))
        assert (name, found) == (name, value)
    assert str(read.login.key_file) == "/etc/speedrun/login/key"
    assert str(read.login.known_hosts_file) == "/etc/speedrun/login/known_hosts"
    assert str(read.platform.token_file) == "/etc/speedrun/platform/token"
    assert read.platform.readiness_only


def test_logins_of_namespaces_reach_the_operator(render: Render, tmp_path: Path) -> None:
    logins = {"team-a": {"secret": "00123"}, "team-b": {"secret": "b", "root": "/b", "host": "h", "port": 2222}}
    values = {"login": {"host": "slurm-login.tenant-slurm.svc"}, "logins": logins, "loginsReadSeconds": 5}
    read = settings(render(values), tmp_path)
    assert {name: each.model_dump(exclude_none=True) for name, each in read.logins.items()} == logins
    assert (read.logins_read_seconds, read.login.host) == (5, "slurm-login.tenant-slurm.svc")
    assert read.login.key_file is None


def snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)


def test_every_value_is_documented_and_tested() -> None:
    text = (CHART / "values.yaml").read_text()
    leaves = set(leaf_names(yaml.safe_load(text)))
    comments = documented(text)
    assert {
        leaf for leaf in leaves if not any(leaf == name or leaf.startswith(f"{name}.") for name in comments)
    } == set()
    assert set(comments) == {name for name, *_ in OWN} | set(SETTINGS)


def leaf_names(values: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        found += leaf_names(value, f"{path}{name}.") if isinstance(value, dict) and value else [path + name]
    return found


# What is not taken ------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    (nested("image.repository", ""), "/image/repository"),
    (nested("image.repository", "registry.example/operator:1"), "/image/repository"),
    (nested("image.tag", 123), "/image/tag': got number, want string"),
    (nested("image.digest", "sha256:12"), "/image/digest"),
    (nested("image.pullPolicy", "Sometimes"), "/image/pullPolicy"),
    (nested("watch.namespaces", []), "/watch/namespaces': minItems"),
    (nested("watch.namespaces", ["A"]), "/watch/namespaces/0"),
    (nested("watch.namespaces", ["a", "a"]), "/watch/namespaces"),
    (nested("rbac.clusterWide", True), "/watch/namespaces': maxItems"),
    (nested("rbac.secretNames", ["a*"]), "/rbac/secretNames/0"),
    ({"login": merged(LOGIN, {"knownHostsSecret": ""})}, "/login/knownHostsSecret"),
    ({"login": merged(LOGIN, {"keySecret": ""})}, "/login/keySecret"),
    ({"login": merged(LOGIN, {"user": ""})}, "/login/user"),
    ({"login": merged(LOGIN, {"port": 0})}, "/login/port"),
    ({"login": merged(LOGIN, {"maxChannels": 9})}, "/login/maxChannels"),
    ({"logins": {"a": {"secret": "a"}}}, "/logins/a': missing property 'host'"),
    ({"login": LOGIN, "logins": {"a": {"host": "h"}}}, "/logins/a': missing property 'secret'"),
    ({"login": LOGIN, "logins": {"A": {"secret": "a"}}}, "invalid propertyName 'A'"),
    ({"platform": merged(PLATFORM, {"tokenSecret": ""})}, "/platform/tokenSecret"),
    ({"platform": merged(PLATFORM, {"url": "http://api.example"})}, "/platform/url"),
    (nested("slurm.root", "$HOME"), "/slurm/root"),
    (nested("slurm.pollSeconds", "10"), "/slurm/pollSeconds"),
    (nested("slurm.pollSecond", 10), "additional properties 'pollSecond' not allowed"),
    (nested("policy.allowedRepositories", ["https://host/team*"]), "/policy/allowedRepositories/0"),
    (nested("logLevel", "verbose"), "/logLevel"),
    (nested("replicas", 2), "additional properties 'replicas' not allowed"),
    (nested("networkPolicy.login.cidrs", ["slurm-login"]), "/networkPolicy/login/cidrs/0"),
    (nested("terminationGracePeriodSeconds", 5), "/terminationGracePeriodSeconds"),
    (nested("terminationGracePeriodSeconds", 200), "/terminationGracePeriodSeconds"),
    (nested("fullnameOverride", "a.b"), "/fullnameOverride"),
    (nested("fullnameOverride", "0a"), "/fullnameOverride"),
    # A null takes a value away; none of these may then be what nobody chose.
    (nested("policy", None), "missing property 'policy'"),
    (nested("policy.foreignSources", None), "/policy': missing property 'foreignSources'"),
    (nested("watch.namespaces", None), "/watch': missing property 'namespaces'"),
    (nested("networkPolicy.dns.ports", None), "/networkPolicy/dns': missing property 'ports'"),
    (nested("networkPolicy.apiServer", None), "/networkPolicy': missing property 'apiServer'"),
    (nested("podDisruptionBudget.maxUnavailable", None), "/podDisruptionBudget': missing property 'maxUnavailable'"),
    (nested("healthPort", None), "missing property 'healthPort'"),
    (nested("logFormat", None), "missing property 'logFormat'"),
    (nested("serviceAccount.tokenExpirationSeconds", None), "missing property 'tokenExpirationSeconds'"),
    ({"login": merged(LOGIN, {"user": None})}, "/login': missing property 'user'"),
    # What the schema cannot say, the templates do.
    (nested("metrics.port", 8080) | nested("healthPort", 8080), "healthPort and metrics.port are both 8080"),
    (
        {"login": LOGIN, "logins": {"a": {"secret": "s"}, "b": {"secret": "s", "root": "/b"}}},
        "logins.b names a Secret, s, that another of logins names with another root",
    ),
    (
        {"login": LOGIN, "logins": {"a": {"secret": "s", "root": "/b"}, "b": {"secret": "t", "root": "/b"}}},
        "logins.b has the root /b of another login",
    ),
    (nested("resources.limit", {}), "additional properties 'limit' not allowed"),
]


@pytest.mark.parametrize(("values", "says"), REFUSED, ids=[str(each[0])[:60] for each in REFUSED])
def test_what_no_value_may_be_is_refused_by_the_schema(values: dict[str, Any], says: str, render: Render) -> None:
    with pytest.raises(HelmFailed) as refused:
        render(values)
    assert says in str(refused.value)


def test_what_may_be_taken_away(render: Render) -> None:
    """Whatever goes to Kubernetes as it is, and what a parent chart says to this one."""
    free = ("resources.limits", "nodeSelector", "tolerations", "affinity", "podSecurityContext", "podAnnotations")
    rendered = render(*(nested(name, None) for name in free), {"enabled": True, "global": {"a": 1}})
    assert "limits" not in container(rendered)["resources"]
    assert not {"nodeSelector", "tolerations", "affinity", "securityContext"} & set(pod(rendered))


def test_the_operator_and_the_hook_have_the_same_way_out(render: Render) -> None:
    values = [nested("networkPolicy.enabled", True), nested("uninstall.detach", True)]
    marked = {"podAnnotations": {"sidecar.istio.io/inject": "false"}, "podLabels": {"team": "a"}}
    rendered = render(*values, marked)
    job = one(rendered, "Job")["spec"]["template"]["metadata"]
    assert job["annotations"] == marked["podAnnotations"] and job["labels"]["team"] == "a"
    ours, hooks = (
        one(rendered, "NetworkPolicy", "speedrun-operator"),
        one(rendered, "NetworkPolicy", "speedrun-operator-detach"),
    )
    assert hooks["spec"]["podSelector"]["matchLabels"].items() <= job["labels"].items()
    assert hooks["spec"]["egress"] == ours["spec"]["egress"][:2] != []
    assert hooks["spec"]["ingress"] == []


def test_values_from_the_command_line_keep_zeros_and_large_numbers(render: Render) -> None:
    flags = ("--set", "slurm.partition=00123,cache.mostGib=10000000,image.tag=00123")
    rendered = render(flags=flags)
    assert known(rendered)["slurm"]["partition"] == "00123"
    assert known(rendered)["cache"]["most_gib"] == 10000000
    assert container(rendered)["image"].endswith(":00123")
    assert BASE["watch"]["namespaces"] == known(rendered)["watch"]["namespaces"]


HOSTILE = [
    "00123",
    "1e3",
    "0x1F",
    "1_000",
    "12:30:45",
    "on",
    "null",
    "~",
    "=",
    "<<",
    "{{.Release.Name}}",
    "'",
    '"',
    "\\n",
]
HOSTILE += ["a: b", "#", "- a", "&a", "*a", "!!int", "%a", "@", "`", "é", "</a>", "$(HOME)", "a&b"]


def test_no_text_is_read_as_something_else(render: Render, tmp_path: Path) -> None:
    texts = [text for text in HOSTILE if " " not in text and "*" not in text]
    values = [nested("policy.allowedRepositories", texts), nested("clusterId", "a: b\n- '#")]
    read = settings(render(*values), tmp_path)
    assert read.policy.allowed_repositories == texts
    assert read.cluster_id == "a: b\n- '#"
    texts = [text for text in HOSTILE if text not in ("=", "<<")]  # PyYAML takes these for tags, Kubernetes does not
    rendered = render(nested("podAnnotations", {f"a{number}": text for number, text in enumerate(texts)}))
    assert [values_pod.template(rendered)["annotations"][f"a{number}"] for number in range(len(texts))] == texts
