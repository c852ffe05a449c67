"""Cache entries on a real Slurm: made once for all who wait, whole or not at all, made anew when broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.speedruns import Speedruns, finished
from cluster.test_guide import HOME, PROFILE, log, makers, speedrun_of_guide
from cluster.test_guide import profile as profile  # the stand-in of git, for every test here
from cluster.test_guide import shell as shell
from cluster.test_slurm_bed import Shell
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.part import Place
from testbed.processes import wait_for
from testbed.slurm import Slurm

ROOT = HOME / "guide-runs"
HELD = HOME / "git-stand-in" / "held"


@pytest.fixture
def slurm(place: Place) -> Slurm:
    return Slurm(place)


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    settings = {"SPEEDRUN_SLURM__ROOT": str(ROOT), "SPEEDRUN_WATCH__RESYNC_SECONDS": "5"}
    operator = Operator(place, bed, settings)
    operator.install()
    operator.start()
    yield operator
    operator.stop()


@pytest.fixture
def runs(operator: Operator, kubectl: Kubectl, namespace: str) -> Speedruns:
    return Speedruns(kubectl, namespace)


def stage(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next((each for each in status.get("preparing", []) if each["stage"] == name), {})


def makes(runs: Speedruns, name: str, stage_: str) -> dict[str, Any]:
    """The status once a job makes the entry."""
    return runs.wait(name, f"making {stage_}", lambda status: stage(status, stage_).get("state") == "Running")


def entries(kind: str) -> list[Path]:
    return sorted((ROOT / ".cache" / kind).glob("*"))


def prepare_jobs(slurm: Slurm) -> list[str]:
    names = slurm.command("squeue", "-h", "-t", "pending,running,completing", "-o", "%j").stdout.split()
    return [name for name in names if name.startswith("sp-")]


def hold() -> None:
    HELD.touch()
    shutil.chown(HELD, HOME.owner())


def test_two_speedruns_that_need_the_same_wait_for_one_job(runs: Speedruns, slurm: Slurm) -> None:
    hold()
    runs.apply(speedrun_of_guide("one"), speedrun_of_guide("two"))
    first, second = (makes(runs, name, "code") for name in ("one", "two"))
    assert (first["phase"], second["phase"]) == ("Preparing", "Preparing")
    assert makers(first) == makers(second)
    assert len(prepare_jobs(slurm)) == 1
    said = runs.wait("one", "far", lambda status: "done" in stage(status, "code"))
    assert (stage(said, "code")["done"], stage(said, "code")["unit"]) == (0, "steps")
    HELD.unlink()
    done = [runs.wait_finished(name, timeout=120) for name in ("one", "two")]
    assert [each["phase"] for each in done] == ["Succeeded", "Succeeded"], [log(each) for each in done]
    made = [makers(each) for each in done]
    for kind in ("code", "image", "data", "downloads"):
        assert len({each[kind] for each in made if kind in each}) == 1, f"{kind} was made twice"
        assert len(entries(kind)) == 1


def test_a_killed_job_leaves_no_entry_and_another_one_makes_it(runs: Speedruns, slurm: Slurm) -> None:
    hold()
    runs.apply(speedrun_of_guide("killed"))
    first = stage(makes(runs, "killed", "code"), "code")
    job = first["jobId"]
    slurm.command("scancel", "--signal=KILL", "--full", job)
    status = runs.wait("killed", "told of it", lambda each: stage(each, "code").get("failures") == 1)
    assert not any((entry / "manifest").exists() for entry in entries("code"))
    HELD.unlink()
    status = runs.wait_finished("killed", timeout=120)
    assert status["phase"] == "Succeeded", status
    assert stage(status, "code")["attempt"] == first["attempt"] + 1
    assert stage(status, "code")["jobId"] != job
    assert [entry.name for entry in entries("code")] == [stage(status, "code")["key"]]
    assert any("preparing code failed" in text and "tried again from" in text for _, _, text in runs.events("killed"))


@pytest.mark.parametrize("seen", [pytest.param("before", marks=pytest.mark.full), "by the job"])
def test_a_broken_entry_is_made_anew_once_and_said(runs: Speedruns, slurm: Slurm, shell: Shell, seen: str) -> None:
    runs.apply(speedrun_of_guide("first"))
    runs.wait_finished("first", timeout=120)
    [entry] = entries("data")
    shard = entry / "files" / "fineweb_train_000003.bin"
    if seen == "before":
        shell(f"truncate -s -2 {shard}")
        runs.apply(speedrun_of_guide("second"))
        reason = "CacheBroken"
    else:  # of the right size, so that only its header tells
        manifest = (entry / "manifest").read_text()
        shell(f"printf xxxx | dd of={shard} conv=notrunc status=none")
        assert (entry / "manifest").read_text() == manifest
        runs.apply(speedrun_of_guide("second"))
        reason = "CacheMissing"
    status = runs.wait_finished("second", timeout=120)
    assert status["phase"] == "Succeeded", status
    told = [text for _, reason_, text in runs.events("second") if reason_ == reason]
    assert len(told) == 1 and entry.name in told[0]
    assert shard.stat().st_size == 1024 + 2 * 1024
    assert len(status["allocations"]) == (1 if seen == "before" else 2)


def cache(operator: Operator, *words: str) -> str:
    """What `speedrun-operator cache` prints."""
    command = [sys.executable, "-m", "speedrun_operator.cli", "cache", *words]
    done = subprocess.run(
        command, env={**os.environ, **operator.environment()}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_a_prune_spares_what_live_runs_use(runs: Speedruns, operator: Operator, kubectl: Kubectl) -> None:
    env = [{"name": "STUB_STEPS", "value": "100"}, {"name": "STUB_STEP_S", "value": "1"}]
    runs.apply(speedrun_of_guide("live", env=env))
    status = runs.wait_phase("live", "Training", timeout=120)
    used = {each["key"] for each in status["preparing"]}
    [data] = entries("data")
    subprocess.run(["cp", "-a", data, data.with_name("0" * 16)], check=True)
    long_ago = time.time() - 30 * 24 * 3600
    for entry in (path for kind in ("code", "image", "data", "downloads") for path in entries(kind)):
        os.utime(entry / "manifest", (long_ago, long_ago))

    listed = cache(operator, "list")
    assert "5 entries" in listed and "storage: " in listed
    for key in used:
        [line] = [each for each in listed.splitlines() if key in each]
        assert f"job {status['job']}" in line and "a live Speedrun" in line
    would = cache(operator, "prune", "--max-gib=0", "--dry-run")
    assert "would be removed" in would and "0" * 16 in would and not any(key in would for key in used)
    assert len(entries("data")) == 2
    assert "removed" in cache(operator, "prune", "--max-gib=0")
    assert entries("data") == [data]
    assert used == {entry.name for kind in ("code", "image", "data", "downloads") for entry in entries(kind)}

    kubectl("delete", "speedrun", "live", "-n", runs.namespace, "--timeout=60s")
    assert "4 entries" in cache(operator, "list")
    for key in used:
        assert key in cache(operator, "prune", "--older-than-days=7", "--dry-run")
    cache(operator, "prune", "--older-than-days=7")
    assert "0 entries" in cache(operator, "list")


def test_a_job_that_nobody_waits_for_any_more_is_ended(runs: Speedruns, slurm: Slurm, kubectl: Kubectl) -> None:
    hold()
    runs.apply(speedrun_of_guide("gone"), speedrun_of_guide("stays"))
    for name in ("gone", "stays"):
        makes(runs, name, "code")
    kubectl("delete", "speedrun", "gone", "-n", runs.namespace, "--timeout=30s")
    assert not finished(runs.status("stays"))
    assert len(prepare_jobs(slurm)) == 1, "somebody waits for it still"
    kubectl("delete", "speedrun", "stays", "-n", runs.namespace, "--timeout=30s")
    wait_for("the job to be ended", lambda: prepare_jobs(slurm) == [], timeout=60)
    assert not any((entry / "manifest").exists() for entry in entries("code"))
    HELD.unlink()
    subprocess.run(["rm", "-rf", str(ROOT)], check=True)
    assert PROFILE
