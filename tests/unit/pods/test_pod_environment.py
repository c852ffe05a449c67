"""A pod's Python environment, data and downloads: made once in the cache, checked, and used by later pods."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.backends import cache_text
from speedrun_operator.planning import RunPlan
from speedrun_operator.recipes.recipe import Container, Data, Downloads, Stage, Step
from unit.pods.containers import SECONDS, Containers
from unit.pods.test_pod_manifest import planned

VENV = "/nowhere/venv"
TOOL = f"""
echo built
printf '#!%s/bin/python\\nprint(1)' {VENV} >{VENV}/bin/tool
chmod +x {VENV}/bin/tool
"""
FETCH = f"""
echo fetching
for each in $SPEEDRUN_DATA_FILES; do cp SHARD "$SPEEDRUN_DATA/$each"; done
{VENV}/bin/tool
"""
CONTAINER = Container.model_validate({
    "baseImage": "base",
    "build": [
        {"kind": "system", "run": "apt-get update\napt-get install -y build-essential git"},
        {"kind": "python", "run": f"python3 -m venv --without-pip {VENV}"},
        {"kind": "python", "run": TOOL},
    ],
    "probe": f"test -x {VENV}/bin/tool",
    "venv": VENV,
})  # fmt: skip
SHARD = struct.pack("<3i", 20240520, 1, 4).ljust(1024, b"\0") + b"\0" * 8
DATA = Data.model_validate({
    "dataset": "tiny",
    "path": "data/tiny",
    "fetch": FETCH,
    "files": [{"pattern": "tiny_%06d.bin", "first": 0, "count": 2}],
    "fileMib": 1,
})  # fmt: skip
DOWNLOADS = Downloads.model_validate({
    "environment": {"HUB": "hub"},
    "fetch": "echo loading; echo kernel >\"$HUB/kernel\"",
    "proof": 'cat "$HUB/kernel"',
})  # fmt: skip


@pytest.fixture
def pod(tmp_path: Path) -> Containers:
    made = Containers(tmp_path)
    (tmp_path / "shard").write_bytes(SHARD)
    return made


def of(pod: Containers, run: str, **changes: Any) -> RunPlan:
    step = Step(name="train", stage=Stage.TRAIN, run=run)
    data = DATA.model_copy(update={"fetch": DATA.fetch.replace("SHARD", f"{pod.place}/shard")})
    known = {"data": data, "data_files": data.names({}), "container": CONTAINER, "downloads": DOWNLOADS}
    return replace(planned(), steps=(step,), **{**known, **changes}).for_runs([(0, "A")])


def test_an_environment_is_made_once_at_its_place_and_data_are_fetched_with_it(pod: Containers) -> None:
    says = f'{VENV}/bin/tool; ls "$SPEEDRUN_DATA" data/tiny; cat "$HUB/kernel"; echo "$SPEEDRUN_VENV"'
    assert pod.run(of(pod, says)) == 0, pod.log
    (made,) = (pod.cache / ".cache" / "python").iterdir()
    assert f"\n{made}/venv\n" in pod.log and (made / "manifest").exists()
    assert pod.log.count("tiny_000001.bin") == 2
    assert [each.name for each in pod.read().runs[0].stages] == ["image", "data", "downloads", "proof", "train"]
    for word in ("built", "fetching", "loading"):
        assert word in pod.log
    assert pod.run(of(pod, says), allocation=1) == 0, pod.log
    for word in ("built", "fetching", "loading"):
        assert word not in pod.log
    assert pod.run(of(pod, says, pods=planned(pods={"image": "registry.local/other:2"}).pods), allocation=2) == 0
    assert "built" in pod.log  # another image may have another Python


def test_what_pip_is_told_by_a_runs_variables_makes_another_environment(pod: Containers) -> None:
    """Else a run without them would find what another one had pip install."""
    entries = pod.cache / ".cache" / "python"
    plain = of(pod, "true", data=None, downloads=None)
    elsewhere = replace(plain, env=(("PIP_INDEX_URL", "https://mirror.local/simple"), ("OTHER", "$(RUN)")))
    made = []
    for number, plan in enumerate((plain, elsewhere.for_runs([(0, "A")]), elsewhere.for_runs([(1, "A")]), plain)):
        before = set(entries.glob("*"))
        assert pod.run(plan, allocation=number) == 0, pod.log
        made.append(len(set(entries.glob("*")) - before))
    assert made == [1, 1, 0, 0]


def test_a_container_ends_when_its_work_does(pod: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks how far it is, and what holds its lock, sleeps on: nobody waits for that with GPUs in hand."""
    for name in ("WATCH_SECONDS", "BEAT_SECONDS"):
        monkeypatch.setattr(cache_text, name, 2 * SECONDS)
    assert pod.run(of(pod, "true")) == 0, pod.log


def test_an_environment_that_cannot_be_made_leaves_nothing(pod: Containers) -> None:
    build = (CONTAINER.build[0], CONTAINER.build[1], CONTAINER.build[2].model_copy(update={"run": "false"}))
    broken = of(pod, "true", container=CONTAINER.model_copy(update={"build": build}))
    assert pod.run(broken) == 1
    assert list((pod.cache / ".cache" / "python").iterdir()) == []


def test_an_image_that_has_the_environment_is_used_as_it_is(pod: Containers) -> None:
    there = pod.place / "venv"
    (there / "bin").mkdir(parents=True)
    tool = there / "bin" / "tool"
    tool.write_text("#!/bin/bash\n")
    tool.chmod(0o755)
    text = CONTAINER.model_dump_json().replace(VENV, str(there))
    whole = of(pod, 'echo "at $SPEEDRUN_VENV"', container=Container.model_validate_json(text), data=None)
    assert pod.run(whole) == 0, pod.log
    assert f"at {there}\n" in pod.log and not (pod.cache / ".cache" / "python").exists()


def test_an_image_without_python_is_told_with_what_it_must_have(pod: Containers) -> None:
    pod.program("python3", "#!/bin/bash\nexit 1\n")
    assert pod.run(of(pod, "true")) == 78
    said = pod.said.read_text()
    assert said.startswith(
        "speedrun: the image lacks python3 with venv and ensurepip (python3-venv); it must have what "
    )
    assert "apt-get install -y build-essential git" in said and said in pod.log


def test_data_that_are_not_whole_do_not_reach_training(pod: Containers) -> None:
    (pod.place / "shard").write_bytes(SHARD[:-2])
    assert pod.run(of(pod, "echo trained")) == 1
    assert "4 tokens claimed, 3 found" in pod.log and "trained" not in pod.log
