"""The chart as it lies there: its made files are current, and what it installs is as narrow as it says."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.settings import Settings
from testbed import chart, chart_schema
from testbed.helm import CHART, Helm, HelmFailed, of_kind
from unit.chart.conftest import Render
from unit.chart.rendering import BASE, LOGIN, PLATFORM, container, nested, one, pod, rights, settings, settings_text

ROOT = Path(__file__).parents[3]
ABOUT = yaml.safe_load((CHART / "Chart.yaml").read_text())


def test_made_files_are_what_they_are_made_from(helm: Helm) -> None:
    for path, text in chart.files(helm).items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)} is out of date: run `make chart`"


def test_helm_lint_finds_nothing(helm: Helm) -> None:
    everything: dict[str, Any] = BASE | {
        "login": LOGIN,
        "platform": PLATFORM,
        "uninstall": {"detach": True},
        "networkPolicy": {"enabled": True},
        "podDisruptionBudget": {"enabled": True},
        "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "alerts", "dashboard")},
    }
    for values in (BASE, everything):
        said = helm("lint", "--strict", str(CHART), "-f", "-", stdin=json.dumps(values))
        assert "1 chart(s) linted, 0 chart(s) failed" in said


def test_chart_and_operator_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (ABOUT["version"], ABOUT["appVersion"]) == (project["version"], project["version"])


def test_artifact_hub_finds_a_whole_speedrun() -> None:
    """The example is one that the CRD takes, and the CRD is named as it is."""
    found = {name.removeprefix("artifacthub.io/"): text for name, text in ABOUT["annotations"].items()}
    assert {"license", "operator", "operatorCapabilities", "crds", "crdsExamples", "changes"} <= set(found)
    crd = custom_resource_definition()
    [said] = yaml.safe_load(found["crds"])
    assert (said["name"], said["kind"]) == (crd["metadata"]["name"], crd["spec"]["names"]["kind"])
    assert said["version"] == crd["spec"]["versions"][0]["name"]
    [example] = yaml.safe_load(found["crdsExamples"])
    assert example["apiVersion"] == f"{crd['spec']['group']}/{said['version']}"
    assert example["spec"] == {"recipe": {"name": "modded-nanogpt"}}


def test_every_setting_is_a_value_or_left_out_for_a_reason() -> None:
    schema = chart_schema.schema()["properties"]
    for leaf in chart_schema.leaves(Settings):
        part: Any = {"properties": schema}
        names = [re.sub(r"_(.)", lambda found: found[1].upper(), each) for each in leaf.split(".")]
        for name in names:
            part = part.get("properties", {}).get(name)
            if part is None:
                break
        assert (part is None) == (leaf in chart_schema.LEFT_OUT), (
            f"{leaf}: make it a value, or say in LEFT_OUT why it is none"
        )


def test_the_crd_is_the_models_and_stays_when_the_chart_goes(render: Render) -> None:
    """BR-065: uninstalling the chart deletes neither the CRD nor what is of it."""
    crd = one(render({"crds": {"install": True}}), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert crd["spec"] == custom_resource_definition()["spec"]
    assert not (CHART / "crds").exists(), "helm installs what is there once, and never upgrades it"


def test_rights_are_those_that_are_needed_and_no_more(render: Render) -> None:
    home, where = "speedrun-system", "speedruns"
    assert rights(render()) == {
        *((where, "speedrun.dev", "speedruns", "", verb) for verb in ("get", "list", "watch", "patch", "delete")),
        *((where, "speedrun.dev", "speedruns/status", "", verb) for verb in ("get", "patch")),
        *((where, "", "events", "", verb) for verb in ("create", "patch")),
        *((where, "", "configmaps", "", verb) for verb in ("get", "create", "patch")),
        (where, "", "secrets", "", "get"),
        ("kube-system", "", "namespaces", "kube-system", "get"),
        *((home, "", "events", "", verb) for verb in ("create", "patch")),
        (home, "apps", "deployments", "speedrun-operator", "get"),
    }
    assert not of_kind(render(), "ClusterRole", "ClusterRoleBinding")
    with_pods = rights(render({"pods": {"enabled": True}})) - rights(render())
    assert {each[2:] for each in with_pods} == {
        *(("pods", "", verb) for verb in ("create", "get", "list", "watch", "delete")),
        ("pods/log", "", "get"),
        ("events", "", "list"),
    }


def test_each_role_is_bound_to_the_account_where_it_lies(render: Render) -> None:
    objects = render({"rbac": {"nodes": True, "tokenReview": True}})
    roles = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects}
    bindings = of_kind(objects, "RoleBinding", "ClusterRoleBinding")
    assert len(bindings) == len(of_kind(objects, "Role", "ClusterRole")) == 5
    for each in bindings:
        role = (each["roleRef"]["kind"], each["metadata"].get("namespace"), each["roleRef"]["name"])
        assert role in roles
        [subject] = each["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": "speedrun-operator", "namespace": "speedrun-system"}


def test_two_releases_share_no_name_outside_of_their_namespaces(helm: Helm) -> None:
    wide = {"image": BASE["image"], "rbac": {"clusterWide": True, "nodes": True, "tokenReview": True}}
    kinds = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    one_, other = (
        {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
            for each in of_kind(helm.template(wide, namespace=namespace), *kinds)
        }
        for namespace in ("team-a", "team-b")
    )
    assert one_ & other == set()


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("speedrun", "speedrun-operator"),
        ("speedrun-operator", "speedrun-operator"),
        ("my-speedrun-operator", "my-speedrun-operator"),
        ("s", "s-speedrun-operator"),
        ("speedrun.v1", "speedrun-v1-speedrun-operator"),
        (f"{'a' * 50}.b1", "a" * 50 + "-b"),
    ],
)
def test_names_follow_the_release(release: str, name: str, helm: Helm) -> None:
    assert one(helm.template(BASE, name=release), "Deployment")["metadata"]["name"] == name


def test_a_name_that_no_service_may_have_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmFailed, match="begins with a digit"):
        helm.template(BASE, name="1speed")
    assert helm.template({**BASE, "fullnameOverride": "speed"}, name="1speed")


def test_kube_system_can_be_watched(render: Render) -> None:
    rendered = of_kind(render(nested("watch.namespaces", ["kube-system"])), "Role")
    names = [(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in rendered]
    assert len(set(names)) == len(names) == 3


def test_the_pod_is_one_and_restricted(render: Render) -> None:
    objects = render({"login": LOGIN})
    spec = one(objects, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    about = pod(objects)["securityContext"]
    assert about["runAsNonRoot"] and about["runAsUser"] == 65532
    assert about["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(objects)["automountServiceAccountToken"] is False
    assert one(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    writable = [each["mountPath"] for each in container(objects)["volumeMounts"] if not each.get("readOnly")]
    assert writable == ["/tmp"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(objects)[probe]["httpGet"] == {"path": "/healthz", "port": "health"}


def test_policy_is_closed_until_it_is_opened(render: Render, tmp_path: Path) -> None:
    policy = settings(render(), tmp_path).policy
    assert not policy.custom_recipes and not policy.foreign_sources and not policy.own_namespace


def test_no_secret_is_in_what_is_rendered(render: Render) -> None:
    """Keys and tokens are mounted out of Secrets that the chart does not make."""
    objects = render({"login": LOGIN, "platform": PLATFORM})
    assert not of_kind(objects, "Secret")
    assert "BEGIN" not in settings_text(objects)


def test_a_change_of_settings_makes_a_new_pod(render: Render) -> None:
    def mark(objects: Any) -> str:
        return str(one(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    assert mark(render()) != mark(render({"slurm": {"pollSeconds": 11}}))
    assert mark(render()) == mark(render({"podDisruptionBudget": {"enabled": True}}))
