"""What of the chart is made from something else: `python -m testbed.chart` writes it, and tests hold it to be so.

- crd/speedruns.yaml is the CRD.
- values.schema.json: what values that are settings of the operator may be is what its models say; the rest is below.
- README.md has a table of the values, with the comments and defaults of values.yaml.
- tests/testbed/rbac.yaml, the operator's rights in the bed, is what the chart renders for a whole cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from speedrun_operator.api.schema import crd_yaml
from speedrun_operator.settings import Settings
from testbed.helm import CHART, Helm, of_kind
from testbed.operator import RBAC
from testbed.part import Place

Schema = dict[str, Any]

NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
IMAGE = r"^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$"
GROUPS = ("watch", "login", "slurm", "pods", "prepare", "cache", "policy", "platform")
LEFT_OUT = {
    "kubeconfig": "the pod's account is used",
    "context": "the pod's account is used",
    "login.key_file": "login.keySecret",
    "login.known_hosts_file": "login.knownHostsSecret",
    "health_address": "healthPort",
    "metrics.address": "metrics.port",
    "deployment.name": "the release has one",
    "deployment.namespace": "the release has one",
    "platform.business_url": "for `check` alone",
    "platform.readiness_only": "the operator runs in the cluster",
    "platform.token_file": "platform.tokenSecret",
    "platform.token_variable": "platform.tokenSecret",
    "platform.token_command": "there are no commands in the image",
    "platform.refresh_token_file": "it is written back, and a Secret is not",
    "platform.issuer": "of a refresh token",
    "platform.client_id": "of a refresh token",
    "platform.client_secret_file": "of a refresh token",
    "platform.ca_file": "the image's authorities are used",
    "platform.exec_commands": "the pod's account is used",
}
"""Settings that are no values of their own, and what stands for them."""

TABLE = re.compile(r"(<!-- values -->\n).*(<!-- end of values -->)", re.DOTALL)
RBAC_KINDS = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
BED = {
    "image": {"repository": "speedrun-operator"},
    "rbac": {"clusterWide": True, "nodes": True},
    "pods": {"enabled": True},
}


def leaves(settings: type[BaseModel] = Settings, path: str = "") -> Iterator[str]:
    """Every setting of the operator by its dotted name."""
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{path}{name}.")
        else:
            yield path + name


# The schema -------------------------------------------------------------------------------------------------------


def schema() -> Schema:
    """values.schema.json as an object."""
    settings = Settings.model_json_schema()
    groups = {name: _group(settings, name) for name in GROUPS}
    groups["watch"]["properties"] |= {"createNamespaces": _flag()}
    groups["watch"]["properties"]["namespaces"]["uniqueItems"] = True
    groups["login"]["properties"] |= {
        **{name: _text(NAME, empty=True) for name in ("keySecret", "knownHostsSecret")},
        **{name: _text(r"^[-._a-zA-Z0-9]+$") for name in ("keySecretKey", "knownHostsSecretKey")},
    }
    groups["login"] |= _requires("host", "user", "keySecret", "knownHostsSecret")
    groups["platform"]["properties"] |= {
        "tokenSecret": _text(NAME, empty=True),
        "tokenSecretKey": _text(r"^[-._a-zA-Z0-9]+$"),
    }
    groups["platform"] |= _requires("url", "organization", "cluster", "tokenSecret")
    own = _own() | groups
    own["metrics"]["properties"] |= _group(settings, "metrics")["properties"]
    own |= {to_camel(name): _plain(settings["properties"][name]) for name in ("log_format", "log_level")}
    wide = {"properties": {"rbac": {"properties": {"clusterWide": {"const": True}}}}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of speedrun-operator",
        "type": "object",
        "additionalProperties": False,
        "required": ["image", "watch", "rbac"],
        "properties": own | {"global": {"type": "object", "description": "Of a chart that has this one as a part."}},
        "if": wide,
        "then": {"properties": {"watch": {"properties": {"namespaces": {"maxItems": 0}}}}},
        "else": {"properties": {"watch": {"properties": {"namespaces": {"minItems": 1}}}}},
    }


def _own() -> Schema:
    port = {"type": "integer", "minimum": 1, "maximum": 65535}
    ports = {"type": "array", "items": port}
    cidrs = _list(_text(r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"))
    free = {"type": "object"}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "nameOverride": _text(NAME, empty=True, longest=52),
        "fullnameOverride": _text(NAME, empty=True, longest=52),
        "image": _object(
            repository=_text(IMAGE),
            tag=_text(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$", empty=True),
            digest=_text(r"^sha256:[0-9a-f]{64}$", empty=True),
            pullPolicy={"enum": ["IfNotPresent", "Always", "Never"]},
            pullSecrets=_list(_text(NAME)),
        )
        | {"required": ["repository"]},
        "crds": _object(install=_flag(), keep=_flag()),
        "uninstall": _object(detach=_flag()),
        "clusterId": {"type": "string"},
        "rbac": _object(
            create=_flag(),
            clusterWide=_flag(),
            secretNames=_list({"anyOf": [{"const": "*"}, _text(NAME)]}),
            nodes=_flag(),
            tokenReview=_flag(),
        )
        | {"required": ["clusterWide"]},
        "serviceAccount": _object(
            create=_flag(),
            name=_text(NAME, empty=True),
            annotations=texts,
            tokenExpirationSeconds={"type": "integer", "minimum": 600},
        ),
        "healthPort": port,
        "metrics": _object(
            enabled=_flag(),
            port=port,
            service=_object(labels=texts, annotations=texts),
            serviceMonitor=_object(
                enabled=_flag(), interval=_text(r"^([0-9]+(ms|s|m|h|d))+$"), labels=texts
            ),
            alerts=_object(enabled=_flag(), labels=texts),
            dashboard=_object(enabled=_flag(), labels=texts, annotations=texts),
        ),
        "networkPolicy": _object(
            enabled=_flag(),
            apiServer=_object(cidrs=cidrs, ports=ports | {"minItems": 1}),
            dns=_object(ports=ports | {"minItems": 1}),
            login=_object(cidrs=cidrs, namespaces=_list(_text(NAME)), ports=ports),
            platform=_object(cidrs=cidrs),
            metricsFrom={"type": "array", "items": free},
        ),
        "podDisruptionBudget": _object(enabled=_flag(), maxUnavailable={"type": "integer", "minimum": 0}),
        "resources": _object(requests=free, limits=free, claims={"type": "array"}),
        "terminationGracePeriodSeconds": {"type": "integer", "minimum": 20},
        "nodeSelector": texts,
        "tolerations": {"type": "array", "items": free},
        "affinity": free,
        "priorityClassName": _text(NAME, empty=True),
        "podLabels": texts,
        "podAnnotations": texts,
        "podSecurityContext": free,
        "securityContext": free,
        "extraEnv": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
    }  # fmt: skip


def _group(settings: Schema, name: str) -> Schema:
    """A group of settings with the names that values have."""
    reference = settings["properties"][name]["$ref"].rpartition("/")[2]
    found = settings["$defs"][reference]["properties"]
    return _object(**{to_camel(key): _plain(value) for key, value in found.items() if f"{name}.{key}" not in LEFT_OUT})


def _plain(field: Schema) -> Schema:
    """Without what is said elsewhere: defaults are in values.yaml."""
    return {key: value for key, value in field.items() if key not in ("default", "title")}


def _requires(first: str, *others: str) -> Schema:
    """Where `first` is given, the others must be."""
    given = {"minLength": 1}
    return {
        "if": {"properties": {first: given}, "required": [first]},
        "then": {"properties": dict.fromkeys(others, given), "required": [*others]},
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "uniqueItems": True}


def _flag() -> Schema:
    return {"type": "boolean"}


def _text(pattern: str, *, empty: bool = False, longest: int = 253) -> Schema:
    return {"type": "string", "pattern": f"^$|{pattern}" if empty else pattern, "maxLength": longest}


# The table --------------------------------------------------------------------------------------------------------


def documented(text: str) -> dict[str, str]:
    """The comment of each value in values.yaml, by its dotted name, in its order."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    comment = ""
    for line in text.splitlines():
        if said := re.match(r" *# -- (.*)", line):
            comment = said[1]
        elif key := re.match(r"( *)([A-Za-z]+):", line):
            path = [each for each in path if each[0] < len(key[1])] + [(len(key[1]), key[2])]
            if comment:
                found[".".join(name for _, name in path)] = comment
            comment = ""
    return found


def table(text: str) -> str:
    """The values as a table in Markdown."""
    values = yaml.safe_load(text)
    rows = ["| value | default | what it is |", "| --- | --- | --- |"]
    for name, comment in documented(text).items():
        default: Any = values
        for part in name.split("."):
            default = default[part]
        shown = json.dumps(default, ensure_ascii=False)
        rows.append(f"| `{name}` | `{shown}` | {comment} |")
    return "\n".join(rows) + "\n"


# The files --------------------------------------------------------------------------------------------------------


def rights(helm: Helm) -> str:
    """tests/testbed/rbac.yaml."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "speedrun-system"}}
    rendered = of_kind(helm.template(BED), *RBAC_KINDS)
    head = "# What the operator may do in the bed: the rights that the chart gives it in a whole cluster, with pods.\n"
    head += "# Made by `python -m testbed.chart`; do not edit.\n"
    return head + yaml.safe_dump_all([namespace, *rendered], sort_keys=False)


def files(helm: Helm) -> dict[Any, str]:
    """Each file that is made, and what it should hold."""
    readme = CHART / "README.md"
    values = table((CHART / "values.yaml").read_text())
    return {
        CHART / "crd" / "speedruns.yaml": crd_yaml(),
        CHART / "values.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        readme: TABLE.sub(lambda found: found[1] + values + found[2], readme.read_text()),
        RBAC: rights(helm),
    }


def main() -> None:
    (CHART / "values.schema.json").unlink(missing_ok=True)
    for path, text in files(Helm(Place(say=print))).items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
