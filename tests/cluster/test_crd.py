"""The CRD as a real API server takes it: what it lets in, what it refuses and how it says so, what kubectl shows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.speedruns import speedrun
from speedrun_operator.api.schema import crd_yaml
from testbed.kubectl import Kubectl, KubectlFailed

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
NAME = "crd/speedruns.speedrun.dev"


@pytest.fixture(scope="module")
def installed(kubectl: Kubectl) -> Kubectl:
    """kubectl on an API server that has the CRD, as `speedrun-operator crd` prints it."""
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd_yaml())
    kubectl.wait_established(NAME.removeprefix("crd/"))
    return kubectl


@pytest.fixture(scope="module")
def lab(installed: Kubectl) -> Iterator[str]:
    """A namespace of this module."""
    name = f"crd-{uuid.uuid4().hex[:10]}"
    installed("create", "namespace", name)
    yield name
    installed("delete", "namespace", name, "--wait=false")


FULL = speedrun(
    "full",
    parameters={"steps": 3},
    target=3.28,
    gpus={"type": "H100", "count": 2},
    timeLimitSeconds=600,
    slurm={"partition": "p", "nodeList": ["node[1-2]"], "nice": 5},
)


@pytest.fixture(scope="module")
def full(installed: Kubectl, lab: str) -> str:
    """The name of a Speedrun that says everything."""
    create(installed, lab, FULL)
    return "full"


def create(kubectl: Kubectl, namespace: str, each: dict[str, Any], *options: str) -> dict[str, Any]:
    """Create it; what the server made of it."""
    return dict(
        json.loads(kubectl("create", "-n", namespace, "-f", "-", "-o", "json", *options, stdin=json.dumps(each)))
    )


def refusal(kubectl: Kubectl, namespace: str, each: dict[str, Any]) -> str:
    with pytest.raises(KubectlFailed) as failed:
        create(kubectl, namespace, each, "--dry-run=server")
    return failed.value.message


def test_the_server_takes_it_as_structural(installed: Kubectl) -> None:
    crd = json.loads(installed("get", NAME, "-o", "json"))
    conditions = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert "NonStructuralSchema" not in conditions
    wanted = yaml.safe_load(crd_yaml())["spec"]["versions"][0]["schema"]
    assert crd["spec"]["versions"][0]["schema"] == wanted, "the server keeps all of it"


def test_only_a_recipe_is_needed_and_defaults_appear(installed: Kubectl, lab: str) -> None:
    made = create(installed, lab, {**speedrun("least"), "spec": {"recipe": {"name": "smoke"}}}, "--dry-run=server")
    nothing = dict.fromkeys(["partition", "account", "qos", "reservation", "constraint"], "")
    assert made["spec"] == {
        "recipe": {"name": "smoke"},
        "backend": "Slurm",
        "runs": 1,
        "runsPerAllocation": 1,
        "parallelism": 1,
        "backoffLimit": 2,
        "suspend": False,
        "slurm": {**nothing, "nice": 0, "prepare": "Separate"},
        "pods": {"cacheVolumeClaim": "", "image": "", "queueName": "", "schedulerName": "", "sharedMemory": "16Gi"},
        "telemetry": {"periodSeconds": 10},
    }


def test_what_was_said_is_kept_as_it_was_said(installed: Kubectl, lab: str, full: str) -> None:
    kept = json.loads(installed("get", "speedrun", full, "-n", lab, "-o", "json"))["spec"]
    assert kept["target"] == 3.28
    assert kept["recipe"] == FULL["spec"]["recipe"]
    assert (kept["gpus"], kept["timeLimitSeconds"]) == ({"type": "H100", "count": 2}, 600)
    assert (kept["slurm"]["nodeList"], kept["slurm"]["nice"]) == (["node[1-2]"], 5)


FROZEN: list[tuple[str, dict[str, Any]]] = [
    ("recipe", {"recipe": {"name": "smoke"}}),
    ("recipe", {"recipe": {"parameters": {"steps": 4}}}),
    ("recipe", {"recipe": {"parameters": {"steps": None}}}),
    ("recipe", {"recipe": {"parameters": {"valLoss": "3.2"}}}),
    ("target", {"target": 3.29}),
    ("target", {"target": None}),
    ("gpus", {"gpus": {"count": 4}}),
    ("gpus", {"gpus": None}),
    ("timeLimitSeconds", {"timeLimitSeconds": 660}),
    ("timeLimitSeconds", {"timeLimitSeconds": None}),
    ("slurm", {"slurm": {"partition": "q"}}),
    ("slurm", {"slurm": {"nodeList": []}}),
    ("slurm", {"slurm": {"account": "mine"}}),
]


@pytest.mark.parametrize(("field", "change"), FROZEN, ids=[json.dumps(change) for _, change in FROZEN])
def test_a_field_of_the_spec_is_frozen(
    field: str, change: dict[str, Any], installed: Kubectl, lab: str, full: str
) -> None:
    patch = json.dumps({"spec": change})
    with pytest.raises(KubectlFailed) as failed:
        installed("patch", "speedrun", full, "-n", lab, "--type=merge", "-p", patch, "--dry-run=server")
    assert f"spec.{field} cannot be changed: delete the Speedrun and create another" in failed.value.message


ADDED: list[tuple[str, Any]] = [
    ("target", 3.3),
    ("gpus", {"count": 1}),
    ("timeLimitSeconds", 60),
    ("slurm", {"partition": "p"}),
]


@pytest.mark.parametrize(("field", "value"), ADDED)
def test_what_was_left_out_is_frozen_too(field: str, value: Any, installed: Kubectl, namespace: str) -> None:
    create(installed, namespace, speedrun("least"))
    patch = json.dumps({"spec": {field: value}})
    with pytest.raises(KubectlFailed) as failed:
        installed("patch", "speedrun", "least", "-n", namespace, "--type=merge", "-p", patch)
    assert f"spec.{field} cannot be changed" in failed.value.message


def test_the_same_again_and_spelled_out_defaults_are_no_change(installed: Kubectl, namespace: str) -> None:
    apply = ("apply", "-n", namespace, "-f", "-")
    installed(*apply, stdin=json.dumps(speedrun("same")))
    assert "unchanged" in installed(*apply, stdin=json.dumps(speedrun("same")))
    installed(*apply, stdin=json.dumps(speedrun("same", backend="Slurm", slurm={"nice": 0, "account": ""})))
    installed("label", "speedrun", "same", "-n", namespace, "team=a")


@pytest.mark.parametrize("example", EXAMPLES, ids=[each.name for each in EXAMPLES])
def test_the_server_takes_an_example(example: Path, installed: Kubectl, lab: str) -> None:
    said = installed("create", "-n", lab, "-f", str(example), "--dry-run=server", "--validate=strict")
    assert said.endswith("created (server dry run)\n")


def test_a_name_is_at_most_63_characters_long(installed: Kubectl, lab: str) -> None:
    assert create(installed, lab, speedrun("a" * 63), "--dry-run=server")["metadata"]["name"] == "a" * 63
    assert "metadata.name: Too long: may not be more than 63" in refusal(installed, lab, speedrun("a" * 64))


HOSTILE = {"a line end": "a\n", "an option": "-a", "a substitution": "$(id)", "a blank": "a b", "10 kB": "a" * 10_000}
TEXTS: dict[str, Any] = {
    "spec.recipe.name": lambda text: {"recipe": {"name": text}},
    "spec.gpus.type": lambda text: {"gpus": {"type": text}},
    "spec.slurm.partition": lambda text: {"slurm": {"partition": text}},
    "spec.slurm.account": lambda text: {"slurm": {"account": text}},
    "spec.slurm.qos": lambda text: {"slurm": {"qos": text}},
    "spec.slurm.reservation": lambda text: {"slurm": {"reservation": text}},
    "spec.slurm.constraint": lambda text: {"slurm": {"constraint": text}},
    "spec.slurm.nodeList[0]": lambda text: {"slurm": {"nodeList": [text]}},
    "spec.slurm.exclude[0]": lambda text: {"slurm": {"exclude": [text]}},
}


@pytest.mark.parametrize("path", TEXTS)
def test_hostile_text_is_refused_by_the_server(path: str, installed: Kubectl, lab: str) -> None:
    for what, text in HOSTILE.items():
        each = speedrun("hostile")
        each["spec"] |= TEXTS[path](text)
        said = refusal(installed, lab, each)
        assert f"{path}: " in said, what


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"recipe": None}, "spec.recipe: Required value", id="no recipe"),
        pytest.param({"recipe": {}}, "spec.recipe.name: Required value", id="no name"),
        pytest.param({"backend": "Bare"}, 'spec.backend: Unsupported value: "Bare"', id="no such backend"),
        pytest.param({"target": 0}, "spec.target: Invalid value", id="target 0"),
        pytest.param({"target": 1001}, "spec.target: Invalid value", id="target 1001"),
        pytest.param({"target": "3.28"}, "spec.target: Invalid value", id="a target in quotes"),
        pytest.param({"gpus": {"count": -1}}, "spec.gpus.count: Invalid value", id="-1 GPUs"),
        pytest.param({"gpus": {"count": 65}}, "spec.gpus.count: Invalid value", id="65 GPUs"),
        pytest.param({"gpus": {"count": 1.5}}, "spec.gpus.count: Invalid value", id="half a GPU"),
        pytest.param({"timeLimitSeconds": 59}, "spec.timeLimitSeconds: Invalid value", id="59 s"),
        pytest.param({"timeLimitSeconds": 2592001}, "spec.timeLimitSeconds: Invalid value", id="more than 30 days"),
        pytest.param({"slurm": {"nice": -1}}, "spec.slurm.nice: Invalid value", id="to the front"),
        pytest.param({"slurm": {"nodeList": ["a"] * 65}}, "spec.slurm.nodeList: Too many: 65", id="many nodes"),
        pytest.param({"slurm": {"nodeList": [""]}}, "spec.slurm.nodeList[0]: ", id="an empty node"),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {"x": 0.5}}}, "spec.recipe.parameters.x: ", id="a fraction"
        ),
        pytest.param({"recipe": {"name": "a", "parameters": {"x": True}}}, "spec.recipe.parameters.x: ", id="a flag"),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {"x": "y" * 1025}}}, "spec.recipe.parameters.x: ", id="long"
        ),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {f"p{n}": 1 for n in range(33)}}},
            "spec.recipe.parameters: Too many: 33",
            id="many parameters",
        ),
    ],
)
def test_bounds_are_the_servers(spec: dict[str, Any], message: str, installed: Kubectl, lab: str) -> None:
    each = speedrun("bounded")
    each["spec"] |= spec
    assert message in refusal(installed, lab, each)


def test_a_spec_is_needed(installed: Kubectl, lab: str) -> None:
    each = speedrun("empty")
    del each["spec"]
    assert "spec: Required value" in refusal(installed, lab, each)


def test_an_unknown_field_is_told_by_kubectl_and_dropped_by_the_server(installed: Kubectl, lab: str) -> None:
    each = speedrun("typo", gpu={"count": 8})
    each["spec"]["recipe"]["seed"] = 1
    said = refusal(installed, lab, each)
    assert 'unknown field "spec.gpu"' in said
    assert 'unknown field "spec.recipe.seed"' in said
    made = create(installed, lab, each, "--dry-run=server", "--validate=ignore")
    assert "gpu" not in made["spec"]
    assert "seed" not in made["spec"]["recipe"]


def test_the_largest_spec_is_within_the_cost_of_its_rules(installed: Kubectl, namespace: str) -> None:
    nodes = ["n" * 128] * 64
    parameters = {f"p{number}": "x" * 1024 for number in range(32)}
    largest = speedrun("a" * 63, "r" * 63, parameters, slurm={"nodeList": nodes, "exclude": nodes})
    create(installed, namespace, largest)
    installed("label", "speedrun", "a" * 63, "-n", namespace, "looked=at")


STATUS = {
    "phase": "Training",
    "val_loss": 3.2785,
    "train_time": "58.432s",
    "train_time_ms": 58432,
    "step": 1500,
    "total_steps": 1670,
    "runsSummary": "0/1",
    "result": "val_loss=3.2785",
    "job": "17",
    "node": "node-a",
    "reason": "Priority",
    "plan": {"recipe": "replay", "target": 3.28},
}


@pytest.fixture
def trains(installed: Kubectl, namespace: str) -> str:
    """The namespace of a Speedrun `one` that trains."""
    create(installed, namespace, speedrun("one"))
    write_status(installed, namespace, STATUS)
    return namespace


def write_status(kubectl: Kubectl, namespace: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl("patch", "speedrun", "one", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


def row(table: str) -> dict[str, str]:
    """The one row of a table of kubectl's, by its heading's words; empty cells by their place."""
    heading, line = table.splitlines()
    starts = [heading.index(word) for word in heading.split()]
    ends = [*starts[1:], None]
    return {word: line[start:end].strip() for word, start, end in zip(heading.split(), starts, ends, strict=True)}


def test_what_kubectl_get_shows(installed: Kubectl, trains: str) -> None:
    for name in ("sr", "speedruns", "speedrun"):
        shown = row(installed("get", name, "-n", trains))
        assert shown.pop("AGE").endswith("s")
        assert shown == {
            "NAME": "one",
            "PHASE": "Training",
            "VAL_LOSS": "3.2785",
            "TRAIN_TIME": "58.432s",
            "STEP": "1500",
            "RUNS": "0/1",
            "BACKEND": "Slurm",
        }


def test_what_kubectl_get_wide_shows(installed: Kubectl, trains: str) -> None:
    shown = row(installed("get", "sr", "-n", trains, "-o", "wide"))
    wide = {name: shown[name] for name in ("RESULT", "TARGET", "JOB", "NODE", "REASON")}
    assert wide == {"RESULT": "val_loss=3.2785", "TARGET": "3.28", "JOB": "17", "NODE": "node-a", "REASON": "Priority"}


def test_a_speedrun_that_nobody_has_looked_at_has_empty_columns(installed: Kubectl, namespace: str) -> None:
    create(installed, namespace, speedrun("new"))
    shown = row(installed("get", "sr", "-n", namespace))
    assert (shown["NAME"], shown["BACKEND"], shown["PHASE"], shown["VAL_LOSS"]) == ("new", "Slurm", "", "")


def test_kubectl_get_all_shows_them(installed: Kubectl, trains: str) -> None:
    assert "speedrun.speedrun.dev/one" in installed("get", "all", "-n", trains)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("speedrun.spec", ["recipe\t<Object> -required-", "What to run.", "timeLimitSeconds"]),
        ("speedrun.spec.slurm", ["Options for the backend Slurm.", "partition\t<string>", "as sbatch's --constraint"]),
        ("speedrun.status", ["val_loss\t<number>", "Validation loss: cross-entropy, nats."]),
    ],
)
def test_kubectl_explain(path: str, words: list[str], installed: Kubectl) -> None:
    printed = installed("explain", path)
    for word in words:
        assert word in printed


def test_status_is_not_changed_by_a_write_to_the_resource_nor_spec_by_one_to_status(
    installed: Kubectl, trains: str
) -> None:
    change = json.dumps({"metadata": {"labels": {"a": "b"}}, "spec": {}, "status": {"phase": "Succeeded"}})
    installed("patch", "speedrun", "one", "-n", trains, "--type=merge", "-p", change)
    change = json.dumps({"spec": {"target": 9.9}, "status": {"step": 1501}})
    installed("patch", "speedrun", "one", "-n", trains, "--subresource=status", "--type=merge", "-p", change)
    kept = json.loads(installed("get", "speedrun", "one", "-n", trains, "-o", "json"))
    assert (kept["status"]["phase"], kept["status"]["step"], kept["metadata"]["labels"]) == (
        "Training",
        1501,
        {"a": "b"},
    )
    assert "target" not in kept["spec"]
    assert kept["metadata"]["generation"] == 1


def test_a_status_that_is_none_of_ours_is_refused(installed: Kubectl, trains: str) -> None:
    for status, field in (
        ({"phase": "Sleeping"}, "status.phase"),
        ({"val_loss": "low"}, "status.val_loss"),
        ({"step": 1.5}, "status.step"),
        ({"conditions": [{"type": "Finished", "status": "True"}]}, "status.conditions[0].reason"),
    ):
        with pytest.raises(KubectlFailed) as failed:
            write_status(installed, trains, status)
        assert field in failed.value.message


def test_kubectl_wait_waits_for_a_condition(installed: Kubectl, trains: str) -> None:
    wait = ("wait", "speedrun/one", "-n", trains, "--for=condition=Finished")
    with pytest.raises(KubectlFailed, match="timed out"):
        installed(*wait, "--timeout=1s")
    finished = {"type": "Finished", "status": "True", "reason": "X", "lastTransitionTime": "2026-07-01T12:00:00Z"}
    write_status(installed, trains, {"conditions": [finished]})
    assert "condition met" in installed(*wait, "--timeout=10s")
