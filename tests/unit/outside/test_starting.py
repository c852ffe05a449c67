"""The start against an API server that refuses, answers late, or is not made yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from speedrun_operator import starting
from speedrun_operator.api.names import cluster8
from speedrun_operator.crd import CrdWatch
from speedrun_operator.kube.access import Access, AccessError, Credentials
from speedrun_operator.kube.client import Kube, Refused
from speedrun_operator.settings import Settings
from speedrun_operator.starting import cluster_of


class World:
    """A server that answers one status after the other, the last one for ever; and a clock that the waits move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statuses: list[int] = [200]
        self.server = ""
        self.now = 1000.0
        self.waited: list[float] = []
        monkeypatch.setattr(starting.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(starting, "_sleep", self._sleep)

    async def answer(self, request: web.Request) -> web.Response:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.json_response({"message": "the server's words"}, status=status)

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    async def read(self, before: Credentials | None) -> Credentials:
        return Credentials(self.server, "a test", token="t")

    async def start(self, source: Any = None) -> str:
        held = Access(source or self)
        kube = Kube(held)
        try:
            return await cluster_of(kube, held, Settings(cluster_id="c"), CrdWatch(kube, None))
        finally:
            await kube.close()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    one = World(monkeypatch)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", one.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_does_not_know_us_yet_is_given_a_minute(status: int, world: World) -> None:
    world.statuses = [status] * 3 + [200]
    assert await world.start() == cluster8("c")
    world.statuses = [status]
    world.waited.clear()
    with pytest.raises(Refused, match=f"{status}: the server's words"):
        await world.start()
    assert 60 <= sum(world.waited) <= 130


async def test_what_can_never_succeed_ends_the_start_at_once(world: World) -> None:
    world.statuses = [400]
    with pytest.raises(Refused):
        await world.start()
    assert world.waited == []


async def test_a_cluster_that_is_being_made_is_asked_less_and_less_and_as_it_wishes(world: World) -> None:
    faults = [AccessError("not made yet", passing=True, retry_after=each) for each in (None,) * 5 + (300.0, 1.0)]

    class Late:
        async def read(self, before: Credentials | None) -> Credentials:
            if faults:
                raise faults.pop(0)
            return await world.read(before)

    assert await world.start(Late()) == cluster8("c")
    assert world.waited == [5, 10, 20, 40, 60, 300, 60]
