"""Plans to render, made of the recipes that ship."""

from __future__ import annotations

from typing import Any

from speedrun_operator.api.spec import Spec
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped


def planned(recipe: str = "replay", **spec: Any) -> RunPlan:
    made = plan(Spec.model_validate({"recipe": {"name": recipe}, **spec}), shipped(), Site("compute-h100"))
    assert isinstance(made, RunPlan), made
    return made.for_runs([(0, "A")])
