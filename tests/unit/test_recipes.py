"""Recipes: those that ship fit together, and one that is malformed says in which file and field."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from speedrun_operator.progress import FORMATS
from speedrun_operator.recipes.recipe import Parameter, Recipe, RecipeError, Stage, read, shipped

RECIPES = shipped()
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def test_what_ships() -> None:
    assert {"modded-nanogpt", "replay"} <= set(RECIPES)
    assert list(RECIPES) == sorted(RECIPES)
    assert all(name == recipe.name for name, recipe in RECIPES.items())


@each_recipe
def test_defaults_fit_their_own_declaration(recipe: Recipe) -> None:
    for name, parameter in recipe.parameters.items():
        assert parameter.check(parameter.default) == str(parameter.default), name
        re.compile(parameter.pattern)


@each_recipe
def test_parameters_reach_the_steps_by_names_of_their_own(recipe: Recipe) -> None:
    variables = [f"PARAM_{name.upper()}" for name in recipe.parameters]
    assert len(set(variables)) == len(variables)
    data = recipe.data
    counts = (
        [f"$PARAM_{str(files.count).upper()}" for files in data.files if isinstance(files.count, str)] if data else []
    )
    text = "\n".join([*(step.run for step in recipe.steps), data.fetch if data else "", *counts])
    for variable in variables:
        assert re.fullmatch("[A-Z_][A-Z0-9_]*", variable)
        assert variable in text, "a parameter that no step reads would be set for nothing"
    assert set(re.findall(r"PARAM_\w+", text)) <= set(variables)


@each_recipe
def test_steps_are_bash_and_train_comes_last(recipe: Recipe) -> None:
    assert len({step.name for step in recipe.steps}) == len(recipe.steps)
    assert recipe.steps[-1].stage is Stage.TRAIN
    texts = {step.name: step.run for step in recipe.steps}
    if recipe.container:
        texts |= {f"build-{number}": step.run for number, step in enumerate(recipe.container.build)}
        texts["probe"] = recipe.container.probe
    else:
        assert not any(step.container for step in recipe.steps)
    for name, text in texts.items():
        assert re.fullmatch("[a-z][a-z0-9-]*", name)
        assert "SPEEDRUN_STEP" not in text.splitlines(), "that line ends the step's file"
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), name


@each_recipe
def test_facts_are_whole(recipe: Recipe) -> None:
    assert recipe.about and recipe.log_format in FORMATS
    assert all(0 <= count <= 64 for count in recipe.gpus.counts)
    assert (recipe.repository is None) == (recipe.revision is None)
    if recipe.repository:
        assert re.fullmatch("HEAD|[0-9a-f]{40}", recipe.revision or "")
    assert not (recipe.repository and recipe.package), "its code comes from one place"
    paths = [recipe.data.path] if recipe.data else []
    paths += [*recipe.downloads.environment.values()] if recipe.downloads else []
    assert all(not path.startswith("/") and ".." not in path.split("/") for path in paths)
    for files in recipe.data.files if recipe.data else ():
        assert isinstance(files.count, int) or recipe.parameters[files.count].type == "integer"


GOOD = """
name: good
about: A recipe.
target: 3.28
logFormat: modded-nanogpt
gpus: {counts: [0]}
startUpSeconds: 1
runSeconds: 1
steps: [{name: train, stage: train, run: "true"}]
"""


def test_a_small_recipe_is_read() -> None:
    recipe = read("good.yaml", GOOD)
    assert (recipe.name, str(recipe.target), recipe.metric, recipe.parameters) == ("good", "3.28", "val_loss", {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(("name: good", "name: other"), "name: it calls itself 'other'", id="another name"),
        pytest.param(("about: A recipe.\n", ""), "about: Field required", id="a field is missing"),
        pytest.param(
            ("runSeconds: 1", "runSecond: 1"), "runSecond: Extra inputs are not permitted", id="an unknown field"
        ),
        pytest.param(
            ("runSeconds: 1", "runSeconds: 0"), "runSeconds: Input should be greater than", id="out of bounds"
        ),
        pytest.param(("target: 3.28", "target: low"), "target: Input should be a valid decimal", id="no number"),
        pytest.param(("target: 3.28", "target: .nan"), "target: Input should be a finite number", id="nan"),
        pytest.param(("counts: [0]", "counts: []"), "gpus.counts: Tuple should have at least 1 item", id="no counts"),
        pytest.param(
            ("stage: train", "stage: trian"), "steps.0.stage: Input should be 'image',", id="an unknown stage"
        ),
        pytest.param(
            ("modded-nanogpt", "tensorboard"), "logFormat: Input should be 'modded-nanogpt'", id="a log format"
        ),
        pytest.param((GOOD, "- a\n- b\n"), "the file: Input should be a valid dictionary", id="a list"),
        pytest.param((GOOD, ""), "the file: Input should be a valid dictionary", id="an empty file"),
        pytest.param((GOOD, "name: [good"), "while parsing a flow sequence", id="no YAML"),
        pytest.param((GOOD, "name: \x00"), "unacceptable character", id="no text"),
    ],
)
def test_a_malformed_recipe_names_file_and_field(change: tuple[str, str], message: str) -> None:
    text = GOOD.replace(*change)
    assert text != GOOD
    with pytest.raises(RecipeError) as fault:
        read("good.yaml", text)
    assert str(fault.value).startswith("recipe good.yaml: ")
    assert message in str(fault.value)


WHOLE = Parameter(type="integer", default=1, description="", minimum=1, maximum=9)
TEXT = Parameter(type="string", default="", description="", pattern="[a-z]*")
EITHER = Parameter(type="string", default="a", description="", pattern="[0-9]+|nan")


@pytest.mark.parametrize(
    ("parameter", "value", "text"),
    [
        (WHOLE, 1, "1"),
        (WHOLE, "9", "9"),
        (WHOLE, "007", "7"),
        (TEXT, "", ""),
        (TEXT, "abc", "abc"),
        (EITHER, 12, "12"),
        (EITHER, "nan", "nan"),
    ],
)
def test_a_value_that_fits(parameter: Parameter, value: int | str, text: str) -> None:
    assert parameter.check(value) == text


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        (WHOLE, 0, "must be from 1 to 9"),
        (WHOLE, 10, "must be from 1 to 9"),
        (WHOLE, -1, "must be from 1 to 9"),
        (WHOLE, 10**30, "must be from 1 to 9"),
        (WHOLE, "", "must be a whole number"),
        (WHOLE, "1.0", "must be a whole number"),
        (WHOLE, "1\n", "must be a whole number"),
        (WHOLE, " 1", "must be a whole number"),
        (WHOLE, "+1", "must be a whole number"),
        (WHOLE, "1_0", "must be a whole number"),
        (WHOLE, "\u0661", "must be a whole number"),  # ARABIC-INDIC DIGIT ONE
        (WHOLE, "9" * 19, "must be a whole number"),
        (TEXT, "A", "must match [a-z]*"),
        (TEXT, "a\n", "must match [a-z]*"),
        (TEXT, "$(id)", "must match [a-z]*"),
        (EITHER, "12x", "must match [0-9]+|nan"),
        (EITHER, "xnan", "must match [0-9]+|nan"),
    ],
)
def test_a_value_that_does_not_fit(parameter: Parameter, value: int | str, message: str) -> None:
    with pytest.raises(ValueError) as fault:
        parameter.check(value)
    assert str(fault.value) == message


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["image"], "steps: Value error, a step must not be called 'image': the container's build is"),
        (["data", "image-probe"], "steps: Value error, a step must not be called 'image-probe'"),
        (["train", "data", "train"], "steps: Value error, two steps are called 'train'"),
        (["../x"], "steps.0.name: String should match pattern"),
        (["a b"], "steps.0.name: String should match pattern"),
        (["$(id)"], "steps.0.name: String should match pattern"),
    ],
)
def test_steps_that_would_overwrite_each_others_files_are_refused(names: list[str], said: str) -> None:
    steps = [{"name": name, "stage": "train", "run": "true"} for name in names]
    facts = {"name": "x", "about": "x", "target": 3, "logFormat": "modded-nanogpt", "gpus": {"counts": [0]}}
    recipe = {**facts, "startUpSeconds": 1, "runSeconds": 1, "steps": steps}
    with pytest.raises(RecipeError, match=re.escape(said)):
        read("x.yaml", yaml.safe_dump(recipe))
