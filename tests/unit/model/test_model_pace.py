"""How often the operator asks, in virtual time: polls with their jitter, rests that were asked for, retries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from speedrun_operator.login import Completed
from unit.model import virtual
from unit.model.apiserver import ModelKube
from unit.model.job import Fate
from unit.model.slurm import Slurm
from unit.model.virtual import seconds
from unit.model.wire import ModelLogin
from unit.model.world import POLL, World

SPEC: dict[str, Any] = {"recipe": {"name": "replay"}, "timeLimitSeconds": 1200}
TIMEOUT = 60.0  # of a poll
LIMITED = "slurm_load_jobs error: Rate limit exceeded, please retry momentarily\n"


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """When each poll began and ended."""
    spans: list[tuple[float, float]] = []
    run: Callable[..., Awaitable[Completed]] = ModelLogin.run

    async def noted(login: ModelLogin, script: str, **more: Any) -> Completed:
        began = seconds()
        try:
            return await run(login, script, **more)
        finally:
            if "mapfile -t asked" in script and "declare -A wanted" not in script:
                spans.append((began, seconds()))

    monkeypatch.setattr(ModelLogin, "run", noted)
    return spans


async def at_work() -> World:
    """A Speedrun whose job runs for long."""
    world = World()
    world.slurm.fates = [Fate(takes=1100)]
    world.start()
    world.api.create("mine", SPEC)
    await world.wait(60)
    return world


def test_polls_are_a_period_apart_give_or_take_a_tenth(polls: list[tuple[float, float]]) -> None:
    async def whole() -> None:
        world = await at_work()
        polls.clear()
        await world.wait(40 * POLL)
        gaps = [other - one for (one, _), (other, _) in itertools.pairwise(polls)]
        assert len(gaps) >= 36
        assert all(0.9 * POLL <= gap <= 1.1 * POLL for gap in gaps), gaps
        assert max(gaps) > 1.03 * POLL and min(gaps) < 0.97 * POLL, "operators that start together do not stay together"
        world.close()

    virtual.run(whole)


def test_a_login_that_is_slow_is_left_alone_for_as_long_as_it_took(polls: list[tuple[float, float]]) -> None:
    async def whole() -> None:
        world = await at_work()
        polls.clear()
        world.wire.fates = ["slow", "slow"]
        await world.wait(10 * TIMEOUT)
        (began, ended), (again, _) = polls[0], polls[1]
        assert ended - began == pytest.approx(TIMEOUT, abs=1)
        assert again - ended == pytest.approx(TIMEOUT, abs=1)
        (_, over), (later, _) = polls[2], polls[3]
        assert later - over < 1.2 * POLL, "and no longer than that"
        world.close()

    virtual.run(whole)


def test_after_a_refusal_for_its_rate_slurm_rests_ever_longer(
    polls: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole() -> None:
        world = await at_work()
        monkeypatch.setattr(Slurm, "excuse", LIMITED)
        world.slurm.silent = True
        polls.clear()
        await world.wait(900)
        gaps = [other - one for (one, _), (other, _) in itertools.pairwise(polls)]
        assert all(gap >= 0.9 * POLL for gap in gaps), gaps
        rests = gaps[5:]
        assert all(30 <= rest <= 61 for rest in rests) and max(rests) > 35, gaps
        assert world.raw("mine")["status"]["phase"] == "Compiling", "its log goes on, and nobody sees it"
        world.slurm.silent = False
        await world.wait(70)
        polls.clear()
        await world.wait(10 * POLL)
        gaps = [other - one for (one, _), (other, _) in itertools.pairwise(polls)]
        assert all(gap <= 1.1 * POLL for gap in gaps), "a good answer ends that"
        world.close()

    virtual.run(whole)


def test_what_fails_is_tried_again_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server refuses each write of one Speedrun's status: after about 2 s, 4 s, … and at last each minute."""
    tries: list[float] = []
    request = ModelKube.request

    async def noted(kube: ModelKube, method: str, path: str, **more: Any) -> Any:
        if method == "PATCH" and path.endswith("/status"):
            tries.append(seconds())
            kube._server.fates[:] = ["refused"]
        return await request(kube, method, path, **more)

    async def idle(*_: Any) -> None:
        await asyncio.sleep(10**7)

    async def whole() -> None:
        monkeypatch.setattr(ModelKube, "request", noted)
        monkeypatch.setattr("unit.model.world.Resync.run", idle)
        world = World()
        world.start()
        world.api.create("mine", SPEC)
        await world.wait(600)
        waits = [other - one for one, other in itertools.pairwise(tries)]
        spans = [(0.8 * each, 1.2 * each + 0.5) for each in (2, 4, 8, 16, 32, 60, 60, 60, 60)]
        assert len(waits) >= len(spans)
        first = next(at for at, wait in enumerate(waits) if wait > 1)
        for wait, (least, most) in zip(waits[first:], spans, strict=False):
            assert least <= wait <= most, waits
        assert not world.slurm.ever[2:], "what is not written is not submitted"
        world.close()

    virtual.run(whole)
