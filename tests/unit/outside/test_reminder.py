"""Events about a token that runs out and a cluster that is billed for nothing: to whom, and how often."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from speedrun_operator import reminder
from speedrun_operator.api.names import Identity
from speedrun_operator.api.resource import Resource
from speedrun_operator.kube.client import Kube, Unavailable
from speedrun_operator.lifecycle.situation import Notice
from speedrun_operator.reminder import Reminder

NOW = datetime.now(UTC)


def raw(name: str, ended: str | None = None) -> dict[str, Any]:
    status = {"completionTime": ended, "logPath": f"~/speedruns/lab/{name}/log"} if ended else {}
    metadata = {"namespace": "lab", "name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-12-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"recipe": {"name": "replay"}}, "status": status}


class Lists(Kube):
    """An API server with these Speedruns."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = list(objects)
        self.away = False
        self.lists = 0

    async def each_speedrun(self, namespace: str | None, *, labels: str = "", chunk: int = 500) -> Any:
        self.lists += 1
        if self.away:
            raise Unavailable(0, "away")
        for each in self.objects:
            yield each


class World:
    """A reminder whose clock and surroundings a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *objects: dict[str, Any]) -> None:
        self.kube = Lists(*objects)
        self.live: list[Resource] = []
        self.end: datetime | None = None
        self.monotonic = 0.0
        self.told: list[tuple[str, str, str]] = []
        monkeypatch.setattr(reminder.time, "monotonic", lambda: self.monotonic)
        monkeypatch.setattr(reminder.events, "post", self._post)
        self.one = Reminder(
            self.kube,
            lambda: self.live,
            lambda: self.end,
            namespaces=[],
            root="~/speedruns",
            warn=timedelta(minutes=10),
            remind_seconds=900,
        )

    async def _post(self, kube: Kube, identity: Identity, notice: Notice, now: datetime) -> None:
        assert notice.warning
        self.told.append((identity.name, notice.reason, notice.message))

    async def look(self, after: float = 0) -> list[tuple[str, str]]:
        """What is told when it looks after so many seconds."""
        self.monotonic += after
        self.told.clear()
        await self.one._token()
        await self.one._idle()
        return [(name, reason) for name, reason, _ in self.told]


async def test_a_token_that_runs_out_is_told_once_to_each_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.live = [Resource.parse(raw("one"))]
    assert await world.look() == [], "a token without an end"
    world.end = NOW + timedelta(hours=1)
    assert await world.look() == [], "a token that lasts"
    world.end = NOW + timedelta(minutes=5)
    assert await world.look() == [("one", "TokenExpires")]
    world.live.append(Resource.parse(raw("two")))
    assert await world.look() == [("two", "TokenExpires")]
    assert await world.look() == []
    world.end = NOW + timedelta(minutes=6)
    assert await world.look() == [("one", "TokenExpires"), ("two", "TokenExpires")], "the next token's end"


async def test_an_idle_cluster_is_told_on_the_last_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, raw("late", "2026-12-01T10:00:00Z"), raw("early", "2026-12-01T09:00:00Z"))
    assert await world.look(899) == []
    assert await world.look(2) == [("late", "ClusterIdle")]
    message = world.told[0][2]
    assert "since 2026-12-01T10:00:00Z" in message and "~/speedruns/lab/late/log" in message
    assert await world.look(10_000) == [], "once"
    world.live = [Resource.parse(raw("new"))]
    assert await world.look() == []
    world.live = []
    assert await world.look(899) == []
    assert await world.look(2) == [("late", "ClusterIdle")], "and again after another run"


async def test_a_live_run_that_is_not_known_here_yet_is_no_idle_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, raw("done", "2026-12-01T09:00:00Z"), raw("live"))
    assert await world.look(1000) == []


async def test_without_any_run_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert await world.look(1000) == []
    assert world.kube.lists == 1, "and nobody is asked again"
    assert await world.look(1000) == []
    assert world.kube.lists == 1


async def test_an_api_server_that_is_away_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, raw("done", "2026-12-01T09:00:00Z"))
    world.kube.away = True
    assert await world.look(1000) == []
    world.kube.away = False
    assert await world.look(5) == [("done", "ClusterIdle")]
