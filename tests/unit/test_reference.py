"""Documents that are made from the models, and what they would lack."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.recipes.recipe import shipped

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "scripts" / "reference.py"))


def test_the_reference_is_made_of_the_models() -> None:
    made = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert made == REFERENCE["text"](), "run: python scripts/reference.py >docs/reference.md"


@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_field_says_what_it_is(part: str) -> None:
    root: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = list(REFERENCE["_fields"](root["properties"][part], part))
    assert len(fields) > 40
    assert [name for name, _, _, about in fields if not about] == []


def test_every_recipe_is_named_where_one_is_asked_for() -> None:
    root: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    about = root["properties"]["spec"]["properties"]["recipe"]["properties"]["name"]["description"]
    assert [name for name in shipped() if name not in about] == []
