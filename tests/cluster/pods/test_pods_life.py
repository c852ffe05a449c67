"""From `kubectl apply` to the result, in real pods: the same phases, fields and verdicts as of Slurm jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.pods.pods import log_of, on_pods, pods_of, slow_pod, trains
from cluster.speedruns import Speedruns, condition, speedrun
from cluster.waiting import until
from testbed.image import BARE
from testbed.kubectl import Kubectl
from testbed.node import CLAIM, Node
from testbed.operator import Operator
from unit.source.gits import Repository


def test_a_replay_succeeds_and_kubectl_shows_it(runs: Speedruns, kubectl: Kubectl, node: Node) -> None:
    runs.apply(on_pods("one", parameters={"steps": 10, "intervalMilliseconds": 50}))
    status = runs.wait_finished("one")
    assert (status["phase"], status["val_loss"], status["train_time"]) == ("Succeeded", 3.2782, "0.521s")
    assert (status["runsSummary"], status["reason"], status["node"]) == ("1/1", "TargetReached", node.layout.name)
    (pod,) = pods_of(runs, "one")
    (allocation,) = status["allocations"]
    assert (allocation["name"], allocation["jobId"]) == (pod["metadata"]["name"], pod["metadata"]["uid"])
    assert pod["status"]["qosClass"] == "Burstable"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Speedrun", "one", True)
    row = kubectl("get", "sr", "one", "-n", runs.namespace).splitlines()[-1].split()
    assert row[:7] == ["one", "Succeeded", "3.2782", "0.521s", "10", "1/1", "Pods"]
    log = log_of(runs, status)
    assert "step:10/10 val_loss:3.2782" in log
    assert status["clock"]["wallMilliseconds"] >= 0


@pytest.mark.full
def test_the_log_outlives_the_pod_on_the_cache_volume(runs: Speedruns, node: Node, kubectl: Kubectl) -> None:
    runs.apply(on_pods("kept"))
    told = runs.wait_finished("kept")["logPath"]
    (pod,) = pods_of(runs, "kept")
    kubectl("delete", "pod", pod["metadata"]["name"], "-n", runs.namespace)
    uid8 = runs.get("kept")["metadata"]["uid"][:8]
    log = node.layout.cache / "speedruns" / runs.namespace / f"kept-{uid8}" / "alloc-0" / "log"
    assert "SPEEDRUN job end exit=0" in log.read_text()
    assert told.endswith(f" # without the pod: {log.relative_to(node.layout.cache)} on the volume of claim {CLAIM}")
    assert (log.stat().st_mode & 0o077, log.parent.stat().st_mode & 0o077) == (0, 0)
    assert runs.status("kept")["phase"] == "Succeeded"


def test_several_runs_in_a_pod_and_pods_one_after_the_other(runs: Speedruns) -> None:
    parameters = {"steps": 3, "intervalMilliseconds": 10, "valLoss": "3.2$(RUN)"}
    several = on_pods("several", parameters={**parameters, "valLoss": "3.27"}, runs=3, runsPerAllocation=2)
    runs.apply(several)
    status = runs.wait_finished("several")
    assert (status["phase"], status["runsSummary"], status["val_loss"]) == ("Succeeded", "3/3", 3.27)
    assert [each["allocation"] for each in status["runs"]] == [0, 0, 1]
    assert len(pods_of(runs, "several")) == 2


@pytest.mark.full
def test_a_program_that_fails_is_told_with_its_exit_code(runs: Speedruns) -> None:
    runs.apply(on_pods("broken", parameters={"steps": 3, "intervalMilliseconds": 10, "valLoss": "nan", "exitCode": 3}))
    status = runs.wait_finished("broken")
    assert (status["phase"], status["reason"]) == ("Missed", "Diverged")
    assert "val_loss" not in status


@pytest.mark.full
def test_suspending_ends_the_pod_and_resuming_makes_another(runs: Speedruns, kubectl: Kubectl) -> None:
    runs.apply(slow_pod("pausing"))
    runs.wait("pausing", "training", trains)
    kubectl("patch", "sr", "pausing", "-n", runs.namespace, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    runs.wait_phase("pausing", "Suspended")
    until("its pod gone", lambda: pods_of(runs, "pausing") == [])
    kubectl("patch", "sr", "pausing", "-n", runs.namespace, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = runs.wait("pausing", "training again", trains)
    assert [each.get("reason") for each in status["allocations"]] == ["Suspended", None]
    (pod,) = pods_of(runs, "pausing")
    assert pod["metadata"]["name"].endswith("-1")
    kubectl("delete", "sr", "pausing", "-n", runs.namespace, "--timeout=30s")
    until("its pod gone", lambda: pods_of(runs, "pausing") == [])


def test_a_restarted_operator_goes_on_where_it_was(runs: Speedruns, operator: Operator) -> None:
    runs.apply(on_pods("long", parameters={"steps": 12, "intervalMilliseconds": 500}))
    before = runs.wait("long", "training", trains)
    operator.kill()
    operator.start()
    status = runs.wait_finished("long")
    assert (status["phase"], status["val_loss"], len(status["allocations"])) == ("Succeeded", 3.2782, 1)
    assert status["allocations"][0]["jobId"] == before["allocations"][0]["jobId"]
    assert len(pods_of(runs, "long")) == 1


def compared(runs: Speedruns, steps: int) -> dict[str, Any]:
    """val_loss of `smoke` by backend."""
    parameters = {"steps": steps, "seed": 3}
    runs.apply(
        speedrun("on-slurm", "smoke", parameters),
        on_pods("on-pods", "smoke", parameters, pods={"resources": {"requests": {"cpu": "100m"}}}),
    )
    ends = {name: runs.wait_finished(name, timeout=240) for name in ("on-slurm", "on-pods")}
    assert {name: condition(each, "Finished")["reason"] for name, each in ends.items()} == dict.fromkeys(
        ends, ends["on-slurm"]["reason"]
    )
    return {name: round(each["val_loss"], 4) for name, each in ends.items()}


def test_smoke_learns_the_same_in_a_pod_as_in_a_slurm_job(runs: Speedruns) -> None:
    losses = compared(runs, 30)
    assert losses["on-pods"] == losses["on-slurm"] > 0


@pytest.mark.full
def test_a_whole_smoke_learns_the_same_in_a_pod_as_in_a_slurm_job(runs: Speedruns) -> None:
    losses = compared(runs, 500)
    assert losses["on-pods"] == losses["on-slurm"] < 2.0105


def test_a_pod_that_asks_for_gpus_of_a_type_gets_a_node_with_them(runs: Speedruns, kubectl: Kubectl) -> None:
    runs.apply(on_pods("eight", gpus={"type": "h100", "count": 8}))
    status = runs.wait_finished("eight")
    assert status["phase"] == "Succeeded"
    (pod,) = pods_of(runs, "eight")
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert {each["matchExpressions"][0]["key"] for each in terms["nodeSelectorTerms"]} == {
        "nvidia.com/gpu.product",
        "node.kubernetes.io/instance-type",
    }
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]


@pytest.mark.full
def test_pods_stay_pending_until_they_are_enabled(runs: Speedruns, operator: Operator, kubectl: Kubectl) -> None:
    operator.stop()
    disabled = Operator(operator.place, operator.facts, name="operator-without-pods")
    disabled.install()
    disabled.start()
    try:
        runs.apply(on_pods("early", pods={"image": "speedrun.test/run:1"}))
        status = runs.wait("early", "told", lambda status: condition(status, "Admitted").get("status") == "False")
        assert (status["phase"], condition(status, "Admitted")["reason"]) == ("Pending", "PodsNotEnabled")
        assert "pods.enabled" in condition(status, "Admitted")["message"]
    finally:
        disabled.stop()
        operator.start()
    assert runs.wait_finished("early")["phase"] == "Succeeded"


def test_one_pod_for_each_allocation_and_nothing_else_is_left(runs: Speedruns, kubectl: Kubectl) -> None:
    runs.apply(on_pods("tidy", "smoke", {"steps": 5}, pods={"resources": {"requests": {"cpu": "100m"}}}))
    until("its pod and its package made", lambda: len(_owned(kubectl, runs.namespace)) == 2)
    kubectl("delete", "sr", "tidy", "-n", runs.namespace, "--timeout=60s")
    until("all that was its own gone", lambda: _owned(kubectl, runs.namespace) == [])


def test_a_fork_with_a_patch_runs_at_the_commit_that_its_first_pod_found(
    runs: Speedruns, node: Node, kubectl: Kubectl, tmp_path: Path
) -> None:
    """As far as an image goes that has no environment for it and can make none."""
    fork = Repository(tmp_path / "fork")
    commit = fork.commit({"train_gpt.py": "import torch\n", "requirements.txt": "numpy\n"})
    (fork.path / "train_gpt.py").write_text("import torch  # mine\n")
    (tmp_path / "patch").write_text(fork.git("diff", "HEAD"))
    fork.git("checkout", "-q", "train_gpt.py")
    served = shutil.copytree(fork.path, node.layout.cache / "forks" / runs.namespace)
    subprocess.run(["chown", "-R", "1000:1000", str(served)], check=True)
    kubectl("create", "configmap", "mine", "-n", runs.namespace, f"--from-file=diff={tmp_path / 'patch'}")
    source = {
        "repository": f"/cache/forks/{runs.namespace}/.git",
        "revision": "main",
        "patch": {"configMapRef": {"name": "mine", "key": "diff"}},
    }
    fields = {"gpus": {"count": 1}, "runs": 2, "parallelism": 2, "pods": {"image": BARE}}
    wanted = on_pods("forked", "modded-nanogpt", {}, **fields)
    wanted["spec"]["recipe"]["source"] = source
    runs.apply(wanted)
    status = runs.wait_finished("forked", timeout=60)
    assert status["plan"]["commit"] == commit
    assert status["plan"]["source"]["layout"] == "single-file"
    message = condition(status, "Finished")["message"]
    assert (status["phase"], status["reason"]) == ("Failed", "ImageMissingBuildSteps"), message
    assert "(python3-venv)" in message and "apt-get install" in message
    assert f"SPEEDRUN code commit={commit}" in log_of(runs, status)
    uid8 = runs.get("forked")["metadata"]["uid"][:8]
    for each in status["runs"]:
        ledger = node.layout.cache / "speedruns" / runs.namespace / f"forked-{uid8}" / f"alloc-{each['allocation']}"
        assert (ledger / f"run-{each['index']}" / "code" / "train_gpt.py").read_text() == "import torch  # mine\n"
        assert (ledger / "log").stat().st_mode & 0o077 == 0 and "SPEEDRUN job end" in (ledger / "log").read_text()


def _owned(kubectl: Kubectl, namespace: str) -> list[str]:
    found = json.loads(kubectl("get", "pods,configmaps", "-n", namespace, "-o", "json"))["items"]
    return [each["metadata"]["name"] for each in found if each["metadata"].get("ownerReferences")]
