"""The Dockerfile holds to what stands elsewhere: the recipes, the package's version, what the bed builds it with."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest

from speedrun_operator.recipes.recipe import shipped
from testbed.builds import DOCKERFILE, ROOT, TARGETS, pip_settings

TEXT = DOCKERFILE.read_text().replace("\\\n", " ")
STAGES = {
    found["name"]: (found["base"], found["body"])
    for found in re.finditer(r"(?ms)^FROM (?P<base>\S+) AS (?P<name>\w+)\n(?P<body>.*?)(?=^FROM |\Z)", TEXT)
}
CONTAINERS = [recipe.container for recipe in shipped().values() if recipe.container]


def _default(argument: str) -> str:
    """The argument's value where it is given one; only once, so that a change of one place changes all."""
    (value,) = set(re.findall(rf"(?m)^ARG {argument}=(.*)$", TEXT))
    return str(value)


def _copied(stage: str) -> set[str]:
    """What a stage copies out of the project, and the stages that it stands on or copies from."""
    base, body = STAGES[stage]
    found = set(_copied(base)) if base in STAGES else set()
    for line in re.findall(r"(?m)^COPY (.*)$", body):
        words = shlex.split(line)
        if words[0].startswith("--from="):
            found |= _copied(words[0].removeprefix("--from="))
        else:
            found |= set(words[:-1])
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_known_by_all_that_goes_into_it(target: str) -> None:
    wanted = TARGETS[target]
    assert _copied(target) == set(wanted.copies)
    assert {*wanted.arguments, wanted.base} <= set(re.findall(r"(?m)^ARG (\w+)", TEXT))


def test_the_context_is_what_is_copied() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert let_through == {name.partition("/")[0] for target in TARGETS.values() for name in target.copies}


def test_versions_are_those_of_the_package() -> None:
    assert _default("VERSION") == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert _default("TORCH") in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_trainer_stands_on_the_base_of_the_recipes_and_has_what_they_install() -> None:
    assert {f"docker://{_default('TRAINER_BASE').removeprefix('docker.io/')}"} == {
        each.base_image for each in CONTAINERS
    }
    body = STAGES["trainer"][1]
    for step in (step for container in CONTAINERS for step in container.build):
        wanted = set(re.split(r"\s+", step.run.partition("--no-install-recommends")[2])) - {""}
        assert wanted <= set(body.split()), step.run
    (kernel,) = (each for each in shipped()["gpt2-small"].container.build if "flash-attn" in each.run)
    assert set(shlex.split(kernel.run)[2:]) <= set(re.split(r"[\s';]+", body))


def test_bases_are_pinned_and_no_stage_has_one_of_its_own() -> None:
    for argument in ("OPERATOR_BASE", "TRAINER_BASE"):
        assert re.search(r":[a-z0-9.-]*\d+\.\d+", _default(argument))
    assert {base for base, _ in STAGES.values()} - set(STAGES) == {"${OPERATOR_BASE}", "${TRAINER_BASE}"}


@pytest.mark.parametrize(
    ("listed", "settings"),
    [
        ("", {}),
        ("global.cert='/etc/ca.pem'\n", {"cert": "/etc/ca.pem"}),
        (":env:.index-url='https://b'\nglobal.index-url='https://a'\n", {"index-url": "https://b"}),
        ("global.extra-index-url='\\nhttps://a\\nhttps://b'\n", {"extra-index-url": "https://a https://b"}),
        (":env:.find-links='/wheels'\n", {}),
    ],
    ids=["none", "authorities", "environment", "several", "directory"],
)
def test_a_build_is_told_what_pip_is_told_here(listed: str, settings: dict[str, str]) -> None:
    assert pip_settings(listed) == settings
