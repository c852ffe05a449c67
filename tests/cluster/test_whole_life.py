"""The whole life of a Speedrun on the real bed: several runs, suspend, deadlines, TTL, stalls, orphans."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cluster.speedruns import Speedruns, condition, finished, quick, slow, speedrun
from cluster.test_main_job import job_names, jobs_ever
from cluster.waiting import until
from testbed import users
from testbed.facts import Facts
from testbed.kubectl import Kubectl, KubectlFailed
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    operator = Operator(place, bed, {"SPEEDRUN_WATCH__RESYNC_SECONDS": "10"})
    operator.install()
    operator.start()
    yield operator
    operator.stop()


@pytest.fixture
def runs(operator: Operator, kubectl: Kubectl, namespace: str) -> Speedruns:
    return Speedruns(kubectl, namespace)


@pytest.fixture
def slurm(place: Place) -> Slurm:
    return Slurm(place)


def log_of(status: dict[str, Any]) -> Path:
    return Path(status["logPath"].replace("~", f"/home/{users.NAMES[0]}", 1))


def change(runs: Speedruns, name: str, spec: str) -> None:
    runs.kubectl("patch", "speedrun", name, "-n", runs.namespace, "--type=merge", "-p", f'{{"spec": {spec}}}')


def in_slurm(slurm: Slurm, runs: Speedruns, name: str) -> list[str]:
    uid = runs.get(name)["metadata"]["uid"]
    return [each for each in job_names(slurm) if uid in each]


# Several runs -----------------------------------------------------------------------------------------------------


def test_several_runs_in_one_job_and_the_mean_decides(runs: Speedruns, slurm: Slurm) -> None:
    runs.apply(quick("series") | {"spec": series_spec(3, 3, valLoss="3.2$(RUN)")})
    status = runs.wait_finished("series")
    assert (status["phase"], status["runsSummary"], status["val_loss"]) == ("Succeeded", "3/3", 3.21)
    assert [(each["index"], each["val_loss"], each["allocation"]) for each in status["runs"]] == [
        (0, 3.2, 0),
        (1, 3.21, 0),
        (2, 3.22, 0),
    ]
    assert len(status["allocations"]) == 1
    assert len(jobs_ever(slurm, runs.get("series")["metadata"]["uid"])) == 1
    assert condition(status, "Finished")["message"] == "mean val_loss 3.21 of 3 runs: target 3.28 reached"
    assert status["progressPercentage"] == 100


def series_spec(count: int, per: int, **more: Any) -> dict[str, Any]:
    parameters = {"steps": 5, "intervalMilliseconds": 20} | {
        key: value for key, value in more.items() if key in ("valLoss", "exitCode", "log", "steps")
    }
    return {
        "recipe": {"name": "replay", "parameters": parameters},
        "runs": count,
        "runsPerAllocation": per,
    }


@pytest.mark.full
def test_parallel_allocations_are_never_more_than_asked(runs: Speedruns, slurm: Slurm) -> None:
    spec = slow("wide", 3)["spec"] | {"runs": 5, "parallelism": 2}
    runs.apply(slow("wide", 3) | {"spec": spec})
    most = 0
    deadline = time.monotonic() + 90
    while not finished(runs.status("wide")):
        most = max(most, len(in_slurm(slurm, runs, "wide")))
        assert time.monotonic() < deadline
    status = runs.status("wide")
    assert (status["phase"], status["runsSummary"]) == ("Succeeded", "5/5")
    assert most == 2
    assert [each["runs"] for each in status["allocations"]] == [[0], [1], [2], [3], [4]]


def test_fewer_results_than_wanted_is_failed_with_the_first_reason(runs: Speedruns) -> None:
    runs.apply({**quick("partly"), "spec": series_spec(3, 3, log="/etc/hostname")})
    status = runs.wait_finished("partly")
    assert (status["phase"], status["reason"], status["runsSummary"]) == ("Failed", "NoResult", "0/3")
    assert "3 of 3 runs have no result; run 0" in condition(status, "Finished")["message"]


def test_a_run_that_fails_does_not_stop_the_next_and_is_not_done_again(runs: Speedruns, slurm: Slurm) -> None:
    broken = Path(f"/home/{users.NAMES[0]}/broken.sh")  # the run's bash reads it first
    broken.write_text('[ "$WHICH" != 1 ] || exit 3\n')
    broken.chmod(0o644)
    named = {"BASH_ENV": str(broken), "WHICH": "$(RUN)"}
    spec = series_spec(3, 3) | {"env": [{"name": name, "value": value} for name, value in named.items()]}
    try:
        runs.apply(quick("mixed") | {"spec": spec})
        status = runs.wait_finished("mixed")
    finally:
        broken.unlink()
    assert [(each["phase"], each.get("val_loss"), each["reason"]) for each in status["runs"]] == [
        ("Succeeded", 3.2782, "TargetReached"),
        ("Failed", None, "JobFailed"),
        ("Succeeded", 3.2782, "TargetReached"),
    ]
    assert (status["phase"], status["reason"], status["runsSummary"]) == ("Failed", "JobFailed", "2/3")
    assert "1 of 3 runs have no result; run 1" in condition(status, "Finished")["message"]
    assert (len(status["allocations"]), status["val_loss"]) == (1, 3.2782)
    assert jobs_ever(slurm, runs.get("mixed")["metadata"]["uid"]) == [status["job"]]


def test_env_and_parameters_reach_each_run_with_its_number_and_arm(runs: Speedruns) -> None:
    shown = Path(f"/home/{users.NAMES[0]}/show.sh")  # the run's bash reads it first
    shown.write_text('echo "seen $WHICH of $SIDE, pausing $PARAM_INTERVALMILLISECONDS"\n')
    shown.chmod(0o644)
    named = {"BASH_ENV": str(shown), "WHICH": "number $(RUN)", "SIDE": "$(ARM)"}
    spec = series_spec(2, 2) | {"env": [{"name": name, "value": value} for name, value in named.items()]}
    spec["recipe"]["parameters"]["intervalMilliseconds"] = "$(RUN)"
    try:
        runs.apply(quick("told") | {"spec": spec})
        status = runs.wait_finished("told")
    finally:
        shown.unlink()
    log = log_of(status).read_text()
    assert re.findall("^seen .*$", log, re.MULTILINE) == [f"seen number {run} of A, pausing {run}" for run in (0, 1)], (
        log
    )


def test_names_of_env_that_are_reserved_or_none_are_refused(runs: Speedruns) -> None:
    runs.apply(quick("env") | {"spec": quick("env")["spec"] | {"env": [{"name": "SPEEDRUN_X", "value": "1"}]}})
    status = runs.wait_finished("env")
    assert (status["reason"], "spec.env[0].name" in condition(status, "Admitted")["message"]) == ("InvalidSpec", True)
    with pytest.raises(KubectlFailed, match=r"spec\.env\[0\]\.name"):
        runs.apply(quick("bad") | {"spec": quick("bad")["spec"] | {"env": [{"name": "A B", "value": "1"}]}})


@pytest.mark.full
def test_runs_can_be_raised_while_it_is_live_and_never_lowered(runs: Speedruns) -> None:
    runs.apply(slow("more", 4))
    runs.wait_phase("more", "Training")
    change(runs, "more", '{"runs": 2}')
    with pytest.raises(KubectlFailed, match=r"spec\.runs can only be raised"):
        change(runs, "more", '{"runs": 1}')
    status = runs.wait_finished("more")
    assert (status["phase"], status["runsSummary"]) == ("Succeeded", "2/2")
    with pytest.raises(KubectlFailed, match="cannot be changed once the Speedrun is finished"):
        change(runs, "more", '{"runs": 3}')


# Suspend, deadline, stall, TTL ------------------------------------------------------------------------------------


def test_suspend_ends_the_job_and_resume_runs_what_is_not_finished(runs: Speedruns, slurm: Slurm) -> None:
    runs.apply(slow("pause", 10) | {"spec": slow("pause", 10)["spec"] | {"runs": 2}})
    runs.wait(
        "pause", "in its second run", lambda each: each.get("runsSummary") == "1/2" and each["phase"] == "Training"
    )
    change(runs, "pause", '{"suspend": true}')
    status = runs.wait_phase("pause", "Suspended")
    assert in_slurm(slurm, runs, "pause") == []
    assert (condition(status, "Suspended")["status"], status["runsSummary"]) == ("True", "1/2")
    change(runs, "pause", '{"suspend": false}')
    status = runs.wait_finished("pause")
    assert (status["phase"], status["runsSummary"]) == ("Succeeded", "2/2")
    assert [each["runs"] for each in status["allocations"]] == [[0], [1], [1]]
    assert status["allocations"][1]["reason"] == "Suspended"
    assert condition(status, "Suspended")["status"] == "False"
    assert {"Suspended", "Resumed"} <= {reason for _, reason, _ in runs.events("pause")}


def test_created_suspended_it_submits_nothing(runs: Speedruns, slurm: Slurm) -> None:
    runs.apply(quick("later") | {"spec": quick("later")["spec"] | {"suspend": True}})
    runs.wait_phase("later", "Suspended")
    assert jobs_ever(slurm, runs.get("later")["metadata"]["uid"]) == []
    change(runs, "later", '{"suspend": false}')
    assert runs.wait_finished("later")["phase"] == "Succeeded"


def test_the_deadline_ends_what_is_not_finished(runs: Speedruns, slurm: Slurm) -> None:
    runs.apply(slow("late") | {"spec": slow("late")["spec"] | {"activeDeadlineSeconds": 5}})
    status = runs.wait_finished("late")
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert in_slurm(slurm, runs, "late") == []


def test_a_finished_speedrun_goes_at_its_time(runs: Speedruns) -> None:
    runs.apply(quick("brief") | {"spec": quick("brief")["spec"] | {"ttlSecondsAfterFinished": 3}})
    status = runs.wait_finished("brief")
    done = datetime.fromisoformat(status["completionTime"].replace("Z", "+00:00"))
    runs.wait_gone("brief", timeout=30)
    assert 2 <= time.time() - done.timestamp() <= 33


def test_a_held_job_waits_with_its_reason_and_goes_on(runs: Speedruns, slurm: Slurm) -> None:
    slurm.command("scontrol", "update", "NodeName=slurm-h100-1", "State=DRAIN", "Reason=test")
    try:
        runs.apply(quick("held") | {"spec": quick("held")["spec"] | {"slurm": {"nodeList": ["slurm-h100-1"]}}})
        job = runs.wait("held", "queued with a job", lambda each: bool(each.get("job")))["job"]
        slurm.command("scontrol", "hold", job)
        status = runs.wait("held", "held", lambda each: each.get("reason") == "JobHeldAdmin")
        assert status["phase"] == "Queued"
        slurm.command("scontrol", "release", job)
    finally:
        slurm.command("scontrol", "update", "NodeName=slurm-h100-1", "State=RESUME")
    assert runs.wait_finished("held")["phase"] == "Succeeded"


def test_a_job_cancelled_by_somebody_else_is_failed_and_not_tried_again(runs: Speedruns, slurm: Slurm) -> None:
    runs.apply(slow("taken"))
    job = runs.wait_phase("taken", "Training")["job"]
    slurm.command("scancel", job)
    status = runs.wait_finished("taken")
    assert (status["phase"], status["reason"], len(status["allocations"])) == ("Failed", "Cancelled", 1)


# Orphans ----------------------------------------------------------------------------------------------------------


def test_a_job_whose_speedrun_is_gone_is_ended_and_nobody_elses(
    runs: Speedruns, slurm: Slurm, operator: Operator, kubectl: Kubectl
) -> None:
    runs.apply(slow("lost"))
    name = runs.wait_phase("lost", "Training")["allocations"][0]["name"]
    prefix = name[: len("sr-01234567-")]
    uid = "11111111-2222-3333-4444-555555555555"
    others = {
        "another cluster's": ("sr-otherclu-" + uid + "-0", f"speedrun {runs.namespace}/x"),
        "no namespace": (prefix + uid + "-1", "mine"),
    }
    user = login_user(operator)
    for job, comment in others.values():
        made = slurm.command(
            "sbatch", "--parsable", f"--job-name={job}", f"--comment={comment}", "--mem=64M", "--uid", user,
            "--chdir=/tmp", "--output=/dev/null", "--wrap", "sleep 120",
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
    operator.kill()
    kubectl("patch", "speedrun", "lost", "-n", runs.namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("delete", "speedrun", "lost", "-n", runs.namespace, "--timeout=20s")
    assert name in job_names(slurm)
    operator.start()
    until("the orphan to be ended", lambda: name not in job_names(slurm), timeout=60)
    assert {job for job, _ in others.values()} <= set(job_names(slurm))
    slurm.command("scancel", *(f"--name={job}" for job, _ in others.values()))


def login_user(operator: Operator) -> str:
    return operator.facts.ssh_user.partition(".")[2]


def test_namespace_deletion_ends_live_and_queued_runs(runs: Speedruns, slurm: Slurm, kubectl: Kubectl) -> None:
    runs.apply(slow("one"), slow("two"), speedrun("three", gpus={"count": 8}, slurm={"nodeList": ["slurm-h100-0"]}))
    names = [runs.wait("one", "submitted", lambda each: bool(each.get("job")))["allocations"][0]["name"]]
    names += [runs.wait("two", "submitted", lambda each: bool(each.get("job")))["allocations"][0]["name"]]
    kubectl("delete", "namespace", runs.namespace, "--timeout=60s", timeout=70)
    assert not set(names) & set(job_names(slurm))


# Series and stalls in their long forms ------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_that_is_silent_for_too_long_is_ended_and_not_tried_again(runs: Speedruns, slurm: Slurm) -> None:
    silent = quick("silent", intervalMilliseconds=300_000)
    runs.apply(silent | {"spec": silent["spec"] | {"stallTimeoutSeconds": 60}})
    status = runs.wait_finished("silent", timeout=120)
    assert (status["phase"], status["reason"]) == ("Failed", "Stalled")
    assert len(status["allocations"]) == 1
    until("its job to be gone", lambda: in_slurm(slurm, runs, "silent") == [])


@pytest.mark.full
def test_a_stop_file_ends_the_series_between_runs(runs: Speedruns) -> None:
    spec = series_spec(3, 3, steps=5) | {"backoffLimit": 0}
    spec["recipe"]["parameters"]["intervalMilliseconds"] = 500
    runs.apply(quick("stopped") | {"spec": spec})
    status = runs.wait("stopped", "in its first run", lambda status: status.get("phase") == "Training")
    (log_of(status).parent / "stop").touch()
    status = runs.wait_finished("stopped", timeout=90)
    assert (status["phase"], status["reason"], status["runsSummary"]) == ("Failed", "Stopped", "1/3")
    assert [each["reason"] for each in status["runs"]] == ["TargetReached", "Stopped", "Stopped"]
    assert len(status["allocations"]) == 1
