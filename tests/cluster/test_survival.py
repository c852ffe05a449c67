"""The operator killed at the worst moments: one job, the right result, nothing false in between.

The moments are made with real parts held still (SIGSTOP): what is written before the kill is what a kill between two
steps would leave.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cluster.speedruns import Speedruns, condition, quick, slow
from cluster.test_main_job import health, job_names, jobs_ever
from cluster.waiting import until
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.login import Login
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm


@pytest.fixture
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    """An operator that the test starts and kills."""
    operator = Operator(place, bed)
    operator.install()
    yield operator
    operator.kill()


@pytest.fixture
def login(bed: Facts, place: Place) -> Iterator[Login]:
    part = Login(place)
    yield part
    part.heal()


@pytest.fixture
def slurm(place: Place) -> Iterator[Slurm]:
    part = Slurm(place)
    yield part
    part.heal()


@pytest.fixture
def runs(kubectl: Kubectl, namespace: str) -> Speedruns:
    return Speedruns(kubectl, namespace)


def connected(operator: Operator) -> None:
    """Start it and wait until it has its connection: what is held still afterwards is then all there is."""
    operator.start()
    until("the first remote command to be done", lambda: health(operator)["remote_commands"] > 0)


def claimed(runs: Speedruns, name: str) -> str:
    """Wait until the allocation's name is in status with its submission's outcome open; the uid."""
    runs.wait(name, "claimed", lambda each: [a["state"] for a in each.get("allocations", [])] == ["Submitting"])
    return str(runs.get(name)["metadata"]["uid"])


def test_killed_before_sbatch(runs: Speedruns, operator: Operator, login: Login, slurm: Slurm) -> None:
    connected(operator)
    login.pause()
    runs.apply(quick("before"))
    uid = claimed(runs, "before")
    operator.kill()
    login.resume()
    assert jobs_ever(slurm, uid) == []
    operator.start()
    assert runs.wait_finished("before")["phase"] == "Succeeded"
    assert len(jobs_ever(slurm, uid)) == 1


def test_killed_while_sbatch_hangs(runs: Speedruns, operator: Operator, slurm: Slurm) -> None:
    """The command runs on at the login when its connection ends; its job is found by name, not made again."""
    operator.start()
    slurm.pause("slurmctld")
    runs.apply(quick("during"))
    uid = claimed(runs, "during")
    operator.kill()
    slurm.resume("slurmctld")
    operator.start()
    status = runs.wait_finished("during", timeout=90)
    assert (status["phase"], len(status["allocations"])) == ("Succeeded", 1)
    assert len(jobs_ever(slurm, uid)) == 1


def test_killed_after_sbatch_before_status(
    runs: Speedruns, operator: Operator, login: Login, slurm: Slurm, kubernetes: Kubernetes
) -> None:
    """BR-048: the job that there is becomes the Speedrun's."""
    connected(operator)
    login.pause()
    runs.apply(slow("after", 5))
    uid = claimed(runs, "after")
    kubernetes.pause("kube-apiserver")
    login.resume()
    until("the job to be in squeue", lambda: any(uid in name for name in job_names(slurm)))
    operator.kill()
    kubernetes.kill("kube-apiserver")  # with what lies in its buffers: continued, it would still do that write
    kubernetes.start("kube-apiserver")
    kubernetes.wait_ready("kube-apiserver")
    assert "job" not in runs.status("after")
    operator.start()
    status = runs.wait_finished("after")
    assert (status["phase"], status["val_loss"], status["runsSummary"]) == ("Succeeded", 3.2782, "1/1")
    assert len(jobs_ever(slurm, uid)) == 1


def test_killed_while_it_runs_and_the_run_ends_meanwhile(runs: Speedruns, operator: Operator, slurm: Slurm) -> None:
    operator.start()
    runs.apply(slow("running", 6), slow("longer", 12))
    runs.wait_phase("longer", "Training")
    runs.wait_phase("running", "Training")
    operator.kill()
    uids = {name: runs.get(name)["metadata"]["uid"] for name in ("running", "longer")}
    until("the first job to end", lambda: not any(uids["running"] in name for name in job_names(slurm)))
    assert runs.status("running")["phase"] == "Training"
    operator.start()
    phases = set()

    def finished(status: dict[str, object]) -> bool:
        phases.add(status["phase"])
        return condition(status, "Finished")["status"] == "True"

    assert runs.wait("running", "finished", finished)["train_time"] == "0.321s"
    assert runs.wait("longer", "finished", finished)["train_time"] == "0.621s"
    assert phases <= {"Training", "Succeeded"}, "a phase ran backwards after the restart"
    assert [len(jobs_ever(slurm, uid)) for uid in uids.values()] == [1, 1]


def test_deleted_while_the_operator_is_away(
    runs: Speedruns, operator: Operator, slurm: Slurm, kubectl: Kubectl
) -> None:
    operator.start()
    runs.apply(slow("orphan"))
    name = runs.wait_phase("orphan", "Training")["allocations"][0]["name"]
    operator.kill()
    kubectl("delete", "speedrun", "orphan", "-n", runs.namespace, "--wait=false")
    assert runs.get("orphan")["metadata"]["deletionTimestamp"]
    operator.start()
    runs.wait_gone("orphan")
    assert name not in job_names(slurm)


def test_a_stopped_operator_ends_cleanly_and_leaves_jobs_alone(
    runs: Speedruns, operator: Operator, slurm: Slurm
) -> None:
    operator.start()
    runs.apply(slow("stays", 8))
    name = runs.wait_phase("stays", "Training")["allocations"][0]["name"]
    began = time.monotonic()
    operator.stop()
    assert time.monotonic() - began < 19, "after 20 s it is killed"
    assert "Traceback" not in operator.log.read_text()
    assert name in job_names(slurm)
    operator.start()
    assert runs.wait_finished("stays")["phase"] == "Succeeded"


def test_the_login_is_cut_in_mid_run(runs: Speedruns, operator: Operator, login: Login) -> None:
    operator.start()
    runs.apply(slow("cut", 12))
    runs.wait_phase("cut", "Training")
    login.stop()
    login.drop_sessions()
    status = runs.wait("cut", "unreachable", lambda each: condition(each, "BackendReachable").get("status") == "False")
    assert status["phase"] == "Training"
    login.start()
    runs.wait("cut", "reachable", lambda each: condition(each, "BackendReachable").get("status") == "True")
    assert runs.wait_finished("cut")["phase"] == "Succeeded"
    warned = [reason for type_, reason, _ in runs.events("cut") if type_ == "Warning"]
    assert warned and set(warned) <= {"LoginUnreachable", "ConnectionLost"}


def test_without_a_login_runs_stay_pending(runs: Speedruns, operator: Operator) -> None:
    operator.settings["SPEEDRUN_LOGIN__HOST"] = ""
    operator.start()
    runs.apply(quick("nowhere"))
    status = runs.wait("nowhere", "waiting", lambda each: each.get("reason") == "LoginNotConfigured")
    assert status["phase"] == "Pending"
    admitted = condition(status, "Admitted")
    assert (admitted["status"], admitted["reason"]) == ("False", "LoginNotConfigured")
    assert "login.host" in admitted["message"]
    operator.kill()
    del operator.settings["SPEEDRUN_LOGIN__HOST"]
    operator.start()
    status = runs.wait_finished("nowhere")
    assert (status["phase"], condition(status, "Admitted")["status"]) == ("Succeeded", "True")


def test_what_cannot_be_submitted_is_tried_again_with_back_off(runs: Speedruns, operator: Operator) -> None:
    """Polls and events come meanwhile; none of them is a reason to try at once."""
    operator.settings["SPEEDRUN_SLURM__ROOT"] = "/proc/speedruns"
    operator.start()
    runs.apply(quick("nowhere"))
    status = runs.wait("nowhere", "waiting", lambda each: each.get("reason") == "StorageUnwritable")
    assert status["phase"] == "Pending"
    assert "/proc/speedruns" in condition(status, "Submitted")["message"]
    before = health(operator)
    until("eight more polls", lambda: health(operator)["polls"] >= before["polls"] + 8)
    assert 1 <= health(operator)["submissions"] - before["submissions"] <= 3


@pytest.mark.full
def test_a_copy_that_carries_the_label_of_a_finished_run_is_found(runs: Speedruns, operator: Operator) -> None:
    """`kubectl get -o yaml` of a finished one, applied under another name: the label hides it from the watch."""
    operator.settings["SPEEDRUN_WATCH__RESYNC_SECONDS"] = "10"
    operator.start()
    copy = quick("copy")
    runs.apply({**copy, "metadata": {"name": "copy", "labels": {"speedrun.dev/finished": "true"}}})
    assert runs.wait_finished("copy", timeout=40)["phase"] == "Succeeded"


def test_a_chatty_log_is_kept_up_with(runs: Speedruns, operator: Operator, place: Place) -> None:
    """6 MB of noise before the result: read at 64 KiB a second it would take a minute and a half."""
    noise = b"x" * 199 + b"\n"
    log = place.state / "chatty.log"  # job users can read it there
    log.write_bytes(noise * 30_000 + b"step:2/2 val_loss:3.2500 train_time:100ms step_avg:50.00ms\n")
    log.chmod(0o644)
    operator.start()
    runs.apply(quick("chatty", log=str(log), intervalMilliseconds=0))
    runs.wait_phase("chatty", "Preparing", "Compiling", "Training", "Succeeded")
    assert runs.wait_finished("chatty", timeout=60)["val_loss"] == 3.25
