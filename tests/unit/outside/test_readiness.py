"""What a Speedrun waits for while its cluster comes up, and what the poller makes of the platform's answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedrun_operator.api.cluster import ClusterState, Lifecycle, Ready
from speedrun_operator.lifecycle.readiness import awaited, gone
from speedrun_operator.platform import bodies
from speedrun_operator.platform.errors import Unanswered
from speedrun_operator.platform.readiness import Readiness
from testbed.platform import CLUSTER, Person, Platform
from unit.outside.conftest import Connect

YES, NO = Ready(True, True), Ready(True, False, "starting")
ALL = ClusterState(CLUSTER, "h100", Lifecycle.ACTIVE, "active", "sunk", YES, ("ceph",), YES, YES, YES)


@pytest.mark.parametrize(
    ("facts", "reason", "says"),
    [
        (None, None, ""),
        (ALL, None, ""),
        (ClusterState(CLUSTER), None, ""),
        (replace(ALL, slurm=Ready(), storage_ready=Ready(), ssh=Ready(), nodes=Ready(), scheduler=None), None, ""),
        (replace(ALL, scheduler="SUNK"), None, ""),
        (
            replace(ALL, lifecycle=Lifecycle.PROVISIONING, state="provisioning", slurm=NO),
            "ClusterProvisioning",
            "the cluster h100 is provisioning",
        ),
        (replace(ALL, lifecycle=Lifecycle.FAILED, state="failed"), "ClusterProvisioning", "look at it in the console"),
        (replace(ALL, lifecycle=Lifecycle.OTHER, state="resizing"), None, ""),
        (replace(ALL, lifecycle=Lifecycle.OTHER, state="resizing", slurm=NO), "SlurmNotReady", "is not ready"),
        (replace(ALL, slurm=NO, storage_ready=NO, ssh=NO), "SlurmNotReady", "Slurm of the cluster h100 is not ready"),
        (replace(ALL, storage_ready=NO, ssh=NO), "StorageNotReady", "storage (ceph) of the cluster h100 is not ready"),
        (replace(ALL, storage_ready=NO, storage=()), "StorageNotReady", "storage (none configured)"),
        (replace(ALL, ssh=NO), "SshNotReady", "SSH access of the cluster h100 is not ready: starting"),
        (replace(ALL, nodes=NO), "SlurmNotReady", "the platform says that h100 is ready, but sinfo does not: starting"),
        (replace(ALL, scheduler="kubernetes"), "SchedulerNotSunk", "use one whose scheduler is SUNK, or backend Pods"),
        (replace(ALL, lifecycle=Lifecycle.ENDED, state="ended"), "ClusterEnded", "the cluster h100 is ended"),
        (replace(ALL, lifecycle=Lifecycle.ENDING, state="ending", scheduler="x"), "ClusterEnded", "is ending"),
    ],
)
def test_what_is_awaited(facts: ClusterState | None, reason: str | None, says: str) -> None:
    waiting = awaited(facts)
    assert (waiting.reason if waiting else None) == reason
    assert waiting is None or says in waiting.message
    assert waiting is None or waiting.permanent == (reason == "SchedulerNotSunk")


def test_only_a_cluster_that_has_ended_is_not_asked_any_more() -> None:
    assert gone(replace(ALL, lifecycle=Lifecycle.ENDING)) is None
    assert gone(None) is None
    assert gone(replace(ALL, lifecycle=Lifecycle.ENDED)) is not None


@pytest.mark.parametrize(
    ("word", "lifecycle"),
    [("provisioning", "provisioning"), ("ACTIVE", "active"), ("terminated", "ended"), ("ending", "ending"), ("", None)],
)
def test_words_for_a_lifecycle(word: str, lifecycle: str | None) -> None:
    cluster = bodies.cluster({"id": "x", "status": {"lifecycleState": word}})
    assert cluster.lifecycle == lifecycle


@pytest.mark.parametrize(
    ("status", "known", "ready"),
    [("True", True, True), (True, True, True), ("False", True, False), ("true", True, False), ("Unknown", True, False)],
)
def test_ready_is_the_string_true(status: Any, known: bool, ready: bool) -> None:
    options = bodies.parsed(bodies.Options, {"scheduler": {"ready": {"status": status, "new": 1}}}, "options")
    assert options.scheduler.ready is not None
    found = options.scheduler.ready.ready()
    assert (found.known, found.ready) == (known, ready)


@pytest.mark.parametrize("status", ["True", True])
def test_ready_may_be_the_bare_status(status: Any) -> None:
    options = bodies.parsed(bodies.Options, {"scheduler": {"ready": status}}, "options")
    assert options.scheduler.ready is not None and options.scheduler.ready.ready() == YES


@pytest.mark.parametrize(
    "body", [{"scheduler": None}, {"storage": None}, {"scheduler": {"configured": None, "ready": {"status": None}}}]
)
def test_a_null_in_the_options_is_unknown(body: Any) -> None:
    options = bodies.parsed(bodies.Options, body, "options")
    assert (options.scheduler.name, options.storage.kinds) == (None, ())


@pytest.mark.parametrize(
    "body", [{"status": None}, {"status": {"lifecycleState": None}}, {"spec": None}, {"spec": {"name": None}}]
)
def test_a_null_in_a_cluster_is_unknown(body: Any) -> None:
    cluster = bodies.cluster({"id": "x", **body})
    assert (cluster.id, cluster.spec.name, cluster.lifecycle) == ("x", "", None)


@pytest.mark.parametrize(
    ("configured", "kinds"),
    [
        ({"ceph": "configured", "weka": "configured"}, ("ceph", "weka")),
        ({"ceph": "none", "nfs": "configured"}, ("nfs",)),
        (["weka"], ("weka",)),
        ({"ceph": True, "nfs": False}, ("ceph",)),
        (None, ()),
    ],
)
def test_kinds_of_storage(configured: Any, kinds: tuple[str, ...]) -> None:
    options = bodies.parsed(bodies.Options, {"storage": {"configured": configured}}, "options")
    assert options.storage.kinds == kinds


@pytest.mark.parametrize("body", [[], {}, {"items": {}}, {"items": [{"spec": {}}]}, "x", None, 3])
def test_another_shape_is_told_and_no_traceback(body: Any) -> None:
    try:
        assert bodies.clusters(body) == []
    except Unanswered as error:
        assert "another shape than expected" in str(error) or "holds no list of clusters" in str(error)


@pytest.mark.parametrize(
    "text", ["", "hello", "{}", "[]", '{"kubeconfig": ""}', '{"data": "!ü"}', "null", "bm90IG9uZQ=="]
)
def test_an_answer_without_a_kubeconfig(text: str) -> None:
    with pytest.raises(Unanswered, match="holds no kubeconfig"):
        bodies.kubeconfig(text)


@pytest.mark.parametrize(
    "text",
    [
        "kubeconfig: |\n  clusters: []\n  users: []\n",
        "kubeconfig: {clusters: [], users: []}",
        '{"data": {"kubeconfig": "clusters: []"}}',
        "data: Y2x1c3RlcnM6IFtdCg==",
        "Y2x1c3RlcnM6IFtdCg==",
    ],
)
def test_a_wrapped_kubeconfig_is_unwrapped(text: str) -> None:
    assert yaml.safe_load(bodies.kubeconfig(text))["clusters"] == []


def test_a_page_in_place_of_a_kubeconfig_is_told() -> None:
    with pytest.raises(Unanswered, match="an HTML page: a proxy or a sign-in page"):
        bodies.kubeconfig("<!DOCTYPE html><title>clusters: sign in</title>")


def poller(api: Any, nodes: list[Ready] | None = None) -> tuple[Readiness, list[ClusterState]]:
    told: list[ClusterState] = []

    async def ask() -> Ready:
        assert nodes
        return nodes.pop(0)

    return Readiness(api, CLUSTER, told.append, seconds=30, nodes=None if nodes is None else ask), told


async def test_a_cluster_comes_up_step_by_step(platform: Platform, connect: Connect) -> None:
    state = platform.state
    state.lifecycle, state.slurm, state.storage_ready, state.ssh_ready = "provisioning", "False", "False", False
    nodes = [Ready(True, False, "all* 2 down"), YES, NO]
    readiness, told = poller(connect(), nodes)
    reasons = []
    for change in (
        {},
        {"lifecycle": "active"},
        {"slurm": "True"},
        {"storage_ready": "True"},
        {"ssh_ready": True},
        {},
        {},
    ):
        for name, value in change.items():
            setattr(state, name, value)
        assert await readiness.once() == 0
        waiting = awaited(readiness.facts)
        reasons.append(waiting.reason if waiting else None)
    assert reasons == [
        "ClusterProvisioning",
        "SlurmNotReady",
        "StorageNotReady",
        "SshNotReady",
        "SlurmNotReady",
        None,
        None,
    ], "the last word before a submission is sinfo's"
    assert len(nodes) == 1, "a yes of sinfo is not asked for again"
    assert len(told) == 6, "what did not change is not told"


async def test_sinfo_is_asked_again_after_the_cluster_was_unready(platform: Platform, connect: Connect) -> None:
    nodes = [YES, NO]
    readiness, _ = poller(connect(), nodes)
    for ready in ("True", "False", "True"):
        platform.state.slurm = ready
        await readiness.once()
    assert nodes == []
    assert awaited(readiness.facts) is not None


async def test_what_is_known_stays_while_the_api_is_away(
    platform: Platform, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    readiness, told = poller(connect())
    await readiness.once()
    platform.fail(503, 60, retry_after="90")
    assert await readiness.once() == 90, "asked again when the API says so"
    platform.fail(503, 60)
    assert await readiness.once() is None
    assert len(told) == 1 and awaited(readiness.facts) is None
    assert caplog.text.count("the cluster's readiness is not known") == 1, "said once"
    platform.heal()
    assert await readiness.once() == 0
    assert "tells the cluster's readiness again" in caplog.text


async def test_a_wait_that_the_api_asks_for_is_kept(platform: Platform, connect: Connect) -> None:
    platform.fail(503, 60, retry_after="600")
    readiness, _ = poller(connect())
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)
        raise asyncio.CancelledError

    readiness._sleep = note
    with pytest.raises(asyncio.CancelledError):
        await readiness.run()
    assert 600 <= waited[0] <= 660


async def test_whoever_may_not_see_a_part_does_not_wait_for_it(
    platform: Platform, connect: Connect, token_file: Path
) -> None:
    token_file.write_text(platform.sign_in(Person(granted=True)))
    platform.state.slurm, platform.state.ssh_ready = "False", False
    readiness, told = poller(connect())
    assert await readiness.once() == 0
    assert awaited(readiness.facts) is None
    assert "no SSH" in told[0].ssh.message


async def test_a_cluster_that_is_not_shown_any_more_is_said_to_be(platform: Platform, connect: Connect) -> None:
    """Deleted while nobody asked, or a right that was taken away: it is not called ended."""
    readiness, told = poller(connect())
    platform.fail(404, 60)
    for _ in range(5):
        await readiness.once()
    assert told == [], "one that was never seen is not said to have gone"
    platform.heal()
    await readiness.once()
    platform.fail(404, 60)
    for _ in range(2):
        await readiness.once()
    assert awaited(readiness.facts) is None, "one slip is none"
    await readiness.once()
    waiting = awaited(readiness.facts)
    assert waiting is not None and (waiting.reason, waiting.permanent) == ("ClusterNotShown", False)
    assert "does not show the cluster speedrun-h100 to this account any more" in waiting.message
    assert gone(readiness.facts) is None
    platform.heal()
    await readiness.once()
    assert awaited(readiness.facts) is None


async def test_a_cluster_that_ended_is_said_to_have(platform: Platform, connect: Connect) -> None:
    platform.state.lifecycle = "ended"
    readiness, _ = poller(connect())
    await readiness.once()
    assert gone(readiness.facts) is not None
    assert platform.asked("/options") == [], "its parts are not asked about"
