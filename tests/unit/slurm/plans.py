"""Plans to render, made of the recipes that ship. The job prepares by itself, so that its script is all there is."""

from __future__ import annotations

from typing import Any

from speedrun_operator.api.spec import Spec
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped


def planned(recipe: str = "replay", **spec: Any) -> RunPlan:
    slurm = {"prepare": "Inline", **spec.pop("slurm", {})}
    given = {"recipe": {"name": recipe}, "slurm": slurm, **spec}
    made = plan(Spec.model_validate(given), shipped(), Site("compute-h100"))
    assert isinstance(made, RunPlan), made
    return made.for_runs([(0, "A")])
