"""spec + recipe + site → plan: everything resolved, or a refusal that names the field."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from speedrun_operator.api.spec import Spec
from speedrun_operator.planning import Refusal, RunPlan, Site, plan
from speedrun_operator.recipes.recipe import Recipe, shipped
from unit.builders import SITE

ANY: dict[str, Any] = {
    "name": "any",
    "about": "Runs on anything.",
    "target": 3.28,
    "logFormat": "modded-nanogpt",
    "gpus": {"counts": [2, 0, 4]},
    "startUpSeconds": 60,
    "runSeconds": 61,
    "environment": {"B": "2", "A": "1"},
    "parameters": {
        "seed": {"type": "integer", "default": 7, "description": "", "maximum": 99},
        "tag": {"type": "string", "default": "x", "description": ""},
    },
    "steps": [{"name": "train", "stage": "train", "run": "true"}],
}
RECIPES = {
    "any": Recipe.model_validate(ANY),
    "hopper": Recipe.model_validate({**ANY, "name": "hopper", "gpus": {"types": ["H100", "H200"], "counts": [8, 1]}}),
    "cpu": Recipe.model_validate({**ANY, "name": "cpu", "gpus": {"counts": [0]}, "parameters": {}}),
}


def planned(name: str = "any", site: Site = SITE, **spec: Any) -> RunPlan | Refusal:
    recipe = {"name": name, **spec.pop("recipe", {})}
    return plan(Spec.model_validate({"recipe": recipe, **spec}), RECIPES, site)


def fits(made: RunPlan | Refusal) -> RunPlan:
    assert isinstance(made, RunPlan), made
    return made


def test_what_the_recipe_knows_is_resolved() -> None:
    made = fits(planned())
    assert (made.recipe, made.target, made.metric, made.log_format) == (
        "any",
        Decimal("3.28"),
        "val_loss",
        "modded-nanogpt",
    )
    assert (made.gpu_type, made.gpu_count, made.cpus, made.memory_mib) == (None, 2, 1, 512)
    assert made.time_limit_minutes == 3  # 121 seconds, rounded up
    assert made.parameters == (("seed", "7"), ("tag", "x"))
    assert made.environment == (("A", "1"), ("B", "2"))


@pytest.mark.parametrize(("seconds", "minutes"), [(60, 1), (61, 2), (119, 2), (120, 2), (3600, 60), (2592000, 43200)])
def test_time_limit_is_rounded_up_to_minutes(seconds: int, minutes: int) -> None:
    made = fits(planned(timeLimitSeconds=seconds))
    assert made.time_limit_minutes == minutes
    assert made.summary().time_limit_seconds == 60 * minutes


@pytest.mark.parametrize("target", [3.28, 3.3821, 0.1, 10])
def test_a_target_stays_the_decimal_that_was_written(target: float) -> None:
    made = fits(planned(target=target))
    assert made.target == Decimal(str(target))
    assert made.summary().target == target


@pytest.mark.parametrize(
    ("name", "gpus", "type_", "count"),
    [
        ("any", None, None, 2),
        ("any", {}, None, 2),
        ("any", {"count": 0}, None, 0),
        ("any", {"count": 4, "type": "MI300X"}, "MI300X", 4),
        ("hopper", None, "H100", 8),
        ("hopper", {"type": "h200"}, "H200", 8),
        ("hopper", {"count": 1}, "H100", 1),
        ("cpu", None, None, 0),
    ],
)
def test_gpus(name: str, gpus: dict[str, Any] | None, type_: str | None, count: int) -> None:
    made = fits(planned(name, gpus=gpus))
    assert (made.gpu_type, made.gpu_count) == (type_, count)


@pytest.mark.parametrize(
    ("name", "gpus", "slurm", "site", "partition"),
    [
        pytest.param("hopper", None, {}, SITE, "compute-h100", id="by the GPU type"),
        pytest.param("hopper", {"type": "H200"}, {}, SITE, "compute-h200", id="by the type that was asked for"),
        pytest.param("hopper", None, {"partition": "mine"}, SITE, "mine", id="the one that was asked for"),
        pytest.param("hopper", None, {}, Site("", "all"), "all", id="no rule for GPUs"),
        pytest.param("hopper", None, {}, Site("gpus", "all"), "gpus", id="one for all GPUs"),
        pytest.param("any", None, {}, Site("gpus", "all"), "gpus", id="one for all, type unknown"),
        pytest.param("any", None, {}, Site("compute-{gpu}", "all"), "all", id="by the type, which is unknown"),
        pytest.param("any", {"count": 0}, {}, Site("gpus", "all"), "all", id="no GPUs"),
        pytest.param("cpu", None, {}, SITE, "", id="Slurm's own default"),
    ],
)
def test_partition(name: str, gpus: dict[str, Any] | None, slurm: dict[str, Any], site: Site, partition: str) -> None:
    made = fits(planned(name, site, gpus=gpus, slurm=slurm))
    assert made.partition == partition
    assert made.summary().partition == (partition or None)


@pytest.mark.parametrize(
    ("name", "spec", "reason", "message"),
    [
        (
            "nanogpt",
            {},
            "UnknownRecipe",
            "spec.recipe.name: no recipe is called 'nanogpt'; there are: any, cpu, hopper",
        ),
        (
            "any",
            {"recipe": {"parameters": {"sed": 1}}},
            "InvalidParameter",
            "spec.recipe.parameters.sed: recipe any has no such parameter; it has: seed, tag",
        ),
        (
            "cpu",
            {"recipe": {"parameters": {"seed": 1}}},
            "InvalidParameter",
            "spec.recipe.parameters.seed: recipe cpu has no such parameter; it has: none",
        ),
        (
            "any",
            {"recipe": {"parameters": {"seed": 100}}},
            "InvalidParameter",
            "spec.recipe.parameters.seed: must be from 0 to 99, not 100",
        ),
        (
            "any",
            {"recipe": {"parameters": {"seed": "$(RUN)"}}},
            "InvalidParameter",
            "spec.recipe.parameters.seed: must be a whole number, not '$(RUN)'",
        ),
        (
            "any",
            {"recipe": {"parameters": {"tag": "a b\n"}}},
            "InvalidParameter",
            r"spec.recipe.parameters.tag: must match [A-Za-z0-9_.-]*, not 'a b\n'",
        ),
        (
            "any",
            {"gpus": {"count": 8}},
            "UnsupportedHardware",
            "spec.gpus.count: recipe any runs on 0, 2, 4 GPUs, not on 8",
        ),
        (
            "hopper",
            {"gpus": {"count": 0}},
            "UnsupportedHardware",
            "spec.gpus.count: recipe hopper runs on 1, 8 GPUs, not on 0",
        ),
        (
            "hopper",
            {"gpus": {"type": "A100"}},
            "UnsupportedHardware",
            "spec.gpus.type: recipe hopper runs on H100, H200, not on A100",
        ),
    ],
)
def test_a_refusal_names_the_field_and_what_would_do(
    name: str, spec: dict[str, Any], reason: str, message: str
) -> None:
    assert planned(name, **spec) == Refusal(reason, message)  # type: ignore[arg-type]


def test_parameters_are_taken_as_text_in_the_order_of_the_recipe() -> None:
    made = fits(planned(recipe={"parameters": {"tag": "a-b", "seed": "042"}}))
    assert made.parameters == (("seed", "42"), ("tag", "a-b"))
    assert made.summary().parameters == {"seed": "42", "tag": "a-b"}


@pytest.mark.parametrize("name", shipped())
def test_every_recipe_that_ships_can_be_planned_with_nothing_but_its_name(name: str) -> None:
    recipe = shipped()[name]
    made = plan(Spec.model_validate({"recipe": {"name": name}}), shipped(), SITE)
    assert isinstance(made, RunPlan)
    assert (made.target, made.gpu_count, made.commit) == (recipe.target, recipe.gpus.counts[0], recipe.revision)
    assert 60 * made.time_limit_minutes >= recipe.start_up_seconds + recipe.run_seconds
