"""The trainer's image, built from the Dockerfile without its CUDA-only lines, does what the recipes expect of it."""

from __future__ import annotations

import subprocess

import pytest

from speedrun_operator.recipes.recipe import shipped
from testbed.builds import Builder
from testbed.part import Place

OWN_USER = "1000:1000"
ARBITRARY_USER = "1000680000:0"
TRAIN = (
    "set -e; cd $(mktemp -d); python3 -m speedrun_trainer data make-synthetic --data data; "
    "python3 -m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc_per_node=1 "
    "-m speedrun_trainer.train --device cpu --data data --steps 20"
)


@pytest.mark.full
@pytest.mark.parametrize("user", [OWN_USER, ARBITRARY_USER], ids=["own", "arbitrary"])
def test_it_trains_and_has_what_recipes_look_for(place: Place, user: str) -> None:
    builder = Builder(place)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return builder.run("trainer", "bash", "-c", script, user=user)

    for recipe in (shipped()["gpt2-small"], shipped()["modded-nanogpt"]):
        assert recipe.container is not None
        probe = run(recipe.container.probe)
        assert probe.returncode == 0, (recipe.name, probe.stderr)
    assert run("git --version && gcc --version && tar --version").returncode == 0
    trained = run(TRAIN)
    assert trained.returncode == 0, trained.stderr
    assert "step:20/20 val_loss:" in trained.stdout
