"""From `kubectl apply` to the result, on a real API server, a real Slurm and a real sshd."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.speedruns import Speedruns, condition, finished, quick, slow, speedrun
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    """A running operator with a service account's rights."""
    operator = Operator(place, bed)
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


def job_names(slurm: Slurm) -> list[str]:
    return slurm.command("squeue", "-h", "-t", "pending,running,completing,suspended", "-o", "%j").stdout.split()


def jobs_ever(slurm: Slurm, uid: str) -> list[str]:
    """Ids of all jobs that Slurm has or had of one Speedrun: of squeue, where a new job shows at once, and of sacct."""
    queue = slurm.command("squeue", "-h", "-t", "all", "-o", "%i|%j").stdout
    past = slurm.command("sacct", "-a", "-X", "-n", "-P", "-S", "2020-01-01", "-o", "JobIDRaw,JobName").stdout
    return sorted({line.split("|")[0] for line in (queue + past).splitlines() if uid in line})


def test_a_replay_succeeds_and_kubectl_shows_it(runs: Speedruns, slurm: Slurm, kubectl: Kubectl) -> None:
    runs.apply(quick("one"))
    status = runs.wait_finished("one")

    assert (status["phase"], status["val_loss"], status["train_time"]) == ("Succeeded", 3.2782, "0.521s")
    assert (status["train_time_ms"], status["step"], status["total_steps"]) == (521, 10, 10)
    assert (status["runsSummary"], status["reason"], status["result"]) == ("1/1", "TargetReached", "val_loss=3.2782")
    assert status["plan"]["target"] == 3.28
    assert {name: condition(status, name)["status"] for name in ("Admitted", "Submitted", "Started", "Succeeded")} == {
        "Admitted": "True",
        "Submitted": "True",
        "Started": "True",
        "Succeeded": "True",
    }
    row = kubectl("get", "sr", "one", "-n", runs.namespace).splitlines()[-1].split()
    assert row[:7] == ["one", "Succeeded", "3.2782", "0.521s", "10", "1/1", "Slurm"]
    kubectl("wait", "--for=condition=Finished", "speedrun/one", "-n", runs.namespace, "--timeout=5s")
    reached = ("Normal", "TargetReached", "val_loss 3.2782: target 3.28 reached")
    runs.wait_event("one", lambda each: each == reached)
    assert [reason for _, reason, _ in runs.events("one")].count("Submitted") == 1
    assert len(jobs_ever(slurm, runs.get("one")["metadata"]["uid"])) == 1


def test_a_finished_run_loses_its_finalizer_and_is_labelled_in_one_write(
    runs: Speedruns, kubectl: Kubectl, kubernetes: Kubernetes
) -> None:
    shown: list[tuple[bool, bool]] = []
    path = f"/apis/speedrun.dev/v1alpha1/namespaces/{runs.namespace}/speedruns?watch=true&timeoutSeconds=180"
    with kubernetes.stream(path) as versions:
        runs.apply(quick("done"))
        for line in versions:
            metadata = json.loads(line)["object"]["metadata"]
            held = "speedrun.dev/operator" in metadata.get("finalizers", ())
            shown.append((held, metadata.get("labels", {}).get("speedrun.dev/finished") == "true"))
            if shown[-1][1]:
                break
    assert shown[0] == (False, False)
    assert [each for each in shown if each != (True, False)] == [(False, False), (False, True)], shown
    kubectl("delete", "speedrun", "done", "-n", runs.namespace, "--timeout=10s")


@pytest.mark.parametrize(
    ("parameters", "phase", "reason", "val_loss"),
    [
        ({"valLoss": "3.2801"}, "Missed", "TargetMissed", 3.2801),
        ({"valLoss": "3.2800"}, "Succeeded", "TargetReached", 3.28),
        ({"valLoss": "nan"}, "Missed", "Diverged", None),
        ({"valLoss": "3.2", "exitCode": 1}, "Succeeded", "TargetReached", 3.2),
        ({"log": "/etc/hostname"}, "Failed", "NoResult", None),
        ({"log": "/nonexistent"}, "Failed", "JobFailed", None),
    ],
    ids=["missed", "exactly", "nan", "result stands", "no result", "script fails"],
)
def test_what_the_log_says_last_is_the_result(
    runs: Speedruns, parameters: dict[str, Any], phase: str, reason: str, val_loss: float | None
) -> None:
    runs.apply(quick("run", **parameters))
    status = runs.wait_finished("run")
    assert (status["phase"], status["reason"], status.get("val_loss")) == (phase, reason, val_loss)
    assert condition(status, "Succeeded")["status"] == ("True" if phase == "Succeeded" else "False")


@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        (speedrun("bad", "no-such-recipe"), "UnknownRecipe", "there are: gpt2-small, modded-nanogpt, replay, smoke"),
        (quick("bad", stepz=3), "InvalidParameter", "spec.recipe.parameters.stepz"),
        (quick("bad", steps="many"), "InvalidParameter", "spec.recipe.parameters.steps: must be a whole number"),
        (speedrun("bad", gpus={"count": 3}), "UnsupportedHardware", "spec.gpus.count"),
        (
            speedrun("bad", "modded-nanogpt", gpus={"type": "A100"}),
            "UnsupportedHardware",
            "runs on H100, H200, not on A100",
        ),
        (
            speedrun("bad", slurm={"partition": "compute-h200"}),
            "SubmissionRejected",
            "Invalid partition name specified",
        ),
        (speedrun("bad", gpus={"count": 8}, slurm={"constraint": "cu131"}), "SubmissionRejected", "Invalid feature"),
    ],
    ids=["recipe", "parameter", "value", "count", "type", "partition", "constraint"],
)
def test_what_cannot_run_is_refused_with_the_reason(
    runs: Speedruns, slurm: Slurm, spec: dict[str, Any], reason: str, says: str
) -> None:
    runs.apply(spec)
    status = runs.wait_finished("bad")
    assert (status["phase"], status["reason"]) == ("Failed", reason)
    admitted = condition(status, "Admitted")
    assert (admitted["status"], admitted["reason"]) == ("False", reason)
    assert says in admitted["message"]
    runs.wait_event("bad", lambda each: each[:2] == ("Warning", reason) and says in each[2])
    assert jobs_ever(slurm, runs.get("bad")["metadata"]["uid"]) == []


def test_delete_while_running_ends_the_job(runs: Speedruns, slurm: Slurm, kubectl: Kubectl) -> None:
    runs.apply(slow("live"))
    name = runs.wait_phase("live", "Training")["allocations"][0]["name"]
    assert name in job_names(slurm)
    kubectl("delete", "speedrun", "live", "-n", runs.namespace, "--timeout=30s")
    assert name not in job_names(slurm)


def test_delete_while_queued_ends_the_job(runs: Speedruns, slurm: Slurm, kubectl: Kubectl) -> None:
    runs.apply(slow("waits") | {"spec": slow("waits")["spec"] | {"slurm": {"nodeList": ["slurm-h100-0"]}}})
    # Taken out of service first, the node gives the job no chance to start.
    runs.wait_phase("waits", "Queued", "Training", "Compiling", "Preparing")
    slurm.command("scontrol", "update", "NodeName=slurm-h100-1", "State=DRAIN", "Reason=test")
    try:
        held = slow("held") | {"spec": slow("held")["spec"] | {"slurm": {"nodeList": ["slurm-h100-1"]}}}
        runs.apply(held)
        status = runs.wait("held", "queued with a job", lambda each: bool(each.get("job")))
        status = runs.wait("held", "waiting with a reason", lambda each: bool(each.get("reason")))
        assert status["phase"] == "Queued"
        name = status["allocations"][0]["name"]
        assert name in job_names(slurm)
        kubectl("delete", "speedrun", "held", "-n", runs.namespace, "--timeout=30s")
        assert name not in job_names(slurm)
    finally:
        slurm.command("scontrol", "update", "NodeName=slurm-h100-1", "State=RESUME")


def test_ten_at_once_with_one_remote_command_a_poll(runs: Speedruns, operator: Operator, slurm: Slurm) -> None:
    names = [f"ten-{number}" for number in range(10)]
    before = health(operator)
    runs.apply(*(quick(name, steps=8, intervalMilliseconds=500, valLoss=f"3.1{i}00") for i, name in enumerate(names)))
    for name in names:
        runs.wait_finished(name)
    after = health(operator)
    grown = {key: after[key] - before[key] for key in ("polls", "submissions", "cancellations", "remote_commands")}
    assert grown["polls"] > 0
    # Besides: one that was under way when the count began, and one that asks for the cluster's facts.
    asked = grown["polls"] + grown["submissions"] + grown["cancellations"]
    assert grown["remote_commands"] <= asked + 2
    for number, name in enumerate(names):
        status = runs.status(name)
        assert (status["phase"], status["val_loss"]) == ("Succeeded", round(3.1 + number / 100, 2))
        assert len(jobs_ever(slurm, runs.get(name)["metadata"]["uid"])) == 1


def test_steps_and_losses_show_while_it_runs(runs: Speedruns) -> None:
    runs.apply(slow("watch", 6))
    status = runs.wait(
        "watch", "past the second step", lambda each: (each.get("step") or 0) >= 2 and not finished(each)
    )
    assert status["total_steps"] == 6
    assert 0 < status["progressPercentage"] < 100
    assert status["phase"] == "Training"
    assert status["node"].startswith("slurm-h100-")
    status = runs.wait_finished("watch")
    assert status["clock"]["trainMilliseconds"] == status["train_time_ms"]
    assert status["clock"]["wallMilliseconds"] >= 6000


def health(operator: Operator) -> dict[str, int]:
    address = operator.environment()["SPEEDRUN_HEALTH_ADDRESS"]
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as answer:
        return dict(json.load(answer))


def test_smoke_learns_and_reaches_its_target(runs: Speedruns) -> None:
    runs.apply(speedrun("smoke", "smoke"))
    phases = [runs.wait_phase("smoke", "Compiling", "Training", timeout=60)["phase"]]
    status = runs.wait_finished("smoke", timeout=240)
    assert (status["phase"], status["reason"]) == ("Succeeded", "TargetReached"), (phases, status)
    assert 1.96 < status["val_loss"] <= status["plan"]["target"] == 2.0105
    assert status["step"] == status["total_steps"] == 500
    assert 1_000 < status["train_time_ms"] < 240_000
    assert status["train_time"] == f"{status['train_time_ms'] / 1000:.3f}s"
    clock = status["clock"]
    assert clock["trainMilliseconds"] + clock["compileMilliseconds"] < clock["wallMilliseconds"] + 1000


def test_smoke_without_learning_misses(runs: Speedruns) -> None:
    runs.apply(speedrun("lazy", "smoke", {"learningRate": "0", "steps": 5}))
    status = runs.wait_finished("lazy", timeout=120)
    assert (status["phase"], status["reason"]) == ("Missed", "TargetMissed")
    assert status["val_loss"] > 2.6
