"""The bash that containers run: well-formed, and clean by shellcheck."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.pods import script
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped

IDENTITY = Identity("lab", "mine", "0f0e0d0c-1111-2222-3333-444455556666")


def parts(recipe: str) -> list[script.Part]:
    spec = {"recipe": {"name": recipe}, "backend": "Pods", "runs": 2, "runsPerAllocation": 2}
    made = plan(Spec.model_validate(spec), shipped(), Site(pod_image="registry.local/trainer:1"))
    assert isinstance(made, RunPlan)
    return [*script.parts(made.for_runs([(0, "A"), (1, "A")]), IDENTITY, 0)]


TEXTS = {f"{each.name} of {recipe}": each.script for recipe in shipped() for each in parts(recipe)}


@pytest.mark.parametrize("name", TEXTS)
def test_bash_reads_it(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=TEXTS[name], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck (package shellcheck)")
@pytest.mark.parametrize("name", TEXTS)
def test_shellcheck_warns_of_nothing(name: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXTS[name])
    # SC2034: a script says of each kind of cache entry what it is made of.
    command = ["shellcheck", "--shell=bash", "--severity=warning", "--exclude=SC2034", "--format=gcc", str(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""
