"""A recipe's Python environment and data, made by real pods on the cache volume, and used by those that come later.

The recipe is modded-nanogpt, its code a fork without torch. Pods of the bed have no way out: pip is told of a folder of
wheels on the cache volume, where what stands for torch is a torchrun that starts one process.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.pods.pods import log_of, on_pods
from cluster.pods.wheels import wheel
from cluster.speedruns import Speedruns, condition
from testbed.node import Node
from unit.source.gits import Repository

SHARDS = """
import array, struct
def write(path, tokens):
    with open(path, "wb") as file:
        file.write(struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\\0"))
        array.array("H", tokens).tofile(file)
def read(path):
    with open(path, "rb") as file:
        return array.array("H", file.read()[1024:])
"""
TORCHRUN = "import runpy, sys\ndef main():\n    runpy.run_path(sys.argv[-1])\n"
FETCH = """
import os, shards, sys
names = ["fineweb_val_000000.bin", *(f"fineweb_train_{each:06d}.bin" for each in range(1, int(sys.argv[1]) + 1))]
for number, name in enumerate(names):
    print("fetching", name)
    shards.write(os.path.join(os.path.dirname(__file__), "fineweb10B", name), [number] * 8)
"""
TRAIN = """
import glob, shards, sys
print("environment", sys.prefix)
tokens = [token for path in glob.glob("data/fineweb10B/*.bin") for token in shards.read(path)]
print(f"step:1/1 val_loss:{3.2 + sum(tokens) / 1000:.4f} train_time:100ms step_avg:100.00ms")
"""
CODE = {"train_gpt.py": TRAIN, "data/cached_fineweb10B.py": FETCH, "requirements.txt": "shards==1.0\n"}
Forked = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def cache(node: Node) -> Path:
    """The entries of the cache volume, none at first."""
    entries = node.layout.cache / ".cache"
    shutil.rmtree(entries, ignore_errors=True)
    return entries


@pytest.fixture
def forked(node: Node, namespace: str, tmp_path: Path) -> Forked:
    """A Speedrun of a branch of the fork: `main`, or `broken`, which asks for a package that is not to be had."""
    fork = Repository(tmp_path / "fork")
    fork.commit(CODE)
    fork.git("checkout", "-q", "-b", "broken")
    fork.commit({"requirements.txt": "shards==1.0\nnot-to-be-had==1.0\n"})
    place = node.layout.cache / "given" / namespace
    shutil.copytree(fork.path / ".git", place / "fork.git")
    wheels = place / "wheels"
    wheels.mkdir()
    wheel(wheels, "shards", "1.0", {"shards.py": SHARDS}, {})
    wheel(wheels, "torch", "2.10", {"torch/run.py": TORCHRUN}, {"torchrun": "torch.run:main"})
    subprocess.run(["chown", "-R", "1000:1000", str(place)], check=True)
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/cache/given/{namespace}/wheels"}

    def speedrun(name: str, branch: str) -> dict[str, Any]:
        env = [{"name": name, "value": value} for name, value in pip.items()]
        made = on_pods(name, "modded-nanogpt", {"trainingShards": 2}, gpus={"count": 1}, env=env)
        repository = f"/cache/given/{namespace}/fork.git"
        made["spec"]["recipe"]["source"] = {"repository": repository, "revision": branch}
        return made

    return speedrun


def made_by(entry: Path) -> str:
    """The pod that made it."""
    facts = dict(line.split("=", 1) for line in (entry / "manifest").read_text().splitlines())
    return facts["job"]


def test_what_one_pod_made_another_one_uses(runs: Speedruns, cache: Path, forked: Forked) -> None:
    runs.apply(forked("first", "main"))
    first = runs.wait_finished("first", timeout=120)
    assert (first["phase"], first["val_loss"]) == ("Succeeded", 3.224), condition(first, "Finished")
    log = log_of(runs, first)
    entries = {kind: list((cache / kind).iterdir()) for kind in ("code", "python", "data", "downloads")}
    makers = [[made_by(each) for each in found] for found in entries.values()]
    assert makers == [[first["job"]]] * len(entries)
    ([environment], [data]) = (entries[kind] for kind in ("python", "data"))
    assert f"environment /cache/.cache/python/{environment.name}/venv\n" in log
    assert log.count("fetching fineweb_") == len(list((data / "files").iterdir())) == 3
    stages = [each["name"] for each in first["runs"][0]["stages"]]
    assert stages == ["code", "image", "data", "downloads", "proof", "train"]

    files = [path for path in (*environment.rglob("*"), *data.rglob("*")) if path.is_file() and path.name != "manifest"]
    before = {path: path.stat().st_mtime_ns for path in files}
    runs.apply(forked("second", "main"))
    second = runs.wait_finished("second", timeout=60)
    assert (second["phase"], second["val_loss"]) == ("Succeeded", 3.224), condition(second, "Finished")
    log = log_of(runs, second)
    assert f"environment /cache/.cache/python/{environment.name}/venv\n" in log
    assert "fetching" not in log and "Installing" not in log
    assert {kind: list((cache / kind).iterdir()) for kind in entries} == entries
    assert (made_by(environment), made_by(data)) == (first["job"], first["job"]) != (second["job"],) * 2
    assert {path: path.stat().st_mtime_ns for path in files} == before


@pytest.mark.full
def test_a_build_that_fails_is_told_and_leaves_nothing(runs: Speedruns, cache: Path, forked: Forked) -> None:
    runs.apply(forked("broken", "broken"))
    status = runs.wait_finished("broken", timeout=120)
    message = condition(status, "Finished")["message"]
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "PackageMissing", 1), message
    assert "not-to-be-had" in log_of(runs, status)
    assert "correct the requirements" in message
    assert list((cache / "python").iterdir()) == []
    assert not (cache / "data").exists()
