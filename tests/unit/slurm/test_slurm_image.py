"""Names of container images, as they reach Pyxis."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.slurm.image import pyxis_reference
from speedrun_operator.backends.slurm.script import render
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.recipes.recipe import BuildStep, Container, Stage, Step, shipped

BUILD = (BuildStep(kind="system", run="true"),)
MINE = Identity("lab", "mine", "0f0e0d0c-1111-2222-3333-444455556666")


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("nvcr.io/nvidia/pytorch:24.10-py3", "nvcr.io#nvidia/pytorch:24.10-py3"),
        ("localhost:5000/acme/trainer:1", "localhost:5000#acme/trainer:1"),
        ("acme/trainer:1", "acme/trainer:1"),
        ("ubuntu:22.04", "ubuntu:22.04"),
        ("nvcr.io#nvidia/pytorch:24.10-py3", "nvcr.io#nvidia/pytorch:24.10-py3"),
        ("docker://nvcr.io#nvidia/pytorch:24.10-py3", "docker://nvcr.io#nvidia/pytorch:24.10-py3"),
        ("docker://nvcr.io/nvidia/pytorch:24.10-py3", "docker://nvcr.io#nvidia/pytorch:24.10-py3"),
        ("/lustre/img/trainer.sqsh", "/lustre/img/trainer.sqsh"),
        ("./trainer.sqsh", "./trainer.sqsh"),
        ("docker://nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04", "docker://nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04"),
        ("$oauthtoken@nvcr.io#acme/trainer:1", "$oauthtoken@nvcr.io#acme/trainer:1"),
        ("$oauthtoken@nvcr.io/acme/trainer:1", "$oauthtoken@nvcr.io#acme/trainer:1"),
        ("localhost/acme", "localhost#acme"),
        ("acme/trainer@sha256:ab", "acme/trainer@sha256:ab"),
        ("", ""),
    ],
)
def test_a_registry_is_told_from_an_organization(image: str, told: str) -> None:
    """BR-030."""
    assert pyxis_reference(image) == told


def test_a_users_name_with_a_dollar_sign_reaches_srun_as_it_is(tmp_path: Path) -> None:
    """BR-034: $oauthtoken is the very name that NVIDIA's registry asks for, and no variable."""
    inline = {"recipe": {"name": "replay"}, "slurm": {"prepare": "Inline"}}
    made = plan(Spec.model_validate(inline), shipped(), Site())
    assert isinstance(made, RunPlan)
    container = Container(base_image="$oauthtoken@nvcr.io#acme/trainer:1", build=BUILD, probe="true")
    only = Step(name="only", stage=Stage.TRAIN, run="true", container=True)
    made = replace(made, container=container, steps=(only,)).for_runs([(0, "A")])
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >>{tmp_path}/argv\nexit 1\n')
    (programs / "srun").chmod(0o755)
    Path(MINE.ledger(str(tmp_path / "runs"), 0)).mkdir(parents=True)
    done = subprocess.run(
        ["bash", "-eu"],
        input=render(made, MINE, 0, "~/runs", "python3"),
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "SLURM_JOB_ID": "17",
            "SLURM_CPUS_ON_NODE": "2",
            "oauthtoken": "expanded",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "--container-image=$oauthtoken@nvcr.io#acme/trainer:1" in (tmp_path / "argv").read_text().splitlines()
    assert "unbound variable" not in done.stderr
