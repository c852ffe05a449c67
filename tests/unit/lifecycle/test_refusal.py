"""A spec that only an edit heals is refused at once, with the field and what would do."""

from __future__ import annotations

from typing import Any

import pytest

from unit.lifecycle.lives import NO_LOGIN, Life, woken

REFUSED: dict[str, tuple[dict[str, Any] | None, str, str]] = {
    "unknown recipe": (
        {"recipe": {"name": "modded"}},
        "UnknownRecipe",
        "spec.recipe.name: no recipe is called 'modded'; there are: ",
    ),
    "unknown parameter": (
        {"recipe": {"name": "replay", "parameters": {"stepz": 3}}},
        "InvalidParameter",
        "spec.recipe.parameters.stepz: recipe replay has no such parameter; it has: ",
    ),
    "a parameter's value": (
        {"recipe": {"name": "replay", "parameters": {"steps": 0}}},
        "InvalidParameter",
        "spec.recipe.parameters.steps: must be from 1 to 1000000, not 0",
    ),
    "a GPU count": (
        {"recipe": {"name": "replay"}, "gpus": {"count": 3}},
        "UnsupportedHardware",
        "spec.gpus.count: recipe replay runs on 0, 1, 2, 4, 8 GPUs, not on 3",
    ),
    "a GPU type": (
        {"recipe": {"name": "modded-nanogpt"}, "gpus": {"type": "A100"}},
        "UnsupportedHardware",
        "spec.gpus.type: recipe modded-nanogpt runs on H100, H200, not on A100",
    ),
    "a spec that another version of the CRD let in": (
        {"recipe": {"name": "replay"}, "gpus": {"count": -1}},
        "InvalidSpec",
        "spec.gpus.count: Input should be greater than or equal to 0",
    ),
    "no spec": (None, "InvalidSpec", "spec.recipe: Field required"),
}


@pytest.mark.parametrize(("spec", "reason", "message"), REFUSED.values(), ids=REFUSED)
def test_a_spec_that_only_an_edit_heals_is_refused_at_once(
    spec: dict[str, Any] | None, reason: str, message: str
) -> None:
    life = Life(spec)
    decision = life.live(woken())
    status = decision.status
    assert (status.phase, status.reason, decision.submit, status.allocations) == ("Failed", reason, (), ())
    assert [(each.warning, each.reason) for each in decision.notices] == [(True, reason)]
    said = {each.type.value: (each.status, each.reason) for each in status.conditions}
    assert said["Admitted"] == said["Succeeded"] == ("False", reason)
    assert said["Finished"] == ("True", reason)
    for each in status.conditions:
        if each.type in ("Admitted", "Finished"):
            assert each.message.startswith(message)
    assert life.live(woken()).notices == ()


def test_a_refused_spec_that_was_waiting_is_refused_too() -> None:
    life = Life({"recipe": {"name": "modded"}})
    assert life.live(NO_LOGIN).status.phase == "Failed"
