"""The API server and its store go away and come back while Speedruns wait and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.faults.story import Story
from cluster.faults.unharmed import unharmed
from cluster.faults.world import World
from cluster.speedruns import Speedruns, condition, quick, slow
from cluster.waiting import until
from testbed.facts import Facts
from testbed.kubernetes import Kubernetes
from testbed.operator import Operator
from testbed.part import Place

Follow = Callable[[str], Story]


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    operator = Operator(place, bed, {"SPEEDRUN_WATCH__RESYNC_SECONDS": "5"})
    operator.install()
    operator.start()
    yield operator
    assert operator.alive, "an outage is waited for, and ends nobody"
    operator.kill()
    assert "Traceback" not in operator.log.read_text()


@pytest.fixture(autouse=True)
def _runs(operator: Operator) -> None:
    """Every test has the operator."""


def test_the_api_server_is_killed_and_comes_back(
    runs: Speedruns, story: Follow, world: World, kubernetes: Kubernetes
) -> None:
    """A run ends meanwhile, and goes on to its result; what is made afterwards is seen."""
    with story("through") as told:
        runs.apply(slow("through", 4))
        job = runs.wait_phase("through", "Training")["job"]
        kubernetes.kill("kube-apiserver")
        until("the job to end meanwhile", lambda: world.state(job) == "COMPLETED")
        kubernetes.start("kube-apiserver")
        runs.wait_finished("through")
    unharmed(runs, world, told, "through", job)
    with story("after") as after:
        runs.apply(quick("after"))
        job = runs.wait_finished("after")["job"]
    unharmed(runs, world, after, "after", job)


@pytest.mark.full
@pytest.mark.parametrize("how", ["paused", "killed"])
def test_the_api_server_is_away_for_longer_than_kopf_tries(
    how: str, runs: Speedruns, story: Follow, world: World, kubernetes: Kubernetes
) -> None:
    """Kopf gives a request up after about a minute; deletions, new objects and ends are handled all the same."""
    with story("live") as live, story("goes") as goes, story("new") as new:
        runs.apply(slow("live", 100), slow("goes", 300))
        job, other = (runs.wait_phase(name, "Training")["job"] for name in ("live", "goes"))
        uid = runs.get("goes")["metadata"]["uid"]
        kubernetes.kill("kube-apiserver") if how == "killed" else kubernetes.pause("kube-apiserver")
        until("a hundred seconds to pass for the job", lambda: world.state(job) == "COMPLETED", timeout=150)
        kubernetes.start("kube-apiserver") if how == "killed" else kubernetes.resume("kube-apiserver")
        runs.wait_finished("live", timeout=90)
        assert runs.status("goes")["phase"] == "Training"
        runs.apply(quick("new"))
        runs.wait_finished("new", timeout=90)
        runs.kubectl("delete", "speedrun", "goes", "-n", runs.namespace, "--timeout=60s")
    unharmed(runs, world, live, "live", job)
    unharmed(runs, world, new, "new", runs.status("new")["job"])
    assert (world.jobs_ever(uid), world.starts(uid)[0], world.state(other)) == ([other], [other], "CANCELLED")
    assert not any(world.starts(uid)[1:])
    assert goes.never_went_back() and goes.phases()[-1] == "Training"


@pytest.mark.full
def test_the_api_server_is_frozen_for_some_seconds(
    runs: Speedruns, story: Follow, world: World, kubernetes: Kubernetes
) -> None:
    with story("frozen") as told:
        runs.apply(slow("frozen", 3))
        job = runs.wait_phase("frozen", "Training")["job"]
        kubernetes.pause("kube-apiserver")
        until("the job to end meanwhile", lambda: world.state(job) == "COMPLETED")
        kubernetes.resume("kube-apiserver")
        runs.wait_finished("frozen")
    unharmed(runs, world, told, "frozen", job)


@pytest.mark.full
def test_etcd_is_restarted(runs: Speedruns, story: Follow, world: World, kubernetes: Kubernetes) -> None:
    """While it is away a run ends and nothing can be stored, nor read; what was stored before is there after it."""
    with story("stored") as told, story("waits") as waits:
        runs.apply(slow("stored", 4))
        job = runs.wait_phase("stored", "Training")["job"]
        kubernetes.kill("etcd")
        until("the job to end meanwhile", lambda: world.state(job) == "COMPLETED")
        kubernetes.start("etcd")
        kubernetes.wait_ready("kube-apiserver")
        runs.apply(quick("waits"))
        runs.wait_finished("stored")
        runs.wait_finished("waits")
    status = unharmed(runs, world, told, "stored", job)
    assert condition(status, "Finished")["reason"] == "TargetReached"
    unharmed(runs, world, waits, "waits", runs.status("waits")["job"])
