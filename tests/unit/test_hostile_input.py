"""Hostile text in every field of a spec, all the way to the remote command and the batch script: nothing of it runs.

The fields are those of the schema, so that a new one is here by itself. What is not refused (naming its field) is
submitted with the real remote command to a login node whose sbatch records its arguments, and its script is run with a
PATH that holds nothing but canaries for what the text would run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.api.resource import Resource
from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.backends.slurm.script import render, sbatch_arguments
from speedrun_operator.planning import Refusal, RunPlan, plan
from speedrun_operator.recipes.recipe import Recipe, shipped
from unit.builders import SITE, raw
from unit.slurm.login_node import LoginNode

SPEC = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
TEXTS = {
    "a quote and a command": "x'; touch pwned; echo '",
    "a substitution": "$(touch pwned)",
    "backticks": "`touch pwned`",
    "two quotes": '"; touch pwned; "',
    "a line of its own": "x\ntouch pwned\n",
    "a directive": "hi\n#SBATCH --uid=0\ntouch pwned",
    "the end of a step's file": "SPEEDRUN_STEP\ntouch pwned\n",
    "an option": "--wrap=touch pwned",
    "a dash": "-D/",
    "a pattern of sbatch's": "%j%x%u",
    "NUL": "a\0touch pwned",
    "a variable": "${IFS}$PATH$SECRET",
    "a history sign and globs": "!! * ? [a-z] {a,b} ~",
    "letters of all kinds": "é☃\u2028\u202e\U0001f680\u0661",
    "an escape": "\x1b]0;x\x07\x7f",
    "10 kB": "a" * 10_000,
    "10 kB of quotes": "'" * 10_000,
}
# A recipe with a parameter that takes any text: whatever a recipe's pattern lets through is still only text.
SECRET = "s3cret"
SAY = 'printf %s "$PARAM_ANYTHING" >parameter; env -0 >environment'
OPEN = Recipe.model_validate(
    {
        "name": "open",
        "about": "Takes any text.",
        "target": 3.28,
        "logFormat": "modded-nanogpt",
        "gpus": {"counts": [0]},
        "startUpSeconds": 60,
        "runSeconds": 60,
        "parameters": {"anything": {"type": "string", "default": "", "description": "", "pattern": r"[\s\S]*"}},
        "steps": [
            {"name": "say", "stage": "train", "run": 'printf %s "$PARAM_ANYTHING" >parameter; env -0 >environment'}
        ],
    }
)
RECIPES = {**shipped(), "open": OPEN}


def fields(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every text in the schema: `[]` is an item of a list, `{}` a value of a map."""
    if schema.get("type") == "string" or schema.get("x-kubernetes-int-or-string"):
        yield path
    for name, each in schema.get("properties", {}).items():
        yield from fields(each, (*path, name))
    if isinstance(schema.get("items"), dict):
        yield from fields(schema["items"], (*path, "[]"))
    if isinstance(schema.get("additionalProperties"), dict):
        yield (*path, "{key}")
        yield from fields(schema["additionalProperties"], (*path, "{}"))


FIELDS = list(fields(SPEC))


def spec_with(path: tuple[str, ...], text: str) -> dict[str, Any]:
    """A sound spec but for `text` at `path`."""
    spec: dict[str, Any] = {"recipe": {"name": "open", "parameters": {}}}
    node: Any = spec
    for number, part in enumerate(path):
        following = path[number + 1] if number + 1 < len(path) else None
        if part == "{key}":
            node[text] = "x"
        elif following is None and part == "[]":
            node.append(text)
        elif following is None:
            node["anything" if part == "{}" else part] = text
        elif part == "[]":
            node.append({"name": "MINE"} if path[0] == "env" else {})
            node = node[-1]
        else:
            node = node.setdefault(part, [] if following == "[]" else {})
    return spec


def names(path: tuple[str, ...]) -> str:
    """How a refusal begins that names the field."""
    shown = [{"[]": "0", "{}": "anything"}.get(part, part) for part in path if part != "{key}"]
    return "spec." + ".".join(shown)


class Machine:
    """A login node and a compute node in one directory, each with stubs that a hostile text would like to run."""

    def __init__(self, folder: Path) -> None:
        self.node = LoginNode(folder)
        self.folder = folder
        self.node.says("sbatch", "17\n")
        for program in ("touch", "id", "curl"):
            path = self.node.programs / program
            path.write_text(f'#!/bin/bash\necho {program} "$@" >>"{folder}/ran"\n')
            path.chmod(0o755)
        recording = self.node.programs / "sbatch"
        recording.write_text(f'#!/bin/bash\nprintf \'%s\\0\' "$@" >"{folder}/argv"\necho 17\n')
        recording.chmod(0o755)
        for tool in ("hostname", "env", "rm"):
            if not (self.node.programs / tool).exists():
                (self.node.programs / tool).symlink_to(f"/usr/bin/{tool}")

    def ran(self) -> str:
        """What was run that must not be; empty if nothing was."""
        told = (self.folder / "ran").read_text() if (self.folder / "ran").exists() else ""
        return told + " ".join(str(path) for path in self.folder.rglob("pwned*"))

    def submits(self, made: RunPlan, resource: Resource) -> list[str]:
        """sbatch's arguments."""
        script = render(made, resource.identity, 0, "~/runs", "python3").encode()
        self.node.submit(script, sbatch_arguments(made, resource.identity, "sr-c1-0"))
        return (self.folder / "argv").read_bytes().decode().split("\0")[:-1]

    def runs(self) -> subprocess.CompletedProcess[bytes]:
        """The script that was submitted, as slurmstepd runs it."""
        return subprocess.run(
            [self.node.programs / "bash", self.node.ledger / "script.sh"],
            env={
                "PATH": str(self.node.programs),
                "HOME": str(self.node.home),
                "SLURM_JOB_ID": "17",
                "SECRET": "s3cret",
            },
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_fields_are_all_there() -> None:
    known = {".".join(path) for path in FIELDS}
    assert {
        "recipe.name",
        "recipe.parameters.{}",
        "recipe.parameters.{key}",
        "slurm.nodeList.[]",
        "env.[].value",
    } <= known
    assert len(known) >= 14


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(path))
def test_hostile_text_is_refused_by_its_field_or_stays_text(path: tuple[str, ...], text: str, machine: Machine) -> None:
    """BR-105, BR-106."""
    resource = Resource.parse(raw(spec_with(path, text)))
    if resource.spec is None:
        assert resource.spec_error
        assert names(path) in resource.spec_error
        assert len(resource.spec_error) < 500 and resource.spec_error.isprintable()
        return
    made = plan(resource.spec, RECIPES, SITE)
    if isinstance(made, Refusal):
        assert names(path) in made.message
        return
    made = made.for_runs([(0, "A")])
    told = machine.submits(made, resource)
    plain = Resource.parse(raw({"recipe": {"name": "open"}}))
    assert plain.spec is not None
    usual = plan(plain.spec, RECIPES, SITE)
    assert isinstance(usual, RunPlan)
    expected = sbatch_arguments(usual.for_runs([(0, "A")]), plain.identity, "sr-c1-0")
    assert {each for each in told if each not in expected and not each.startswith(("--chdir=", "--output="))} <= {
        f"--{option}={text}" for option in ("partition", "account", "qos", "reservation", "constraint")
    } | {str(machine.node.ledger / "script.sh")}
    script = (machine.node.ledger / "script.sh").read_text().split("\n")
    head = script[: next(number for number, line in enumerate(script) if not line.startswith("#"))]
    assert not [line for line in head if line.startswith("#SBATCH")], "sbatch reads no directives behind a command"
    done = machine.runs()
    assert machine.ran() == ""
    assert SECRET.encode() not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    run = machine.node.ledger / "run-0"
    if path[:2] == ("recipe", "parameters"):
        assert (run / "parameter").read_bytes().decode() == text
    if path == ("env", "[]", "value"):
        seen = (run / "environment").read_bytes().decode().split("\0")
        assert f"MINE={text}" in seen


@pytest.mark.parametrize("text", [each for each in TEXTS.values() if len(each) < 1000], ids=repr)
def test_a_shipped_recipes_own_pattern_names_the_parameter(text: str) -> None:
    for name, recipe in shipped().items():
        for parameter, declared in recipe.parameters.items():
            spec = {"recipe": {"name": name, "parameters": {parameter: text}}}
            resource = Resource.parse(raw(spec))
            said = resource.spec_error
            if resource.spec is not None:
                made = plan(resource.spec, shipped(), SITE)
                assert isinstance(made, Refusal), (name, parameter, declared.pattern)
                said = made.message
            assert said and f"spec.recipe.parameters.{parameter}" in said
