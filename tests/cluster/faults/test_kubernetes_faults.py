"""The API server refuses, stumbles and goes away, and people tamper with objects, while Speedruns wait and run.

The operator reaches the API server through a proxy that answers chosen requests with a fault.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from cluster.faults.story import Story
from cluster.faults.unharmed import unharmed
from cluster.faults.world import World
from cluster.speedruns import Speedruns, condition, finished, quick, slow
from cluster.waiting import until
from testbed.facts import Facts
from testbed.faultyproxy import RESET, Fault, FaultyProxy, Seen
from testbed.kubernetes import Kubernetes
from testbed.operator import Operator
from testbed.part import Place

Follow = Callable[[str], Story]
OBJECT = "/speedruns/%s$"
STATUS = "/speedruns/%s/status$"
LIST, WATCH = r"/speedruns\?(?!.*watch=true)", r"/speedruns\?.*watch=true"
KOPF, ENGINE = "kopf/", "speedrun-operator/"
IN_FLIGHT = 0.5  # so many seconds after an answer others may come in that were sent before it
REST = 3  # more than the first pause of either client
FINALIZER = "speedrun.dev/operator"


@pytest.fixture(scope="module")
def proxy(bed: Facts, place: Place) -> Iterator[FaultyProxy]:
    part = Kubernetes(place)
    with FaultyProxy(int(bed.api_url.rpartition(":")[2]), part.pki) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place, proxy: FaultyProxy) -> Iterator[Operator]:
    operator = Operator(place, bed, {"SPEEDRUN_WATCH__RESYNC_SECONDS": "5"})
    operator.install()
    through = proxy.kubeconfig(operator.kubeconfig, operator.directory / "through-proxy")
    operator.settings["SPEEDRUN_KUBECONFIG"] = str(through)
    operator.start()
    yield operator
    operator.kill()
    assert "Traceback" not in operator.log.read_text()


@pytest.fixture(autouse=True)
def _healed(operator: Operator, proxy: FaultyProxy) -> Iterator[None]:
    yield
    proxy.heal()


SUBMITTED, FINAL, LABEL = b'"Submitted"', b'"completionTime"', b"speedrun.dev/finished"
FAULTS = {
    "conflict-after-sbatch": Fault("PATCH", STATUS, 409, 2, SUBMITTED),
    "fault-after-sbatch": Fault("PATCH", STATUS, 500, 1, SUBMITTED),
    "answer-lost-after-sbatch": Fault("PATCH", STATUS, 503, 2, SUBMITTED, passed_on=True),
    "end-refused": Fault("PATCH", STATUS, 422, 1, FINAL),
    "end-too-many-requests": Fault("PATCH", STATUS, 429, 1, FINAL, {"Retry-After": "1"}),
    "end-answer-lost": Fault("PATCH", STATUS, 503, 2, FINAL, passed_on=True),
    "finalizer-unavailable": Fault("PATCH", OBJECT, 503, 2, b"finalizers"),
    "finalizer-refused": Fault("PATCH", OBJECT, 422, 1, b"finalizers"),
    "label-unavailable": Fault("PATCH", OBJECT, 503, 1, LABEL),
}


@pytest.mark.full
def test_a_request_that_fails_costs_nothing_but_time(
    runs: Speedruns, story: Follow, world: World, proxy: FaultyProxy
) -> None:
    """BR-048, variants: also where the write took place and only its answer was lost."""
    faults = {name: proxy.fail(replace(fault, path=fault.path % name)) for name, fault in FAULTS.items()}
    proxy.fail(Fault("POST", r"/events$", 403, 5))
    with contextlib.ExitStack() as following:
        stories = {name: following.enter_context(story(name)) for name in faults}
        runs.apply(*(quick(name) for name in faults))
        for name in faults:
            status = runs.wait_finished(name)
            assert (status["phase"], status["val_loss"], len(status["allocations"])) == ("Succeeded", 3.2782, 1), name
            until(f"{name} to be let go of", lambda name=name: is_let_go(runs.get(name)))  # type: ignore[misc]
    for name, fault in faults.items():
        assert fault.done, name
        assert stories[name].never_went_back(), (name, stories[name].phases())
        speedrun = runs.get(name)
        uid, job = speedrun["metadata"]["uid"], speedrun["status"]["job"]
        assert (world.jobs_ever(uid), world.starts(uid)) == ([job], [[job]]), name


def is_let_go(speedrun: dict[str, Any]) -> bool:
    metadata = speedrun["metadata"]
    return "finalizers" not in metadata and metadata.get("labels", {}).get("speedrun.dev/finished") == "true"


@pytest.mark.parametrize("statuses", [(429, RESET), pytest.param((503, 500), marks=pytest.mark.full)], ids=str)
def test_a_read_that_fails_costs_nothing_but_time(
    statuses: tuple[int, ...], runs: Speedruns, story: Follow, world: World, proxy: FaultyProxy, operator: Operator
) -> None:
    """Kopf's list and watch, the resync's lists, and what a conflict makes the engine read; in an operator's start."""
    with story("live") as live, story("late") as late:
        runs.apply(slow("live", 6))
        job = runs.wait_phase("live", "Training")["job"]
        proxy.fail(Fault("PATCH", STATUS % "live", 409, len(statuses), FINAL))
        reads = ((KOPF, LIST), (KOPF, WATCH), (ENGINE, LIST), (ENGINE, OBJECT % "live"))
        faults = [  # a later one comes first
            proxy.fail(
                Fault("GET", path, status, headers={"Retry-After": str(REST)} if status == 429 else {}, agent=by)
            )
            for status, (by, path) in product(reversed(statuses), reads)
        ]
        operator.kill()
        operator.start(wait=False)
        runs.apply(quick("late"))
        for name in ("late", "live"):
            runs.wait_finished(name)
        until("each of them to have failed", lambda: all(each.done for each in faults))
    unharmed(runs, world, live, "live", job)
    unharmed(runs, world, late, "late", runs.status("late")["job"])
    assert operator.alive and operator.health()["working"]
    for told in (each for each in proxy.seen if each.fault in faults and each.fault.headers):
        assert earliest(told, proxy.seen) >= REST, told


def earliest(told: Seen, seen: list[Seen]) -> float:
    """Seconds until whoever was told to wait asked again: the engine for anything, Kopf for the same."""
    later = [each.at - told.at for each in seen if each.agent == told.agent and each.at > told.at]
    if told.agent.startswith(KOPF):
        later = [each.at - told.at for each in seen if (each.agent, each.path) == (told.agent, told.path)]
    return min((after for after in later if after > IN_FLIGHT), default=float("inf"))


@pytest.mark.full
def test_a_watch_that_is_cut_off_goes_on(runs: Speedruns, story: Follow, world: World, proxy: FaultyProxy) -> None:
    """Again and again, with refusals in between: what is deleted meanwhile is heard of all the same."""
    with story("heard") as told:
        runs.apply(slow("heard", 6), slow("goes", 300))
        job = runs.wait_phase("heard", "Training")["job"]
        name = runs.wait_phase("goes", "Training")["allocations"][0]["name"]
        faults = [proxy.fail(Fault("GET", WATCH, status, agent=KOPF)) for status in (RESET, 503)]
        proxy.cut()
        runs.kubectl("delete", "speedrun", "goes", "-n", runs.namespace, "--timeout=30s")
        proxy.cut()
        runs.wait_finished("heard")
    assert all(each.done for each in faults) and not world.live(name)
    unharmed(runs, world, told, "heard", job)


@pytest.mark.full
def test_a_finalizer_that_was_taken_away_is_put_back(runs: Speedruns, world: World) -> None:
    runs.apply(slow("bare"))
    name = runs.wait_phase("bare", "Training")["allocations"][0]["name"]
    runs.kubectl(
        "patch", "speedrun", "bare", "-n", runs.namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
    )
    until("the finalizer to be back", lambda: runs.get("bare")["metadata"].get("finalizers") == [FINALIZER])
    assert runs.status("bare")["phase"] == "Training"
    runs.kubectl("delete", "speedrun", "bare", "-n", runs.namespace, "--timeout=30s")
    assert not world.live(name)


@pytest.mark.full
def test_annotations_stripped_and_labels_touched(runs: Speedruns, story: Follow, world: World) -> None:
    """BR-047: as `kubectl replace` from a clean manifest does, to a live Speedrun and to a finished one."""
    with story("synced") as told:
        runs.apply(slow("synced", 5))
        job = runs.wait_phase("synced", "Training")["job"]
        replace_object(runs, slow("synced", 5))
        assert runs.wait_finished("synced")["phase"] == "Succeeded"
        replace_object(runs, slow("synced", 5))
        runs.kubectl("label", "speedrun", "synced", "-n", runs.namespace, "touched=yes")
        until("it to be let go of again", lambda: is_let_go(runs.get("synced")))
    status = runs.status("synced")
    assert (status["phase"], status["job"], len(status["allocations"])) == ("Succeeded", job, 1)
    assert told.never_went_back()
    assert world.jobs_ever(runs.get("synced")["metadata"]["uid"]) == [job]


def replace_object(runs: Speedruns, manifest: dict[str, Any]) -> None:
    """`kubectl replace`: annotations, labels and finalizers that the manifest does not have are gone."""
    runs.kubectl("replace", "-n", runs.namespace, "-f", "-", stdin=json.dumps(manifest))


def test_deleted_and_made_again_under_the_same_name(runs: Speedruns, world: World) -> None:
    runs.apply(slow("twin"))
    first = runs.wait_phase("twin", "Training")["allocations"][0]["name"]
    uid = runs.get("twin")["metadata"]["uid"]
    runs.kubectl(
        "replace", "--force", "-n", runs.namespace, "-f", "-", stdin=json.dumps(quick("twin", valLoss="3.2000"))
    )
    assert runs.get("twin")["metadata"]["uid"] != uid
    status = runs.wait_finished("twin")
    assert (status["phase"], status["val_loss"], len(status["allocations"])) == ("Succeeded", 3.2, 1)
    assert status["allocations"][0]["name"] != first and not world.live(first)
    assert len(world.jobs_ever(uid)) == 1
    assert world.jobs_ever(runs.get("twin")["metadata"]["uid"]) == [status["job"]]


@pytest.mark.parametrize("moment", ["live", pytest.param("finished", marks=pytest.mark.full)])
def test_restored_from_a_backup_with_its_status(moment: str, runs: Speedruns, world: World, story: Follow) -> None:
    """Nothing of another object's jobs is taken for its own: what was live runs anew, what was finished stays so."""
    runs.apply(slow("saved") if moment == "live" else quick("saved"))
    status = (
        runs.wait_phase("saved", "Training")
        if moment == "live"
        else runs.wait("saved", "let go of", lambda each: finished(each) and is_let_go(runs.get("saved")))
    )
    backup = runs.get("saved")
    runs.kubectl("delete", "speedrun", "saved", "-n", runs.namespace, "--timeout=30s")
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        backup["metadata"].pop(field, None)
    if moment == "live":
        backup["spec"]["recipe"]["parameters"] = quick("saved")["spec"]["recipe"]["parameters"]
    runs.kubectl("create", "-n", runs.namespace, "-f", "-", stdin=json.dumps(backup))
    backup["metadata"]["resourceVersion"] = runs.get("saved")["metadata"]["resourceVersion"]
    restore_status(runs, "saved", backup["status"])
    uid = runs.get("saved")["metadata"]["uid"]
    if moment == "finished":
        again = runs.status("saved")
        assert (again["phase"], again["job"], world.jobs_ever(uid)) == ("Succeeded", status["job"], [])
        return
    again = runs.wait_finished("saved")
    assert (again["phase"], again["val_loss"], len(again["allocations"])) == ("Succeeded", 3.2782, 1)
    assert uid in again["allocations"][0]["name"] and again["job"] != status["job"]
    assert world.jobs_ever(uid) == [again["job"]]


def restore_status(runs: Speedruns, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps([{"op": "add", "path": "/status", "value": status}])
    runs.kubectl(
        "patch", "speedrun", name, "-n", runs.namespace, "--subresource=status", "--type=json", "-p", patch
    )  # fmt: skip
    assert condition(status, "Admitted")
