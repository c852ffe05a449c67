"""Slurm's controller, its accounting, its authentication and its programs fail while Speedruns wait and run."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.faults.slurm_nodes import FIRST, drained, on
from cluster.faults.story import Story
from cluster.faults.world import World
from cluster.speedruns import Speedruns, condition, quick, slow
from cluster.waiting import until
from testbed.facts import Facts
from testbed.login import Login
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm

Follow = Callable[[str], Story]
LOST_AFTER = 10


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    operator = Operator(place, bed, {"SPEEDRUN_SLURM__LOST_AFTER_SECONDS": str(LOST_AFTER)})
    operator.install()
    operator.start()
    yield operator
    operator.kill()
    assert "Traceback" not in operator.log.read_text()


@pytest.fixture(autouse=True)
def _runs(operator: Operator) -> None:
    """Every test has the operator."""


def reachable(status: dict[str, Any], word: str) -> bool:
    return condition(status, "BackendReachable").get("status") == word


@pytest.mark.full
@pytest.mark.parametrize("how", ["stopped", "hung"])
def test_the_controller_is_away(how: str, runs: Speedruns, story: Follow, slurm: Slurm, world: World) -> None:
    """A run ends meanwhile and another is applied: nothing is said of the one, and the other waits."""
    with story("live") as live, story("new") as new:
        runs.apply(slow("live", 4))
        runs.wait_phase("live", "Training")
        slurm.stop("slurmctld") if how == "stopped" else slurm.pause("slurmctld")
        runs.apply(quick("new"))
        for name, phase in (("live", "Training"), ("new", "Pending")):
            status = runs.wait(name, "unreachable", lambda each: reachable(each, "False"))
            assert status["phase"] == phase
            said = condition(status, "BackendReachable")
            assert said["reason"] == "SlurmUnreachable"
            assert "slurm controller" in said["message"] or "Socket timed out" in said["message"]
        slurm.start("slurmctld") if how == "stopped" else slurm.resume("slurmctld")
        statuses = [runs.wait_finished(name) for name in ("live", "new")]
    assert [each["phase"] for each in statuses] == ["Succeeded", "Succeeded"]
    for told, name in ((live, "live"), (new, "new")):
        assert told.never_went_back(), told.phases()
        assert told.said("BackendReachable")[-1] == ("True", "Reachable")
        assert len(world.jobs_ever(runs.get(name)["metadata"]["uid"])) == 1


def test_a_job_that_the_controller_forgot_is_lost_and_its_number_is_somebody_elses(
    runs: Speedruns, story: Follow, slurm: Slurm, world: World, tmp_path: Path
) -> None:
    """Killed within seconds of an sbatch, slurmctld comes back without the job and gives its number again.

    It may have saved the job by then. So it is given what it had saved before.
    """
    before = time.time()
    with story("lost") as told:
        with drained(world, FIRST):
            until("slurmctld to have saved that", lambda: saved(slurm, "node_state") > before)
            until("a copy of that", lambda: copied(slurm.paths.controller, tmp_path / "saved"))
            runs.apply(on(FIRST, quick("lost")))
            number = runs.wait("lost", "submitted", lambda each: bool(each.get("job")))["job"]
            slurm.kill("slurmctld")
            assert copied(tmp_path / "saved", slurm.paths.controller)
            slurm.start("slurmctld")
            runs.apply(on(FIRST, quick("follows", valLoss="3.2500")))
            assert runs.wait("follows", "submitted", lambda each: bool(each.get("job")))["job"] == number
        assert runs.wait_finished("follows")["val_loss"] == 3.25
        status = runs.wait_finished("lost", timeout=90)
    assert (status["phase"], status["val_loss"]) == ("Succeeded", 3.2782)
    assert [each["reason"] for each in status["allocations"]] == ["JobLost", "Completed"]
    assert status["allocations"][0]["jobId"] == number != status["allocations"][1]["jobId"]
    assert "Training" not in told.phases()[: told.phases().index("Pending", 1)]
    warned = [text for type_, reason, text in runs.events("lost") if (type_, reason) == ("Warning", "JobLost")]
    assert warned and f"job {number}" in warned[0] and "tried again" in warned[0]
    assert world.starts(runs.get("lost")["metadata"]["uid"]) == [[], [status["job"]]]
    assert world.starts(runs.get("follows")["metadata"]["uid"]) == [[number]]


def saved(slurm: Slurm, name: str) -> float:
    """When slurmctld last saved a part of its state, in seconds since the epoch."""
    try:
        return (slurm.paths.controller / name).stat().st_mtime
    except FileNotFoundError:
        return 0


def copied(source: Path, target: Path) -> bool:
    """Whether `target` is as `source` now, owners and all: not where a file of it was being replaced meanwhile."""
    shutil.rmtree(target, ignore_errors=True)
    done = subprocess.run(["cp", "-a", source, target], capture_output=True, check=False)
    return done.returncode == 0 and (target / "job_state").exists()


@pytest.mark.full
def test_without_slurmdbd_runs_go_on(runs: Speedruns, slurm: Slurm, story: Follow) -> None:
    slurm.stop("slurmdbd")
    with story("unaccounted") as told:
        runs.apply(quick("unaccounted"))
        assert runs.wait_finished("unaccounted")["phase"] == "Succeeded"
    assert told.never_went_back()


@pytest.mark.full
@pytest.mark.parametrize("accounting", ["down", "off"])
def test_an_end_that_squeue_has_forgotten_is_told_by_the_jobs_own_record(
    accounting: str, runs: Speedruns, slurm: Slurm, operator: Operator, world: World, story: Follow
) -> None:
    """BR-019: without accounting the exit marker in the ledger is what is left to tell it."""
    if accounting == "off":
        slurm.configure(AccountingStorageType="accounting_storage/none", AccountingStorageTRES="")
    else:
        slurm.stop("slurmdbd")
    with story("forgotten") as told:
        runs.apply(slow("forgotten", 3))
        job = runs.wait_phase("forgotten", "Training")["job"]
        operator.pause()
        try:
            until("squeue to forget the job", lambda: world.state(job) == "", timeout=120)
        finally:
            operator.resume()
        status = runs.wait_finished("forgotten", timeout=30)
    assert (status["phase"], status["train_time"]) == ("Succeeded", "0.171s")
    assert told.never_went_back()


@pytest.mark.full
def test_when_slurms_programs_cannot_authenticate_nothing_is_concluded(
    runs: Speedruns, slurm: Slurm, world: World, story: Follow, operator: Operator
) -> None:
    """BR-020: munge away for several polls; squeue's empty answer is no answer. What is applied meanwhile waits."""
    with story("munge") as told, story("waits") as waits:
        runs.apply(slow("munge", 4))
        job = runs.wait_phase("munge", "Training")["job"]
        slurm.stop("munged")
        runs.wait("munge", "unreachable", lambda each: reachable(each, "False"))
        runs.apply(quick("waits"))
        before = polls(operator)
        until("three more polls", lambda: polls(operator) >= before + 3, timeout=60)  # squeue tries for seconds
        for name, phase in (("munge", "Training"), ("waits", "Pending")):
            status = runs.wait(name, "unreachable", lambda each: reachable(each, "False"))
            assert status["phase"] == phase
            said = condition(status, "BackendReachable")
            assert said["reason"] == "SlurmUnreachable" and "unge" in said["message"]
        assert world.jobs_ever(runs.get("waits")["metadata"]["uid"]) == []
        slurm.start("munged")
        assert runs.wait_finished("waits")["phase"] == "Succeeded"
        assert runs.wait_finished("munge")["phase"] == "Succeeded"
    for each in (told, waits):
        assert each.never_went_back(), each.phases()
        assert [word for word, _ in each.said("BackendReachable")][-2:] == ["False", "True"]
    assert world.jobs_ever(runs.get("munge")["metadata"]["uid"]) == [job]
    assert len(world.jobs_ever(runs.get("waits")["metadata"]["uid"])) == 1


def polls(operator: Operator) -> int:
    return int(str(operator.health()["polls"]))


SILENT = """
if [ -e "$notes/silent" ]; then
  date +%s >>"$notes/asked"
  cat "$notes/silent" >&2
  exit 0
fi
exec "$real" "$@"
"""


def asked_for(notes: Path) -> int:
    """Seconds between the first and the last question that was answered with silence."""
    asked = [int(each) for each in (notes / "asked").read_text().split()]
    return asked[-1] - asked[0]


@pytest.mark.full
@pytest.mark.parametrize("said", ["squeue: error: Munge encode failed\n", ""], ids=["an error beside it", "not a word"])
def test_programs_that_fail_with_an_exit_code_of_0_lose_no_job(
    said: str, runs: Speedruns, login: Login, world: World, story: Follow
) -> None:
    """BR-020, variant: a site's wrapper turns Slurm's failures into empty answers, for longer than a lost job is waited
    for, while the job runs and its log says nothing new."""
    with world.programs(squeue=SILENT, sacct=SILENT) as notes, story("wrapped") as told:
        login.drop_sessions()
        runs.apply(slow("wrapped", 3, intervalMilliseconds=15 * 1000))
        job = runs.wait_phase("wrapped", "Training")["job"]
        (notes / "silent").write_text(said)
        runs.wait("wrapped", "unreachable", lambda each: reachable(each, "False"))
        until("as many questions as that takes", lambda: asked_for(notes) > 2 * LOST_AFTER, timeout=60)
        status = runs.status("wrapped")
        assert (status["phase"], world.state(job)) == ("Training", "RUNNING")
        told_of = condition(status, "BackendReachable")
        assert (told_of["status"], told_of["reason"]) == ("False", "SlurmUnreachable")
        assert (said.strip() or "squeue printed nothing, not even its heading") in told_of["message"]
        (notes / "silent").unlink()
        status = runs.wait_finished("wrapped", timeout=120)
    login.drop_sessions()
    assert (status["phase"], [each["jobId"] for each in status["allocations"]]) == ("Succeeded", [job])
    assert told.never_went_back()
    assert [word for word, _ in told.said("BackendReachable")] == ["True", "False", "True"]
    assert world.jobs_ever(runs.get("wrapped")["metadata"]["uid"]) == [job]
