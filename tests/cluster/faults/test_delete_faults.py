"""Deletion is never held for longer than it says, and ends the jobs of what was deleted, and no others."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.faults.conftest import MakeOperator
from cluster.faults.slurm_nodes import FIRST, SECOND, on
from cluster.faults.story import Story
from cluster.faults.world import OTHER, USER, World
from cluster.speedruns import Speedruns, condition, quick, slow
from cluster.waiting import until
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.login import Login
from testbed.operator import Operator
from testbed.part import Place
from testbed.relay import Relay

Follow = Callable[[str], Story]
RELEASE_SECONDS = 3


@pytest.fixture(scope="module")
def gateway(bed: Facts) -> Iterator[Relay]:
    with Relay(bed.ssh_port) as relay:
        yield relay


@pytest.fixture
def operator(
    bed: Facts, make_operator: MakeOperator, gateway: Relay, namespace: str, tmp_path: Any
) -> Iterator[Operator]:
    """It watches the test's namespace only, and lets a deletion wait for four seconds."""
    pins = tmp_path / "known_hosts"
    pins.write_text(bed.ssh_known_hosts.read_text().replace(f":{bed.ssh_port} ", f":{gateway.port} "))
    operator = make_operator(
        SPEEDRUN_LOGIN__PORT=str(gateway.port),
        SPEEDRUN_LOGIN__KNOWN_HOSTS_FILE=str(pins),
        SPEEDRUN_SLURM__RELEASE_SECONDS=str(RELEASE_SECONDS),
        SPEEDRUN_WATCH__RESYNC_SECONDS="5",
        SPEEDRUN_WATCH__NAMESPACES=namespace,
    )
    operator.start()
    yield operator
    gateway.heal()


def cluster_of(job_name: str) -> str:
    """The eight characters of this cluster in its jobs' names."""
    return job_name.split("-")[1]


def test_with_the_login_away_it_goes_and_its_job_ends_when_the_login_is_back(
    operator: Operator, runs: Speedruns, login: Login, gateway: Relay, world: World
) -> None:
    """BR-052; and the orphan alone is ended: no other cluster's job, no other person's, none of another namespace."""
    runs.apply(slow("left", 600))
    orphan = runs.wait_phase("left", "Training")["allocations"][0]["name"]
    ours, someone = cluster_of(orphan), str(uuid.uuid4())
    comment = f"speedrun {runs.namespace}/left"
    others = [
        (USER, f"sr-otherclu-{someone}-0", comment),
        (USER, f"sr-{ours}-{someone}-0", "speedrun elsewhere/left"),
        (USER, f"sr-{ours}-{someone}-1", "made by hand"),
        (USER, f"sr-{ours}-by-hand", comment),
        (OTHER, f"sr-{ours}-{someone}-2", comment),
    ]
    numbers = [world.sbatch(*each) for each in others]
    gateway.turning_away = True
    gateway.cut()
    began = time.monotonic()
    runs.kubectl("delete", "speedrun", "left", "-n", runs.namespace, "--timeout=30s")
    assert time.monotonic() - began < RELEASE_SECONDS + 15
    assert world.live(orphan)
    told = [text for type_, reason, text in runs.events("left") if (type_, reason) == ("Warning", "JobNotCancelled")]
    assert told and "deleted without knowing that its job ended (LoginBusy: " in told[0]
    gateway.heal()
    until("resync to end the orphan", lambda: not world.live(orphan), timeout=60)
    assert [world.state(number) for number in numbers] == ["RUNNING"] * len(others)
    world.admin("scancel", *numbers)
    assert f"({orphan}) has no Speedrun in namespace {runs.namespace} any more: ended" in operator.log.read_text()


@pytest.mark.full
def test_a_namespace_with_live_and_queued_runs_goes(operator: Operator, runs: Speedruns, world: World) -> None:
    """The one that waits has every core of a node before it."""
    full = {"gpus": {"count": 8}}
    runs.apply(on(FIRST, slow("live", 600), **full), on(SECOND, slow("other", 600), **full))
    names = [runs.wait_phase(name, "Training")["allocations"][0]["name"] for name in ("live", "other")]
    runs.apply(on(FIRST, slow("queued", 600), **full), quick("done"))
    waits = runs.wait("queued", "waiting", lambda each: bool(each.get("reason")))
    assert waits["phase"] == "Queued"
    names.append(waits["allocations"][0]["name"])
    runs.wait_finished("done")
    runs.kubectl("delete", "namespace", runs.namespace, "--timeout=60s")
    assert [world.live(name) for name in names] == [False] * 3


WAIT = 'touch "$notes/reached"; while [ ! -e "$notes/go" ]; do sleep 0.1; done; exec "$real" "$@"'


def test_while_the_submission_is_under_way(
    operator: Operator, runs: Speedruns, login: Login, gateway: Relay, world: World
) -> None:
    """Its job is made when the Speedrun has gone, finds the fence, and ends at its first line."""
    with world.programs(sbatch=WAIT) as notes:
        gateway.cut()
        runs.apply(slow("fenced", 600))
        until("sbatch to be called", (notes / "reached").exists)
        uid = runs.get("fenced")["metadata"]["uid"]
        gateway.cut()
        runs.wait("fenced", "of unknown outcome", lambda each: each.get("reason") == "SubmissionUnknown")
        runs.kubectl("delete", "speedrun", "fenced", "-n", runs.namespace, "--timeout=30s")
        assert world.jobs_ever(uid) == []
        (notes / "go").touch()
        job = until("the late job to be made", lambda: world.jobs_ever(uid))
        until("the late job to end", lambda: world.state(job[0]) in ("COMPLETED", "CANCELLED"))
    gateway.cut()
    assert len(job) == 1 and not any(world.starts(uid))  # nothing started in its ledger, nor in the next, fenced too
    if (log := world.ledgers(uid)[0] / "log").exists():
        assert "the owner of this allocation is cancelled" in log.read_text()


SLOW = '[ ! -e "$notes/slow" ] || { touch "$notes/reached"; sleep 3; }; exec "$real" "$@"'


@pytest.mark.full
def test_in_the_middle_of_a_slow_poll(operator: Operator, runs: Speedruns, gateway: Relay, world: World) -> None:
    """BR-049: the poll that ends late brings nothing back, and a job that is over already cancels as well."""
    with world.programs(squeue=SLOW, scancel='"$real" "$@"; "$real" -v "$@"; exit 1') as notes:
        gateway.cut()
        runs.apply(slow("busy", 600))
        name = runs.wait_phase("busy", "Training")["allocations"][0]["name"]
        (notes / "slow").touch()
        until("a poll to be under way", (notes / "reached").exists)
        runs.kubectl("delete", "speedrun", "busy", "-n", runs.namespace, "--timeout=30s")
        (notes / "slow").unlink()
        until("its job to end", lambda: not world.live(name))
        runs.apply(quick("after"))
        assert runs.wait_finished("after")["phase"] == "Succeeded"
    gateway.cut()
    assert runs.names() == ["speedrun.speedrun.dev/after"]
    assert "Traceback" not in operator.log.read_text()


@pytest.mark.full
def test_a_finalizer_that_was_taken_away_to_force_it(operator: Operator, runs: Speedruns, world: World) -> None:
    """Deleted behind the operator's back, its job is an orphan."""
    runs.apply(slow("forced", 600))
    name = runs.wait_phase("forced", "Training")["allocations"][0]["name"]
    operator.pause()
    runs.kubectl("delete", "speedrun", "forced", "-n", runs.namespace, "--wait=false")
    patch = json.dumps({"metadata": {"finalizers": None}})
    runs.kubectl("patch", "speedrun", "forced", "-n", runs.namespace, "--type=merge", "-p", patch)
    runs.wait_gone("forced")
    operator.resume()
    until("resync to end the orphan", lambda: not world.live(name), timeout=60)


@pytest.mark.full
def test_deleted_while_the_operator_and_the_login_are_away(
    operator: Operator, runs: Speedruns, gateway: Relay, world: World, kubectl: Kubectl, place: Place
) -> None:
    runs.apply(slow("away", 600))
    name = runs.wait_phase("away", "Training")["allocations"][0]["name"]
    operator.kill()
    gateway.turning_away = True
    kubectl("delete", "speedrun", "away", "-n", runs.namespace, "--wait=false")
    assert condition(runs.status("away"), "Finished")["status"] == "False"
    operator.start()
    runs.wait_gone("away", timeout=RELEASE_SECONDS + 20)
    assert world.live(name)
    gateway.heal()
    until("resync to end the orphan", lambda: not world.live(name), timeout=60)
