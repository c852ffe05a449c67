"""What the tests of the chart share: values that it can be rendered with, and a look into what comes out."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from speedrun_operator.settings import Settings, load
from testbed.helm import Object, of_kind

Row = tuple[str, Any, dict[str, Any], Callable[[list[Object]], Any]]
"""A value's name and a value for it, what else is set, and what then holds of what is rendered."""

BASE: dict[str, Any] = {
    "image": {"repository": "registry.example/team/speedrun-operator"},
    "watch": {"namespaces": ["speedruns"]},
}
LOGIN = {"host": "slurm-login.tenant-slurm.svc", "user": "cl-1.alice", "keySecret": "key", "knownHostsSecret": "hosts"}
PLATFORM = {"url": "https://api.example/v1", "organization": "org", "cluster": "cl-1", "tokenSecret": "token"}


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Values laid over each other, the later over the earlier."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in copy.deepcopy(dict(part)).items():
            whole[key] = merged(whole[key], value) if isinstance(whole.get(key), dict) and value else value
    return whole


def nested(name: str, value: Any) -> dict[str, Any]:
    """`nested("a.b", 1)` is {"a": {"b": 1}}."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return dict(value)


def one(objects: Iterable[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind, or that of a name."""
    found = [each for each in of_kind(objects, kind) if name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of kind {kind}"
    return found[0]


def pod(objects: Iterable[Object]) -> Object:
    return dict(one(objects, "Deployment")["spec"]["template"]["spec"])


def container(objects: Iterable[Object]) -> Object:
    return dict(pod(objects)["containers"][0])


def volume(objects: Iterable[Object], name: str) -> list[dict[str, Any]]:
    """Where the files of a projected volume come from."""
    return list(next(each for each in pod(objects)["volumes"] if each["name"] == name)["projected"]["sources"])


def rights(objects: Iterable[Object]) -> set[tuple[str, str, str, str, str]]:
    """(namespace or "", group, resource, its name or "", verb) of each right that the roles give."""
    return {
        (role["metadata"].get("namespace", ""), group, resource, name, verb)
        for role in of_kind(objects, "Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def settings_text(objects: Iterable[Object]) -> str:
    maps = [each for each in of_kind(objects, "ConfigMap") if "settings.yaml" in each["data"]]
    return str(maps[0]["data"]["settings.yaml"])


def settings(objects: Iterable[Object], directory: Path) -> Settings:
    """The settings as the operator reads them. Raises SettingsFault."""
    file = directory / "settings.yaml"
    file.write_text(settings_text(objects))
    return load([], str(file), argparse.ArgumentParser())


def known(objects: Iterable[Object]) -> dict[str, Any]:
    return dict(yaml.safe_load(settings_text(objects)))
