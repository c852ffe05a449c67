"""The trainer's image, built from the Dockerfile without its CUDA-only lines, does what the recipes expect of it."""

from __future__ import annotations

import pytest

from speedrun_operator.recipes.recipe import shipped
from testbed.builds import Builder
from testbed.facts import Facts
from testbed.part import Place

TOOLS = "git --version; gcc --version; tar --version"
# torch compiles with the image's gcc, into a cache that it names by the user.
COMPILE = "python3 -c 'import torch; print(torch.compile(lambda x: x * 2 + 1)(torch.ones(2)).tolist())'"
TRAIN = (
    "cd $(mktemp -d); python3 -m speedrun_trainer data make-synthetic --data data; "
    "python3 -m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc_per_node=1 "
    "-m speedrun_trainer.train --device cpu --data data --steps 20"
)


@pytest.mark.full
def test_it_has_what_recipes_look_for(bed: Facts, place: Place) -> None:
    containers = [recipe.container for recipe in shipped().values() if recipe.container]
    assert containers
    run(place, "1000:1000", *(each.probe for each in containers), TOOLS)


@pytest.mark.full
def test_it_trains_as_any_user(bed: Facts, place: Place) -> None:
    said = run(place, "1000680000:0", COMPILE, TRAIN)
    assert "[3.0, 3.0]" in said
    assert "step:20/20 val_loss:" in said


def run(place: Place, user: str, *lines: str) -> str:
    """What these lines of a shell print in a container of the image; none of them fails."""
    done = Builder(place).run("trainer", "bash", "-c", "\n".join(["set -e", *lines]), user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout
