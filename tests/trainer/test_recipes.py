"""The recipes that run this trainer give it options that it has, with the defaults that its presets have."""

import re
from pathlib import Path

import pytest
import yaml

from conftest import REPOSITORY
from speedrun_trainer.__main__ import parser
from speedrun_trainer.arguments import parse_train
from speedrun_trainer.presets import PRESETS

FOLDER = REPOSITORY / "operator/speedrun_operator/recipes"
RECIPES = {
    path.stem: recipe
    for path in sorted(FOLDER.glob("*.yaml"))
    if (recipe := yaml.safe_load(path.read_text())).get("package") == "speedrun_trainer"
}
GIVEN = {"SPEEDRUN_CODE": "/code", "SPEEDRUN_DATA": "/cache/fineweb10B", "SPEEDRUN_RUN": "3", "SPEEDRUN_GPUS": "1"}


def options_of(recipe: dict, step: str, module: str) -> list[str]:  # type: ignore[type-arg]
    """What the step gives to the module, with the recipe's defaults for its parameters."""
    [text] = [each["run"] for each in recipe["steps"] if each["name"] == step]
    values = GIVEN | {f"PARAM_{name.upper()}": str(each["default"]) for name, each in recipe["parameters"].items()}
    text = re.sub(r"\$\{?([A-Z0-9_]+)\}?", lambda found: values.get(found[1], ""), text.replace("\\\n", " "))
    return text.split(f"-m {module} ")[1].replace('"', "").split()


def test_both_recipes_of_this_trainer_are_there() -> None:
    assert set(RECIPES) == {"smoke", "gpt2-small"} == set(PRESETS)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_its_preset(name: str) -> None:
    options = parse_train(options_of(RECIPES[name], "train", "speedrun_trainer.train"), description="")
    assert options.preset == PRESETS[name]
    assert (options.preset_name, options.seed, options.run_number) == (name, 0, 3)


def test_made_data_lie_where_training_looks_for_them() -> None:
    get = parser().parse_args(options_of(RECIPES["smoke"], "data", "speedrun_trainer"))
    train = parse_train(options_of(RECIPES["smoke"], "train", "speedrun_trainer.train"), description="")
    assert get.data == train.data != Path()


def test_prepared_data_are_what_training_is_given() -> None:
    train = parse_train(options_of(RECIPES["gpt2-small"], "train", "speedrun_trainer.train"), description="")
    assert train.data == Path(GIVEN["SPEEDRUN_DATA"])


def test_gpt2_small_names_no_time() -> None:
    about = RECIPES["gpt2-small"]["about"]
    assert "Not yet run on FineWeb to 3.28" in about
    assert not re.search(r"\d+ ?(s|seconds|min|minutes|hours)\b", about)
