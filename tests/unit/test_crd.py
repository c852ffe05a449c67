"""The CRD: the file is what the models say, and the API server can take it as a structural schema.

The server itself judges it in tests/cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from speedrun_operator.api.phases import ConditionType, Phase
from speedrun_operator.api.schema import crd_yaml, custom_resource_definition
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Status
from unit.structural import faults

FILE = Path(__file__).parents[2] / "crds" / "speedruns.yaml"
CRD = custom_resource_definition()
VERSION = CRD["spec"]["versions"][0]
ROOT: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]
SPEC, STATUS = ROOT["properties"]["spec"], ROOT["properties"]["status"]

Node = tuple[str, Mapping[str, Any]]


def nodes(schema: Mapping[str, Any], path: str) -> Iterator[Node]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from nodes(each, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


ALL = list(nodes(ROOT, ""))


def test_the_file_is_what_the_models_say() -> None:
    assert FILE.read_text(encoding="utf-8") == crd_yaml(), "crds/speedruns.yaml is old: run `make crd`"


def test_the_text_is_plain_yaml_of_the_object() -> None:
    assert yaml.safe_load(crd_yaml()) == CRD
    assert not re.search(r"[:-] [&*]\w", crd_yaml()), "no anchors: people read it"


@pytest.mark.parametrize("node", ALL, ids=[path for path, _ in ALL])
def test_every_node_is_structural(node: Node) -> None:
    _, schema = node
    assert ("type" in schema) != schema.get("x-kubernetes-int-or-string", False), "a type, or int-or-string"
    assert schema.get("type", "string") in ("object", "array", "string", "integer", "number", "boolean")
    allowed = {
        *("type", "description", "enum", "pattern", "format", "default", "required", "properties", "items"),
        *("additionalProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength"),
        *("maxLength", "minItems", "maxItems", "maxProperties", "x-kubernetes-int-or-string"),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
        "x-kubernetes-validations",
    }
    assert set(schema) <= allowed, "no nullable, title, anyOf or $ref"
    if schema.get("type") == "array":
        assert "items" in schema
    assert not ("properties" in schema and "additionalProperties" in schema), "the server forbids both"
    for limit in ("exclusiveMinimum", "exclusiveMaximum"):
        assert schema.get(limit, True) is True, "a flag beside minimum or maximum, in this version of JSON schema"
    for required in schema.get("required", []):
        assert required in schema["properties"]
    for each in schema.values():
        assert each is not None and each == each, "neither null nor NaN"


BOUNDED = [node for node in ALL if node[1].get("type") in ("string", "array") or "additionalProperties" in node[1]]


@pytest.mark.parametrize("node", BOUNDED, ids=[path for path, _ in BOUNDED])
def test_every_text_list_and_map_is_bounded(node: Node) -> None:
    _, schema = node
    if schema["type"] == "string":
        assert "maxLength" in schema or "enum" in schema or schema.get("format") == "date-time"
    else:
        assert "maxItems" in schema or "maxProperties" in schema


NUMBERS = [node for node in nodes(SPEC, "spec") if node[1].get("type") in ("integer", "number")]


@pytest.mark.parametrize("node", NUMBERS, ids=[path for path, _ in NUMBERS])
def test_every_number_of_the_spec_is_bounded(node: Node) -> None:
    assert {"minimum", "maximum"} <= set(node[1])


TOLD = [node for node in nodes(SPEC, "spec") if not node[0].endswith(("[]", "{}"))]


@pytest.mark.parametrize("node", TOLD, ids=[path for path, _ in TOLD])
def test_every_field_of_the_spec_is_explained(node: Node) -> None:
    assert node[1]["description"].endswith((".", "`."))


FREE_TEXT = (".spec.env[].value", ".spec.recipe.parameters{}")
PATTERNS = [node for node in ALL if "pattern" in node[1] and node[0] not in FREE_TEXT]


@pytest.mark.parametrize("node", PATTERNS, ids=[path for path, _ in PATTERNS])
def test_patterns_are_whole_and_mean_the_same_in_go(node: Node) -> None:
    """Anchored at both ends, and without what RE2 lacks: look-around, references back."""
    pattern = node[1]["pattern"]
    assert pattern.lstrip("(").startswith("^") and pattern.rstrip(")").endswith("$")
    assert not re.search(r"\(\?[=!<]|\\[1-9]", pattern)
    assert re.search(pattern, "a b") is None


@pytest.mark.parametrize("path", FREE_TEXT)
def test_the_free_texts_of_the_spec_hold_all_but_nul(path: str) -> None:
    pattern = dict(ALL)[path]["pattern"]
    assert pattern == r"^[^\x00]*$"
    assert re.search(pattern, "a b\n'\"$(id)`\\") and not re.search(pattern, "a\0b")


def covered(model: type[BaseModel], schema: Mapping[str, Any], path: str) -> None:
    names = {field.alias or to_camel(name) for name, field in model.model_fields.items()}
    assert names == set(schema["properties"]), path


def test_all_fields_of_the_models_are_there() -> None:
    covered(Spec, SPEC, "spec")
    covered(Status, STATUS, "status")
    for model, name in ((Spec, "slurm"), (Spec, "recipe")):
        field = model.model_fields[name].annotation
        assert isinstance(field, type) and issubclass(field, BaseModel)
        covered(field, SPEC["properties"][name], name)


def test_lists_of_status_are_maps_with_a_key() -> None:
    keys = {
        name: STATUS["properties"][name]["x-kubernetes-list-map-keys"] for name in ("conditions", "allocations", "runs")
    }
    assert keys == {"conditions": ["type"], "allocations": ["id"], "runs": ["index", "arm"]}
    for name, each in keys.items():
        assert set(each) <= set(STATUS["properties"][name]["items"]["required"])


def test_names_of_the_trainers_own_log_line() -> None:
    assert {"val_loss", "train_time", "train_time_ms", "step", "total_steps", "step_avg"} <= set(STATUS["properties"])


def test_enums_are_those_of_the_models() -> None:
    assert STATUS["properties"]["phase"]["enum"] == list(Phase)
    assert STATUS["properties"]["conditions"]["items"]["properties"]["type"]["enum"] == list(ConditionType)


def test_status_has_one_owner() -> None:
    """Owned field by field, who owns each would be half of what is stored, read and written at each change."""
    assert STATUS["x-kubernetes-map-type"] == "atomic"


POD_TEXTS = (
    "image", "schedulerName", "cacheVolumeClaim", "queueName",
    "tolerations[].key", "tolerations[].value", "tolerations[].effect",
)  # fmt: skip


def test_what_a_recipe_knows_has_no_default() -> None:
    defaults = {path: schema["default"] for path, schema in nodes(SPEC, "spec") if "default" in schema}
    assert defaults == {
        "spec.backend": "Slurm",
        "spec.slurm": {},
        **dict.fromkeys(
            [f"spec.slurm.{name}" for name in ("partition", "account", "qos", "reservation", "constraint")], ""
        ),
        "spec.slurm.nice": 0,
        "spec.pods": {},
        **dict.fromkeys([f"spec.pods.{name}" for name in POD_TEXTS], ""),
        "spec.pods.sharedMemory": "16Gi",
        "spec.pods.tolerations[].operator": "Equal",
        "spec.runs": 1,
        "spec.runsPerAllocation": 1,
        "spec.parallelism": 1,
        "spec.backoffLimit": 2,
        "spec.suspend": False,
        "spec.env[].value": "",
        **dict.fromkeys([f"spec.recipe.source.{name}" for name in ("repository", "revision", "path")], ""),
        "spec.slurm.registrySecretRef.key": ".dockerconfigjson",
        "spec.slurm.prepare": "Separate",
        "spec.telemetry": {},
        "spec.telemetry.periodSeconds": 10,
    }


MUTABLE = {
    *("suspend", "parallelism", "backoffLimit", "activeDeadlineSeconds", "stallTimeoutSeconds"),
    *("ttlSecondsAfterFinished", "runs"),
}


def test_runs_only_go_up_and_never_once_it_is_finished() -> None:
    finished = "has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase in "
    phases = "['Failed', 'Missed', 'Succeeded']"
    assert SPEC["properties"]["runs"]["x-kubernetes-validations"] == [
        {"rule": "self >= oldSelf", "message": "spec.runs can only be raised"}
    ]
    assert ROOT["x-kubernetes-validations"] == [
        {
            "rule": f"self.spec.runs == oldSelf.spec.runs || !({finished}{phases})",
            "message": "spec.runs cannot be changed once the Speedrun is finished: create another",
        }
    ]


def test_every_field_but_the_mutable_ones_is_frozen_with_a_message() -> None:
    [rule] = SPEC["x-kubernetes-validations"]
    assert set(re.findall(r"oldSelf\.(\w+)", rule["rule"])) == set(SPEC["properties"]) - MUTABLE
    assert set(re.findall(r"'spec\.(\w+)'", rule["messageExpression"])) == set(SPEC["properties"]) - MUTABLE
    assert set(re.findall(r"spec\.(\w+)", rule["message"])) == MUTABLE
    assert len(rule["rule"]) < 4096 and len(rule["messageExpression"]) < 4096


def test_a_write_that_changes_no_spec_costs_one_comparison_of_it() -> None:
    assert SPEC["x-kubernetes-validations"][0]["rule"].startswith("self == oldSelf || ")


def test_columns() -> None:
    columns = {each["name"]: each for each in VERSION["additionalPrinterColumns"]}
    assert [name for name, each in columns.items() if each["priority"] == 0] == (
        ["PHASE", "VAL_LOSS", "TRAIN_TIME", "STEP", "RUNS", "BACKEND", "AGE"]
    )
    assert [name for name, each in columns.items() if each["priority"]] == ["RESULT", "TARGET", "JOB", "NODE", "REASON"]
    for each in columns.values():
        node: Mapping[str, Any] = ROOT
        for part in each["jsonPath"].removeprefix(".").split("."):
            if part == "metadata":
                break
            node = node["properties"][part]
        else:
            assert node["type"] == each["type"], each["name"]


@pytest.mark.parametrize(
    "spec",
    [
        {"recipe": {"name": "smoke"}},
        {"recipe": {"name": "replay", "parameters": {"steps": 3, "log": "/shared/log"}}, "target": 3.28},
        {"recipe": {"name": "a"}, "gpus": {"type": "H100", "count": 8}, "timeLimitSeconds": 60, "backend": "Slurm"},
        {"recipe": {"name": "a"}, "runs": 10, "runsPerAllocation": 4, "parallelism": 2, "suspend": True},
        {"recipe": {"name": "a"}, "env": [{"name": "A", "value": "$(RUN)"}, {"name": "B"}], "backoffLimit": 0},
        {"recipe": {"name": "a"}, "stallTimeoutSeconds": 60, "activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0},
        {"recipe": {"name": "a"}, "slurm": {"nodeList": ["node[1-4]"], "constraint": "a&b", "nice": 5, "qos": ""}},
    ],
)
def test_what_the_models_take_the_schema_takes(spec: dict[str, Any]) -> None:
    Spec.model_validate(spec)
    assert list(faults(SPEC, spec)) == []
