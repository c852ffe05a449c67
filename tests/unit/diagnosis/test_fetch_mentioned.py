"""What the program that fetches kernels says when none of them fits, in its own words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedrun_operator.backends.making import programs
from unit.builders import JobLog

MODULES = {
    "torch.py": "import os, types\n__version__ = os.environ['TORCH']\nversion = types.SimpleNamespace(cuda='12.8')\n",
    "kernels.py": "import os\ndef get_kernel(*_, **__):\n    if word := os.environ['FAULT']: raise ValueError(word)\n",
    "huggingface_hub/__init__.py": "",
    "huggingface_hub/constants.py": "HF_HUB_CACHE = None\n",
}


def fetch(home: Path, build: str, *words: str, fault: str = "", torch: str = "2.10.0+cu128") -> JobLog:
    """The log of a job that fetches a kernel of which there is this build alone."""
    for name, text in MODULES.items():
        (home / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "lib" / name).write_text(text)
    (home / "hub" / "models--some--kernel" / "snapshots" / "1" / "build" / build).mkdir(parents=True)
    (home / "mentions").write_text('get_kernel("some/kernel", version=1)\n')
    (home / "fetch.py").write_text(programs()["fetch_mentioned.py"])
    environment = {**os.environ, "PYTHONPATH": str(home / "lib"), "HF_KERNELS_CACHE": str(home / "hub")}
    done = subprocess.run(
        [sys.executable, home / "fetch.py", *words, home / "mentions"],
        env={**environment, "TORCH": torch, "FAULT": fault},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = JobLog().attempt().begin("downloads", 1).line(*done.stdout.splitlines())
    return log.end("downloads", 2, code=done.returncode)


def causes(log: JobLog) -> tuple[str, ...]:
    run = log.read().run(0)
    assert run is not None
    return run.symptoms


@pytest.mark.parametrize(
    ("build", "fault"),
    [
        pytest.param("torch29-cxx11-cu128-x86_64-linux", "", id="another torch"),
        pytest.param("torch210-cxx11-cu130-x86_64-linux", "", id="another CUDA"),
        pytest.param("torch29-cu128", "Cannot find a build variant for this system in some/kernel", id="the library's"),
    ],
)
def test_a_kernel_without_a_build_that_fits(tmp_path: Path, build: str, fault: str) -> None:
    assert causes(fetch(tmp_path, build, fault=fault)) == ("KernelVariant",)


@pytest.mark.parametrize("build", ["torch210-cxx11-cu128-x86_64-linux", "torch-universal"])
def test_a_kernel_that_fits(tmp_path: Path, build: str) -> None:
    log = fetch(tmp_path, build)
    assert f"some/kernel: {build}" in log.lines and causes(log) == ()
