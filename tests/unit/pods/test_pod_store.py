"""What is known of pods over a watch that ends, breaks, grows old or is forbidden: a real HTTP server says it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.backends.base import AllocationRef, Snapshot
from speedrun_operator.backends.pods import store as stores
from speedrun_operator.backends.pods.backend import PodsBackend
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.backends.pods.store import Store
from speedrun_operator.kube import pods as kube_pods
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.observation import JobState
from speedrun_operator.questions import Questions
from unit.pods.server import END, NAMESPACES, Json, Server, serving


def pod(name: str, version: int, uid: str = "uid-1", namespace: str = "a", **status: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"containers": [{"name": "train"}]}, "status": status}


def event(type_: str, *pod_: Any, **status: Any) -> Json:
    return {"type": type_, "object": pod(*pod_, **status)}


def fault(code: int) -> Json:
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "says the API server"}}


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Server, Pods]]:
    monkeypatch.setattr(stores, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(stores, "RETRY_LONGEST", 0.05)
    monkeypatch.setattr(stores, "STREAM_LEAST", 0.01)
    server = Server()
    async with serving(server) as pods:
        yield server, pods


@pytest.fixture
def server(served: tuple[Server, Pods]) -> Server:
    return served[0]


@pytest.fixture
async def store(served: tuple[Server, Pods]) -> AsyncIterator[Store]:
    made = Store(served[1])
    yield made
    await made.close()


async def until(holds: Callable[[], Any], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never comes to be"
        await asyncio.sleep(0.005)


def phase(store: Store, name: str) -> str | None:
    known = store.get(name)
    return known["status"].get("phase") if known is not None else None


async def test_what_is_listed_and_what_changes_is_known(server: Server, store: Store) -> None:
    server.lists["a"] = ([pod("one", 5, phase="Pending")], 10)
    await store.start()
    assert (phase(store, "one"), store.fault("a"), store.fault("b")) == ("Pending", None, None)
    server.say(event("MODIFIED", "one", 11, phase="Running"), event("ADDED", "two", 12, phase="Pending"))
    await until(lambda: phase(store, "two"))
    assert phase(store, "one") == "Running"
    store.changed.clear()
    server.say(event("DELETED", "one", 13, phase="Failed"))
    await until(lambda: store.get("one") is None)
    last = store.last("one")
    assert last is not None and last["status"] == {"phase": "Failed"} and store.changed == {"one"}


async def test_a_stream_that_ends_is_gone_on_with_from_the_last_bookmark(server: Server, store: Store) -> None:
    await store.start()
    server.say(event("ADDED", "one", 11), {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}}, END)
    await until(lambda: ("a", "40") in server.watched)
    assert server.listed.count("a") == 1
    assert store.get("one") is not None and store.fault("a") is None


async def test_streams_that_end_as_soon_as_they_begin_are_not_asked_for_without_a_pause(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "STREAM_LEAST", 0.2)
    server.say(*[END] * 50)
    await store.start()
    began = time.monotonic()
    await until(lambda: [each for each, _ in server.watched].count("a") >= 4)
    assert time.monotonic() - began > 0.5


@pytest.mark.parametrize("told_in", ["the stream", "the answer"])
async def test_a_version_too_old_to_go_on_from_is_followed_by_a_list_and_is_no_fault(
    server: Server, store: Store, told_in: str
) -> None:
    server.lists["a"] = ([pod("gone", 5), pod("stays", 6, phase="Pending")], 10)
    await store.start()
    faults: list[object] = []
    store.news.clear()
    server.lists["a"] = ([pod("stays", 20, phase="Running"), pod("new", 21)], 30)
    if told_in == "the answer":
        server.old.add("10")
        server.say(END)
    else:
        server.say(fault(410))
    while server.listed.count("a") < 2 or phase(store, "stays") != "Running":
        faults.append(store.fault("a"))
        await asyncio.sleep(0.001)
    assert set(faults) == {None}
    assert store.get("new") is not None and store.get("gone") is None
    last = store.last("gone")
    assert last is not None and last["metadata"]["resourceVersion"] == "5"
    assert {"gone", "new", "stays"} <= store.changed


async def test_another_fault_of_the_watch_makes_that_scope_stale_until_it_is_listed_again(
    server: Server, store: Store
) -> None:
    server.lists["a"] = ([pod("one", 5)], 10)
    await store.start()
    server.forbidden.add("a")
    server.say(fault(500))
    await until(lambda: store.fault("a") is not None)
    assert store.fault("b") is None
    assert store.get("one") is not None, "what is not known to be gone is kept"
    server.forbidden.clear()
    server.lists["a"] = ([], 20)
    await until(lambda: store.fault("a") is None)
    assert store.get("one") is None and store.last("one") is not None


async def test_a_silent_watch_makes_its_scope_stale(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_pods, "WATCH_SILENCE", 0.1)
    monkeypatch.setattr(stores, "RETRY_FIRST", 30.0)
    await store.start()
    assert store.fault("a") is None
    await until(lambda: store.fault("a") is not None)


async def test_a_scope_that_is_forbidden_silences_no_other(server: Server, store: Store) -> None:
    server.forbidden.add("b")
    server.lists["a"] = ([pod("one", 5)], 10)
    await store.start()
    refused = store.fault("b")
    assert store.fault("a") is None and refused is not None and refused.status == 403
    server.forbidden.clear()
    await until(lambda: store.fault("b") is None)


async def test_of_what_is_not_watched_nothing_is_known(store: Store) -> None:
    await store.start()
    assert store.fault(store.scope("elsewhere")) is not None


async def test_what_was_made_after_a_list_is_not_taken_for_gone(server: Server, store: Store) -> None:
    await store.start()
    store.put(pod("one", 50))
    server.say(fault(410))
    await until(lambda: server.listed.count("a") == 2)
    await until(lambda: ("a", "10") in server.watched[2:])
    assert store.get("one") is not None and store.last("one") is None


async def test_an_answer_that_comes_late_changes_nothing(server: Server, store: Store) -> None:
    server.lists["a"] = ([pod("one", 5, phase="Running")], 10)
    await store.start()
    store.put(pod("one", 4, phase="Pending"))
    assert phase(store, "one") == "Running"
    store.put(pod("one", 11, phase="Failed"))
    assert phase(store, "one") == "Failed"
    server.say(event("DELETED", "one", 12))
    await until(lambda: store.get("one") is None)
    store.put(pod("one", 11, phase="Running"))
    assert store.get("one") is None, "a pod that is gone does not come back"
    store.put(pod("one", 13, "uid-2", phase="Pending"))
    assert phase(store, "one") == "Pending", "another one of its name does"


async def test_of_a_forbidden_namespace_nothing_is_said_and_of_the_others_all(
    server: Server, served: tuple[Server, Pods]
) -> None:
    server.forbidden.add("b")
    backend = PodsBackend(served[1], PodSite(), "c1")
    now = datetime.now(UTC)
    refs = {name: AllocationRef(Identity(name, "run", f"uid-{name}"), 0, now, "modded-nanogpt") for name in NAMESPACES}
    names = {name: backend.name_of(ref) for name, ref in refs.items()}
    try:
        both = await backend.observe([refs["b"], refs["a"]])
        alone = await backend.observe([refs["b"]])
    finally:
        await backend.close()
    assert both.error is None and both.observed[names["a"]].state is JobState.UNSEEN
    assert set(both.observed) == {names["a"]} and set(both.silent) == {names["b"]}
    assert alone.error is not None and alone.error.reason == both.silent[names["b"]].reason == "Forbidden"
    questions = Questions(backend, {name: [ref] for name, ref in refs.items()}, {})
    assert questions.unanswered("a", both) is None
    assert questions.unanswered("b", both) == both.silent[names["b"]]
    assert questions.unanswered("a", Snapshot(error=alone.error)) == alone.error
