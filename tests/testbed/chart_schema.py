"""What the chart's values may be: values.schema.json.

A value that is a setting of the operator has the setting's name in camelCase, and its model's limits; the rest is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from speedrun_operator.settings import Settings
from testbed.helm import CHART

Schema = dict[str, Any]

NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # of a Service (RFC 1035)
NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
IMAGE = r"^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$"
GIVEN: Schema = {"minLength": 1}
PASSED_ON: Schema = {"type": "object"}
GROUPS = ("watch", "login", "slurm", "pods", "prepare", "cache", "policy", "platform")
LEFT_OUT = {
    "kubeconfig": "the pod's account is used",
    "context": "the pod's account is used",
    "logins_namespace": "the release's is used",
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


def leaves(settings: type[BaseModel] = Settings, path: str = "") -> Iterator[str]:
    """Every setting of the operator by its dotted name."""
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{path}{name}.")
        else:
            yield path + name


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
    groups["platform"]["properties"] |= {
        "tokenSecret": _text(NAME, empty=True),
        "tokenSecretKey": _text(r"^[-._a-zA-Z0-9]+$"),
    }
    groups["platform"] |= _requires("url", "organization", "cluster", "tokenSecret")
    own = _own() | groups
    own["metrics"]["properties"] |= _group(settings, "metrics")["properties"]
    [login] = settings["properties"]["logins"]["patternProperties"].values()
    login = _group(settings, "logins", login) | {"required": ["secret"]}
    own["logins"] = {"type": "object", "propertyNames": _text(NAMESPACE, longest=63), "additionalProperties": login}
    own |= {
        to_camel(name): _plain(settings["properties"][name])
        for name in ("log_format", "log_level", "logins_read_seconds")
    }
    needed = ["user", "keySecret", "knownHostsSecret"]
    parent = {
        "global": {"type": "object", "description": "Of a chart that has this one as a part."},
        "enabled": {"type": "boolean", "description": "The same: its condition for this one."},
    }
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of speedrun-operator",
        "type": "object",
        "additionalProperties": False,
        "properties": own | parent,
        "allOf": [
            {
                "if": _at("rbac.clusterWide", {"const": True}),
                "then": _at("watch.namespaces", {"maxItems": 0}),
                "else": _at("watch.namespaces", {"minItems": 1}),
            },
            {
                "if": {"allOf": [_at("login.host", GIVEN), _at("logins", {"maxProperties": 0})]},
                "then": _at("login", {"required": needed, "properties": dict.fromkeys(needed, GIVEN)}),
            },
            {
                "if": _at("login.host", {"maxLength": 0}),
                "then": _at("logins", {"additionalProperties": {"required": ["host"]}}),
            },
        ],
    }
    _complete(made, yaml.safe_load((CHART / "values.yaml").read_text()))
    return made


def _complete(schema: Schema, defaults: dict[str, Any]) -> None:
    """Require each value whose default says something: a null takes it away, and the program's own would stand in.

    What goes to Kubernetes as it is may be taken away; of texts, empty says the same as absent.
    """
    required = set(schema.get("required", ()))
    for name, default in defaults.items():
        value = schema["properties"][name]
        if name == "resources" or PASSED_ON in (value, value.get("items")) or default in ("", {}):
            continue
        if "properties" in value:
            _complete(value, default)
        required.add(name)
    schema["required"] = sorted(required)


def _at(path: str, schema: Schema) -> Schema:
    """What the value at a dotted path must be."""
    for part in reversed(path.split(".")):
        schema = {"properties": {part: schema}}
    return schema


def _own() -> Schema:
    port = {"type": "integer", "minimum": 1, "maximum": 65535}
    ports = {"type": "array", "items": port}
    cidrs = _list(_text(r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"))
    free = PASSED_ON
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "nameOverride": _text(NAMESPACE, empty=True, longest=52),
        "fullnameOverride": _text(LABEL, empty=True, longest=52),
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
            login=_object(cidrs=cidrs, namespaces=_list(_text(NAMESPACE)), ports=ports),
            platform=_object(cidrs=cidrs),
            metricsFrom={"type": "array", "items": free},
        ),
        "podDisruptionBudget": _object(enabled=_flag(), maxUnavailable={"type": "integer", "minimum": 0}),
        "resources": _object(requests=free, limits=free, claims={"type": "array"}),
        # The hook waits for that pod to be gone, and helm for the hook, for five minutes.
        "terminationGracePeriodSeconds": {"type": "integer", "minimum": 20, "maximum": 120},
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


def _group(settings: Schema, name: str, field: Schema | None = None) -> Schema:
    """A group of settings with the names that values have. `field`: where it is not the setting of that name."""
    reference = (field or settings["properties"][name])["$ref"].rpartition("/")[2]
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
