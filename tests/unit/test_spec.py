"""`spec`: what is taken, and that no text of it can become more than a word anywhere."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from speedrun_operator.api.names import FINISHED_LABEL
from speedrun_operator.api.resource import Resource, explain
from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.api.spec import Spec
from speedrun_operator.progress.allocation import MOST_RUNS
from unit.builders import NOON, raw
from unit.structural import faults

SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

TEXTS = [
    "recipe.name",
    "gpus.type",
    "slurm.partition",
    "slurm.account",
    "slurm.qos",
    "slurm.reservation",
    "slurm.constraint",
    "slurm.nodeList.0",
    "slurm.exclude.0",
    "env.0.name",
    "recipe.source.repository",
    "recipe.source.revision",
    "recipe.source.path",
    *(
        f"{reference}.{part}"
        for reference in (
            "recipe.source.patch.configMapRef",
            "recipe.source.secretRef",
            "slurm.registrySecretRef",
            "env.0.valueFrom.secretKeyRef",
        )
        for part in ("name", "key")
    ),
    "pods.image",
    "pods.imagePullSecrets.0",
    "pods.schedulerName",
    "pods.tolerations.0.key",
    "pods.tolerations.0.value",
    "pods.cacheVolumeClaim",
    "pods.sharedMemory",
    "pods.queueName",
]
WITH_SLASHES = {"pods.image", "pods.tolerations.0.key"}
FREE = "env.0.value"  # any text at all, but for NUL and without end
HOSTILE = {
    "a quote": "a'b",
    "two quotes": 'a"b',
    "a substitution": "$(id)",
    "a variable": "$HOME",
    "backticks": "`id`",
    "a line end behind": "a\n",
    "a line end before": "\na",
    "a line end within": "a\nb",
    "a carriage return": "a\r",
    "a dash before": "-a",
    "an option": "--wrap=id",
    "NUL": "a\0",
    "a blank": "a b",
    "a tab": "a\t",
    "a semicolon": "a;b",
    "a redirection": "a>b",
    "a comma, which would add a node or a partition": "a,b",
    "a percent sign, which sbatch replaces": "a%j",
    "a backslash": "a\\",
    "a slash": "a/b",
    "a letter of another script": "aé",
    "digits of another script": "a\u0661",
    "a line separator": "a\u2028",
    "10 kB": "a" * 10_000,
}


def spec_with(path: str, value: object) -> dict[str, Any]:
    """A spec that is sound but for `value` at `path`; a number in the path makes a list."""
    spec: dict[str, Any] = {"recipe": {"name": "replay"}}
    if path == FREE:
        return {**spec, "env": [{"name": "MINE", "value": value}]}
    *parents, last = path.split(".")
    sound = {"name": "mine", "key": "mine"} if parents and parents[-1].endswith("Ref") else {}
    made: Any = [value] if last == "0" else {**sound, last: value}
    for part in reversed(parents):
        made = [made] if part == "0" else {part: made}
    if "env" in made:
        made = {"env": [{"name": "MINE", **made["env"][0]}]}
    return {**spec, **made, "recipe": {**spec["recipe"], **made.get("recipe", {})}}


def refusal(spec: object) -> str:
    with pytest.raises(ValidationError) as invalid:
        Spec.model_validate(spec)
    return explain(invalid.value)


def test_every_text_of_the_schema_is_tried() -> None:
    texts: set[str] = set()

    def collect(schema: dict[str, Any], path: str) -> None:
        if schema.get("type") == "string" and "enum" not in schema:
            texts.add(path)
        for name, each in schema.get("properties", {}).items():
            collect(each, f"{path}.{name}" if path else name)
        if "items" in schema:
            collect(schema["items"], f"{path}.0")

    collect(SCHEMA, "")
    assert texts == {*TEXTS, FREE}


TAKEN = {("recipe.source.revision", "a/b")}  # a branch


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(path, value, id=f"{path}-{name}")
        for path in TEXTS
        for name, value in HOSTILE.items()
        if (path, value) not in TAKEN
    ],
)
def test_hostile_text_is_refused_with_the_field(path: str, value: str) -> None:
    if path in WITH_SLASHES and value == HOSTILE["a slash"]:
        return
    spec = spec_with(path, value)
    assert refusal(spec).startswith(f"spec.{path}: String should ")
    assert any(fault.startswith("spec." + path.replace(".0", "[0]")) for fault in faults(SCHEMA, spec, "spec"))


@settings(deadline=None)
@given(st.sampled_from([*TEXTS, FREE]), st.text(alphabet=st.sampled_from("ab1-_.&|*()[],$`'\"\\\n\0 é")))
def test_models_and_schema_take_the_same_texts(path: str, value: str) -> None:
    spec = spec_with(path, value)
    try:
        Spec.model_validate(spec)
    except ValidationError:
        taken = False
    else:
        taken = True
    assert taken == (list(faults(SCHEMA, spec)) == [])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recipe.name", "modded-nanogpt"),
        ("gpus.type", "H100"),
        ("gpus.type", "RTX_6000-Ada"),
        ("slurm.partition", "compute-h100"),
        ("slurm.partition", ""),
        ("slurm.account", "lab_1.x"),
        ("slurm.constraint", "intel&(gpu|tpu)*2"),
        ("slurm.constraint", "[rack1*2&rack2*4]"),
        ("slurm.nodeList.0", "slurm-h100-[0-3,7]"),
        ("slurm.exclude.0", "node-a.cluster"),
        ("recipe.source.repository", "https://github.com/me/modded-nanogpt.git"),
        ("recipe.source.repository", "https://git.example.com:8443/~me/x+y"),
        ("recipe.source.repository", "ssh://git@git.example.com:2222/me/x.git"),
        ("recipe.source.repository", "git@github.com:me/x.git"),
        ("recipe.source.repository", "/shared/git/x.git"),
        ("recipe.source.repository", ""),
        ("recipe.source.revision", "pull/146/head"),
        ("recipe.source.revision", "refs/merge-requests/7/head"),
        ("recipe.source.revision", "v1.0-rc1"),
        ("recipe.source.revision", "me/try--this#2"),
        ("recipe.source.revision", "f411b3d346aa52d3504324ca93c230fd84c6c07f"),
        ("recipe.source.path", "~/nanogpt/modded-nanogpt"),
        ("recipe.source.path", "/shared/me/my code"),
        ("recipe.source.secretRef.key", ".dockerconfigjson"),
        ("recipe.source.patch.configMapRef.name", "my-patch.v2"),
    ],
)
def test_what_slurm_calls_things_is_taken(path: str, value: str) -> None:
    Spec.model_validate(spec_with(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        # git would run the first two, and read the third and fourth as options.
        ("recipe.source.repository", "ext::sh -c id"),
        ("recipe.source.repository", "ext::id"),
        ("recipe.source.repository", "--upload-pack=id"),
        ("recipe.source.repository", "ssh://-oProxyCommand=id/x"),
        ("recipe.source.repository", "a@-oProxyCommand=id:x"),
        ("recipe.source.repository", "https://me:token@github.com/me/x"),
        ("recipe.source.repository", "file:///etc"),
        ("recipe.source.repository", "me/x"),
        ("recipe.source.revision", "a..b"),
        ("recipe.source.revision", "a@{1}"),
        ("recipe.source.revision", "a^"),
        ("recipe.source.revision", "/a"),
        ("recipe.source.revision", "a/"),
        ("recipe.source.path", "nanogpt"),
        ("recipe.source.path", "~other/x"),
    ],
)
def test_what_git_would_make_more_of_is_refused(path: str, value: str) -> None:
    assert refusal(spec_with(path, value)).startswith(f"spec.{path}: String should ")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "/a", "repository": "/b"}, "path excludes repository"),
        ({"path": "/a", "revision": "main"}, "path excludes repository"),
        ({"path": "/a", "secretRef": {"name": "a", "key": "b"}}, "path excludes repository"),
        ({"repository": "http://h/x", "secretRef": {"name": "a", "key": "b"}}, "secretRef needs a repository of https"),
        ({"repository": "/a", "secretRef": {"name": "a", "key": "b"}}, "secretRef needs a repository of https"),
    ],
)
def test_parts_of_a_source_that_exclude_each_other(source: dict[str, Any], message: str) -> None:
    assert refusal({"recipe": {"name": "replay", "source": source}}).startswith(
        f"spec.recipe.source: Value error, {message}"
    )


def test_a_value_and_a_secret_exclude_each_other() -> None:
    each = {"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    assert refusal({"recipe": {"name": "a"}, "env": [each]}).startswith(
        "spec.env.0: Value error, give either value or valueFrom"
    )


@pytest.mark.parametrize(
    "name", ["A", "_", "a1", "PATH", "NCCL_DEBUG", "omp_num_threads", "A" * 128], ids=lambda each: each[:20]
)
def test_names_of_variables(name: str) -> None:
    spec = spec_with("env.0.name", name)
    assert Spec.model_validate(spec).env[0].name == name
    assert list(faults(SCHEMA, spec)) == []


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A.B", "A=B", "BASH_FUNC_x%%", "A()", "A" * 129, "$(RUN)"], ids=repr)
def test_what_is_no_name_of_a_variable(name: str) -> None:
    spec = spec_with("env.0.name", name)
    assert refusal(spec).startswith("spec.env.0.name: String should ")
    assert list(faults(SCHEMA, spec)) != []


PLAIN = [each for name, each in HOSTILE.items() if name not in ("NUL", "10 kB")]


@pytest.mark.parametrize("value", [*PLAIN, "", "\n\n", "a" * 4096, "$(RUN)", "\x1b[0m", "\u0085"], ids=repr)
def test_values_of_variables_are_any_text(value: str) -> None:
    spec = spec_with(FREE, value)
    assert Spec.model_validate(spec).env[0].value == value
    assert list(faults(SCHEMA, spec)) == []


@pytest.mark.parametrize("value", ["\0", "a\0b", "\n\0", "a" * 4097], ids=lambda each: repr(each[:9]))
def test_but_for_nul_and_without_end(value: str) -> None:
    spec = spec_with(FREE, value)
    assert refusal(spec).startswith("spec.env.0.value: String should ")
    assert list(faults(SCHEMA, spec)) != []


BOUNDS = {
    "runs": (1, 256),
    "runsPerAllocation": (1, 64),
    "parallelism": (1, 64),
    "timeLimitSeconds": (60, 2592000),
    "stallTimeoutSeconds": (60, 2592000),
    "backoffLimit": (0, 20),
    "activeDeadlineSeconds": (1, 31536000),
    "ttlSecondsAfterFinished": (0, 315360000),
}


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items(), ids=BOUNDS)
def test_bounds(name: str, bounds: tuple[int, int]) -> None:
    least, most = bounds
    for value in bounds:
        Spec.model_validate(spec_with(name, value))
        assert list(faults(SCHEMA, spec_with(name, value))) == []
    for value in (least - 1, most + 1, least + 0.5, "many"):
        assert refusal(spec_with(name, value)).startswith(f"spec.{name}: Input should be ")
        assert list(faults(SCHEMA, spec_with(name, value))) != []


def test_a_log_can_hold_as_many_runs_as_can_be_asked_for() -> None:
    assert BOUNDS["runs"][1] <= MOST_RUNS


def test_what_is_not_said_is_one_run_that_is_tried_again_twice() -> None:
    spec = Spec.model_validate({"recipe": {"name": "replay"}})
    assert (spec.runs, spec.runs_per_allocation, spec.parallelism, spec.backoff_limit) == (1, 1, 1, 2)
    assert (spec.suspend, spec.env) == (False, [])
    assert (spec.stall_timeout_seconds, spec.active_deadline_seconds, spec.ttl_seconds_after_finished) == (None,) * 3


@pytest.mark.parametrize("key", [*HOSTILE.values(), "", "1a", "_a", "a-b", "a.b", "a=b"], ids=repr)
def test_names_of_parameters_are_words(key: str) -> None:
    assert "String should " in refusal({"recipe": {"name": "replay", "parameters": {key: 1}}})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({}, "spec.recipe: Field required", id="empty"),
        pytest.param({"recipe": {}}, "spec.recipe.name: Field required", id="no name"),
        pytest.param(
            {"recepi": {"name": "a"}},
            "spec.recipe: Field required; spec.recepi: Extra inputs are not permitted",
            id="an unknown field",
        ),
        pytest.param(
            {"recipe": {"name": "a"}, "backend": "pods"},
            "spec.backend: Input should be 'Slurm' or 'Pods'",
            id="a backend that is none",
        ),
        pytest.param(spec_with("target", 0), "spec.target: Input should be greater than 0", id="no target"),
        pytest.param(
            spec_with("target", 1001), "spec.target: Input should be less than or equal to 1000", id="too high"
        ),
        pytest.param(spec_with("target", float("nan")), "spec.target: Input should be a finite number", id="nan"),
        pytest.param(spec_with("target", float("inf")), "spec.target: Input should be a finite number", id="infinity"),
        pytest.param(spec_with("target", "low"), "spec.target: Input should be a number, not text", id="a word"),
        pytest.param(
            spec_with("target", "2.0"), "spec.target: Input should be a number, not text", id="a quoted number"
        ),
        pytest.param(
            spec_with("gpus.count", -1), "spec.gpus.count: Input should be greater than or equal to 0", id="-1"
        ),
        pytest.param(spec_with("gpus.count", 65), "spec.gpus.count: Input should be less than or equal to 64", id="65"),
        pytest.param(spec_with("gpus.count", 1.5), "spec.gpus.count: Input should be a valid integer", id="half a GPU"),
        pytest.param(spec_with("timeLimitSeconds", 59), "spec.timeLimitSeconds: Input should be greater", id="59 s"),
        pytest.param(spec_with("slurm.nice", -1), "spec.slurm.nice: Input should be greater", id="to the front"),
        pytest.param(
            {"recipe": {"name": "a"}, "slurm": {"nodeList": ["a"] * 65}},
            "spec.slurm.nodeList: List should have at most 64 items",
            id="many nodes",
        ),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {f"p{n}": 1 for n in range(33)}}},
            "spec.recipe.parameters: Dictionary should have at most 32 items",
            id="many parameters",
        ),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {"lr": 0.003}}},
            "spec.recipe.parameters.lr: Input should be a valid integer or: Input should be a valid string",
            id="a fraction",
        ),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {"flag": True}}},
            "spec.recipe.parameters.flag: Input should be a valid integer or: Input should be a valid string",
            id="a flag",
        ),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {"int": "x" * 1025}}},
            "spec.recipe.parameters.int: Input should be a valid integer or: String should have at most 1024",
            id="a long value",
        ),
        pytest.param(
            {"recipe": {"name": "a", "parameters": {"a b": 1}}},
            "spec.recipe.parameters.a b: String should match pattern",
            id="a name with a blank",
        ),
        pytest.param(
            {"recipe": {"name": "a"}, "env": [{"name": f"A{n}"} for n in range(65)]},
            "spec.env: List should have at most 64 items",
            id="many variables",
        ),
        pytest.param({"recipe": {"name": "a"}, "env": [{}]}, "spec.env.0.name: Field required", id="no name"),
        pytest.param(
            {"recipe": {"name": "a"}, "env": [{"name": "A", "value": 1}]},
            "spec.env.0.value: Input should be a valid string",
            id="a number for a text",
        ),
        pytest.param(
            {"recipe": {"name": "a"}, "env": [{"name": "A", "valueFrom": {}}]},
            "spec.env.0.valueFrom.secretKeyRef: Field required",
            id="a value from nowhere",
        ),
        pytest.param(
            {"recipe": {"name": "a"}, "env": {"A": "1"}}, "spec.env: Input should be a valid list", id="a mapping"
        ),
        pytest.param(spec_with("suspend", "later"), "spec.suspend: Input should be a valid boolean", id="later"),
        pytest.param([], "spec: Input should be a valid dictionary", id="a list"),
    ],
)
def test_a_refusal_names_the_field(spec: object, message: str) -> None:
    assert refusal(spec).startswith(message)


def test_a_spec_with_many_faults_is_told_shortly() -> None:
    said = refusal({"recipe": {"name": "a"}, **{f"f{n}": 1 for n in range(50)}})
    assert said.count(";") == 7


def test_a_target_is_the_decimal_that_was_written() -> None:
    assert str(Spec.model_validate(spec_with("target", 3.28)).target) == "3.28"


def test_numbers_of_parameters_stay_numbers_and_texts_texts() -> None:
    spec = Spec.model_validate({"recipe": {"name": "a", "parameters": {"n": 7, "t": "7"}}})
    assert spec.recipe.parameters == {"n": 7, "t": "7"}


def test_a_resource_as_it_is_read() -> None:
    one = Resource.parse(raw())
    assert (str(one.identity), one.generation, one.created) == ("lab/mine", 1, NOON)
    assert (one.protected, one.deleting, one.labelled_finished, one.spec_error) == (True, False, False, None)


@pytest.mark.parametrize(
    ("labels", "finished"), [(None, False), ({FINISHED_LABEL: "true"}, True), ({FINISHED_LABEL: "no"}, False)]
)
def test_the_label_counts_with_its_value_as_in_the_selector(labels: dict[str, str] | None, finished: bool) -> None:
    made = copy.deepcopy(raw())
    made["metadata"]["labels"] = labels
    assert Resource.parse(made).labelled_finished is finished


def test_a_stored_spec_that_does_not_validate_is_told_and_not_raised() -> None:
    one = Resource.parse(raw({"recipe": {"name": "A"}}))
    assert one.spec is None
    assert one.spec_error is not None and one.spec_error.startswith("spec.recipe.name: ")


@pytest.mark.parametrize("said", ["90", "30:00", "1:30:00", "3-0", "3-0:00", "3-12:30", "0", "3600.0", "4h", 0])
def test_a_time_limit_is_a_number_of_seconds_and_no_form_of_slurms(said: str | int) -> None:
    """BR-026: none of them can be read as another time than was meant."""
    spec = spec_with("timeLimitSeconds", said)
    if isinstance(said, str):
        assert [each for each in faults(SCHEMA, spec, "spec") if each.startswith("spec.timeLimitSeconds: ")]
    assert refusal(spec).startswith("spec.timeLimitSeconds: Input should be")
