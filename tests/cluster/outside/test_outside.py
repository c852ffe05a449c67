"""The operator outside of the cluster: it knows an organization, a cluster and a token, and comes in by the API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.outside.conftest import MakeOperator
from cluster.speedruns import Speedruns, condition, finished, quick, slow
from cluster.waiting import until
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.outside import FLAGS, Outside
from testbed.slurm import NODES, Slurm


def waits_for(reason: str) -> Callable[[dict[str, Any]], bool]:
    def holds(status: dict[str, Any]) -> bool:
        admitted = condition(status, "Admitted")
        return (status.get("phase"), admitted.get("status"), admitted.get("reason")) == ("Pending", "False", reason)

    return holds


def assert_no_secret(outside: Outside, runs: Speedruns, operator: Operator, *tokens: str) -> None:
    """Neither its log, nor status, nor events, nor its command line has a token or a key."""
    told = operator.log.read_text() + runs.kubectl("get", "speedruns,events", "-n", runs.namespace, "-o", "yaml")
    told += Path(f"/proc/{operator.pid}/cmdline").read_text()
    for token in (outside.token_file.read_text().strip(), *tokens):
        assert token and token not in told
    assert "PRIVATE KEY" not in told


def test_from_provisioning_to_a_result_without_a_hand(
    make_operator: MakeOperator, outside: Outside, runs: Speedruns, slurm: Slurm
) -> None:
    """Each thing that is awaited is said in its turn; the platform's `ready: true` is not the last word, sinfo's is."""
    state = outside.platform.state
    state.lifecycle, state.slurm, state.storage_ready = "provisioning", "False", "False"
    state.ssh_ready, state.ssh_reason = False, "login node starts"
    operator = make_operator()
    operator.start(*FLAGS, wait=False)
    until("it waits for the cluster", lambda: "ClusterProvisioning" in operator.log.read_text())

    runs.apply(quick("one"))
    state.lifecycle = "active"
    runs.wait("one", "waiting for Slurm", waits_for("SlurmNotReady"))
    state.slurm = "True"
    runs.wait("one", "waiting for storage", waits_for("StorageNotReady"))
    state.storage_ready = "True"
    status = runs.wait("one", "waiting for SSH", waits_for("SshNotReady"))
    assert condition(status, "Admitted")["message"].endswith("is not ready: login node starts")

    nodes = ",".join(NODES)
    slurm.command("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=restarting")
    state.ssh_ready = True
    status = runs.wait("one", "waiting for nodes", waits_for("SlurmNotReady"))
    assert (
        "is ready, but sinfo does not: compute-h100: 2 nodes of 8 nvidia_h100 (2 drain)"
        in condition(status, "Admitted")["message"]
    )
    slurm.command("scontrol", "update", f"nodename={nodes}", "state=resume")

    status = runs.wait_finished("one")
    assert (status["phase"], status["val_loss"]) == ("Succeeded", 3.2782)
    runs.wait_event("one", lambda each: each[1] == "TargetReached")
    told = [reason for _, reason, _ in runs.events("one")]
    assert [each for each in told if each.endswith("Ready")].count("SshNotReady") == 1
    assert {"SlurmNotReady", "StorageNotReady", "SshNotReady", "Submitted"} <= set(told)
    assert outside.platform.writes == [], "keys, shells and clusters are never changed"
    assert {each.status for each in outside.platform.seen} == {200, 409}
    assert "the Platform API's kubeconfig of cluster" in operator.log.read_text()
    assert_no_secret(outside, runs, operator)


def test_a_scheduler_that_is_not_sunk_is_for_good(
    make_operator: MakeOperator, outside: Outside, runs: Speedruns
) -> None:
    outside.platform.state.scheduler = "kubernetes"
    make_operator().start(*FLAGS)
    runs.apply(quick("one"))
    status = runs.wait_finished("one")
    assert (status["phase"], status["reason"]) == ("Failed", "SchedulerNotSunk")
    assert "use one whose scheduler is SUNK, or backend Pods" in condition(status, "Admitted")["message"]


def test_a_token_runs_out_in_the_middle_of_a_run(
    make_operator: MakeOperator, outside: Outside, runs: Speedruns
) -> None:
    """It is said before it strikes, the run goes on without it, and a renewed one is taken up by itself."""
    first = outside.token_file.read_text().strip()
    operator = make_operator()
    operator.start(*FLAGS)
    runs.apply(slow("one", 8))
    runs.wait_phase("one", "Training")
    outside.sign_in(seconds=6)
    outside.platform.revoke(first)
    told = until(
        "its end is told",
        lambda: [message for _, reason, message in runs.events("one") if reason == "TokenExpires"],
    )
    assert re.search(r"runs out at \d{4}-.*Z: renew it where it comes from; no restart is needed", told[0])
    until("its figure", lambda: float(str(operator.health()["platform_token_expires_seconds"])) <= 0)
    before = len(outside.platform.seen)
    until("the API refuses it", lambda: any(each.status == 401 for each in outside.platform.seen[before:]))
    assert runs.status("one")["phase"] in ("Training", "Succeeded"), "the run goes on without it"

    before = len(outside.platform.seen)
    outside.sign_in()
    until("the new one is used", lambda: any(each.status == 200 for each in outside.platform.seen[before:]))
    until("its figure", lambda: float(str(operator.health()["platform_token_expires_seconds"])) > 3000)
    assert runs.wait_finished("one")["phase"] == "Succeeded"
    assert operator.alive
    assert_no_secret(outside, runs, operator, first)


def test_a_kubeconfig_is_rotated_in_the_middle_of_a_run(
    make_operator: MakeOperator, outside: Outside, runs: Speedruns
) -> None:
    """The API server refuses the old client certificate; writes go on, and watches, without a restart."""
    operator = make_operator()
    operator.start(*FLAGS)
    runs.apply(slow("one", 8))
    runs.wait_phase("one", "Training")
    pid = operator.pid
    outside.rotate()
    until("it is fetched again", lambda: len(outside.platform.asked("/kubeconfig")) >= 2, timeout=90)
    runs.apply(quick("two"))
    assert runs.wait_finished("two")["phase"] == "Succeeded"
    assert runs.wait_finished("one")["phase"] == "Succeeded"
    assert operator.pid == pid
    assert operator.health()["credential_renewals"] == 1
    assert len(outside.platform.asked("/kubeconfig")) == 2, "one refusal, one fetch"


@pytest.mark.full
@pytest.mark.parametrize("seconds", [4, 60])
def test_the_api_is_away_for_a_while(
    seconds: int, make_operator: MakeOperator, outside: Outside, runs: Speedruns
) -> None:
    """What runs goes on, what comes is submitted; nobody hammers at the API."""
    operator = make_operator()
    operator.start(*FLAGS)
    runs.apply(slow("one", seconds + 3))
    runs.wait_phase("one", "Training")
    before = len(outside.platform.seen)
    outside.platform.fail(503, seconds)
    runs.apply(quick("two"))
    assert runs.wait_finished("two")["phase"] == "Succeeded"
    assert runs.wait_finished("one", timeout=seconds + 60)["phase"] == "Succeeded"
    failed = [each for each in outside.platform.seen[before:] if each.status == 503]
    assert 1 <= len(failed) <= 4 + seconds, failed
    until("it is asked again", lambda: outside.platform.seen[-1].status == 200)
    assert operator.alive
    assert not {"ClusterEnded", "SlurmNotReady"} & {reason for _, reason, _ in runs.events("one")}


@pytest.mark.full
def test_a_cluster_ends_while_a_run_is_in_flight(
    make_operator: MakeOperator, outside: Outside, runs: Speedruns
) -> None:
    """It is said so; nothing is called ended that nobody saw end, and nobody is asked over and over."""
    operator = make_operator()
    operator.start(*FLAGS)
    runs.apply(slow("one", 6))
    runs.wait_phase("one", "Training")
    outside.platform.state.lifecycle = "ended"
    status = runs.wait("one", "told", lambda status: status.get("reason") == "ClusterEnded")
    assert status["phase"] == "Training" and not finished(status)
    reachable = condition(status, "BackendReachable")
    assert (reachable["status"], reachable["reason"]) == ("False", "ClusterEnded")
    assert "is ended: its nodes and storage go with it" in reachable["message"]
    runs.apply(quick("two"))
    runs.wait("two", "waiting", waits_for("ClusterEnded"))
    commands = operator.health()["remote_commands"]
    polled = len(outside.platform.seen)
    until("some looks later", lambda: len(outside.platform.seen) >= polled + 3)
    assert operator.health()["remote_commands"] == commands, "a cluster that is no more is not asked"

    outside.platform.state.lifecycle = "active"  # it was said in error: nothing is lost
    assert runs.wait_finished("one")["phase"] == "Succeeded"
    assert runs.wait_finished("two")["phase"] == "Succeeded"


@pytest.mark.full
def test_an_idle_cluster_is_billed_and_somebody_is_told(
    make_operator: MakeOperator, outside: Outside, runs: Speedruns
) -> None:
    make_operator(SPEEDRUN_PLATFORM__REMIND_SECONDS="3", SPEEDRUN_WATCH__NAMESPACES=runs.namespace).start(*FLAGS)
    runs.apply(quick("one"))
    log = runs.wait_finished("one")["logPath"]
    told = until("told", lambda: [each for each in runs.events("one") if each[1] == "ClusterIdle"])
    assert len(told) == 1
    assert "an on-demand cluster is billed until somebody ends it" in told[0][2]
    assert "choose End cluster" in told[0][2] and log in told[0][2]


def test_check_and_kubeconfig_come_in_the_same_way(
    make_operator: MakeOperator, outside: Outside, bed: Facts, tmp_path: Path
) -> None:
    operator = make_operator()

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "speedrun_operator.cli", *arguments, *FLAGS]
        environment = {**os.environ, **operator.environment()}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)

    done = command("check")
    assert done.returncode == 0, done.stdout + done.stderr
    subjects = [line.split()[0] for line in done.stdout.splitlines()]
    assert subjects[:5] == ["token", "cluster", "ssh", "credential", "api"]
    assert "is registered and known to the cluster" in done.stdout
    assert "billing      ok" in done.stdout

    path = tmp_path / "kubeconfig"
    done = command("kubeconfig", f"--output={path}")
    assert done.returncode == 0, done.stderr
    assert "speedruns" in Kubectl(bed.kubectl, path)("api-resources", "--api-group=speedrun.dev")
