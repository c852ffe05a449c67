"""The CRD, made from the models. `crds/speedruns.yaml` is this, and a test holds them equal.

pydantic's JSON schema becomes a structural schema of Kubernetes: references inlined, nulls dropped (absent means
absent), every string and list bounded, frozen fields held by CEL.
"""

from __future__ import annotations

from typing import Any

import yaml

from speedrun_operator.api.names import CRD_NAME, GROUP, KIND, NAME_LIMIT, PLURAL, VERSION
from speedrun_operator.api.phases import FINISHED
from speedrun_operator.api.spec import Spec, mutable
from speedrun_operator.api.status import Status

Schema = dict[str, Any]

STATUS_TEXT = 4096
STATUS_ITEMS = 4096

_MUTABLE = [field.alias or name for name, field in Spec.model_fields.items() if mutable(name)]

_KEPT = {
    "type", "description", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "default", "format", "required",
}  # fmt: skip

_COLUMNS = [
    ("Phase", "string", ".status.phase", 0),
    ("Val_Loss", "number", ".status.val_loss", 0),
    ("Train_Time", "string", ".status.train_time", 0),
    ("Step", "integer", ".status.step", 0),
    ("Runs", "string", ".status.runsSummary", 0),
    ("Backend", "string", ".spec.backend", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Result", "string", ".status.result", 1),
    ("Target", "number", ".status.plan.target", 1),
    ("Job", "string", ".status.job", 1),
    ("Node", "string", ".status.node", 1),
    ("Reason", "string", ".status.reason", 1),
]


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition as an object."""
    spec = _structural(Spec.model_json_schema(by_alias=True, mode="validation"))
    status = _bounded(_structural(Status.model_json_schema(by_alias=True, mode="serialization")))
    status["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    spec["x-kubernetes-validations"] = [_frozen()]
    spec["properties"]["runs"]["x-kubernetes-validations"] = [
        {"rule": "self >= oldSelf", "message": "spec.runs can only be raised"}
    ]
    for name, keys in {"allocations": ["id"], "runs": ["index", "arm"], "preparing": ["stage"]}.items():
        status["properties"][name] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    # It has one writer. Kept by field, who owns each would be half of the object, read and written at each change.
    status["x-kubernetes-map-type"] = "atomic"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "speedrun",
                "shortNames": ["sr"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name.upper(), "type": type_, "jsonPath": path, "priority": priority}
                        for name, type_, path, priority in _COLUMNS
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A training speedrun: what to run, and how far it is.",
                            "required": ["spec"],
                            "properties": {
                                "metadata": {
                                    "type": "object",
                                    "properties": {"name": {"type": "string", "maxLength": NAME_LIMIT}},
                                },
                                "spec": spec,
                                "status": status,
                            },
                            "x-kubernetes-validations": [_after_the_end()],
                        }
                    },
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The CRD as the text of `crds/speedruns.yaml`."""

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = "# Made by `speedrun-operator crd` from operator/speedrun_operator/api; do not edit.\n"
    return head + yaml.dump(custom_resource_definition(), Dumper=Plain, sort_keys=False, width=110)


def _after_the_end() -> dict[str, str]:
    """The rule of the root: it is the one that looks at status."""
    phases = ", ".join(f"'{phase}'" for phase in sorted(FINISHED))
    finished = f"has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase in [{phases}]"
    return {
        "rule": f"self.spec.runs == oldSelf.spec.runs || !({finished})",
        "message": "spec.runs cannot be changed once the Speedrun is finished: create another",
    }


def _frozen() -> dict[str, str]:
    """The rule of `spec`: which of its fields stay as they are.

    One rule, and first whether anything differs at all. The API server evaluates the rules at every write, of status
    too, and each field that a rule names costs it a copy of the schema of all fields beside it.
    """
    changed = {}
    for name, field in Spec.model_fields.items():
        if mutable(name):
            continue
        path = field.alias or name
        new, old = f"self.{path}", f"oldSelf.{path}"
        rule = f"{new} != {old}"
        changed[path] = rule if field.is_required() else f"has({new}) != has({old}) || (has({new}) && {rule})"
    first = "".join(f"({rule}) ? 'spec.{path}' : " for path, rule in changed.items()) + "'spec'"
    message = "cannot be changed: delete the Speedrun and create another"
    return {
        "rule": f"self == oldSelf || !({' || '.join(changed.values())})",
        "message": f"only {', '.join(f'spec.{path}' for path in _MUTABLE)} can be changed",
        "messageExpression": f"({first}) + ' {message}'",
    }


def _structural(schema: Schema) -> Schema:
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, definitions: Schema) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _convert({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    if "allOf" in node and len(node["allOf"]) == 1:
        return _convert({**node["allOf"][0], **{k: v for k, v in node.items() if k != "allOf"}}, definitions)
    if "anyOf" in node:
        return _any_of(node, definitions)
    out = {key: value for key, value in node.items() if key in _KEPT and value is not None}
    if out.get("default") in ({}, []) and "properties" not in node:
        out.pop("default")
    if "properties" in node:
        out["properties"] = {name: _convert(each, definitions) for name, each in node["properties"].items()}
        if any("default" in each for each in out["properties"].values()) and "default" in node:
            out["default"] = {}
    if "items" in node:
        out["items"] = _convert(node["items"], definitions)
    values = node.get("additionalProperties")
    if node.get("patternProperties"):  # keys with a pattern: the operator checks the names
        values = next(iter(node["patternProperties"].values()))
    if isinstance(values, dict):
        out["additionalProperties"] = _convert(values, definitions)
    for limit, strict in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if limit in out:
            out[strict] = out.pop(limit)
            out[limit] = True
    return out


def _any_of(node: Schema, definitions: Schema) -> Schema:
    choices = [each for each in node["anyOf"] if each.get("type") != "null"]
    described = {key: value for key, value in node.items() if key in _KEPT and value is not None}
    if len(choices) == 1:
        return {**_convert(choices[0], definitions), **described}
    kinds = {_convert(each, definitions).get("type") for each in choices}
    if kinds == {"integer", "string"}:
        texts = [_convert(each, definitions) for each in choices]
        limits: Schema = {key: each[key] for each in texts for key in ("maxLength", "pattern") if key in each}
        return {"x-kubernetes-int-or-string": True, **limits, **described}
    if kinds == {"number", "string"}:  # a decimal: written as a JSON number
        number = next(each for each in choices if each.get("type") == "number")
        return {**_convert(number, definitions), **described}
    raise ValueError(f"no structural form for {node}")


def _bounded(node: Schema) -> Schema:
    """Status is ours, so its bounds are one size for all; spec states its own."""
    out = dict(node)
    out.pop("default", None)
    if out.get("type") == "string" and "enum" not in out and out.get("format") != "date-time":
        out.setdefault("maxLength", STATUS_TEXT)
    if out.get("type") == "array":
        out.setdefault("maxItems", STATUS_ITEMS)
    if "items" in out:
        out["items"] = _bounded(out["items"])
    if "properties" in out:
        out["properties"] = {name: _bounded(each) for name, each in out["properties"].items()}
    if isinstance(out.get("additionalProperties"), dict):
        out["additionalProperties"] = _bounded(out["additionalProperties"])
        out.setdefault("maxProperties", 64)
    return out
