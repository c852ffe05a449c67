"""The listeners, the heart and its lag, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request

import pytest

from speedrun_operator import __version__
from speedrun_operator.crd import CrdWatch
from speedrun_operator.distribution import Distribution
from speedrun_operator.health import PATH, healthz
from speedrun_operator.heart import Heart
from speedrun_operator.instruments import Instruments
from speedrun_operator.kube.access import Access, local
from speedrun_operator.kube.client import Kube
from speedrun_operator.listeners import AddressFault
from speedrun_operator.listeners import listening as listening_at
from speedrun_operator.listening import Answer, Listener
from speedrun_operator.own_settings import MetricsSettings
from speedrun_operator.settings import Settings
from testbed.processes import free_ports
from unit.metrics.scraping import scrape


def get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_pages_by_their_paths() -> None:
    listener = Listener("test", "127.0.0.1:0", {"/here": lambda headers: Answer(b"yes", "text/plain")})
    listener.start()
    try:
        assert get(listener.port, "/here?a=b") == (200, b"yes")
        assert get(listener.port, "/")[0] == 404
    finally:
        listener.stop()


def test_a_taken_address_is_refused_at_once() -> None:
    one = Listener("one", "127.0.0.1:0", {})
    one.start()
    try:
        with pytest.raises(OSError, match="in use"):
            Listener("two", f"127.0.0.1:{one.port}", {})
    finally:
        one.stop()


async def test_both_pages_answer_before_the_api_server_does() -> None:
    held = Access(local(None, None))
    kube = Kube(held)
    instruments = Instruments(Heart(), kube, held, CrdWatch(kube, None), None, [])
    ports = free_ports(2)
    settings = Settings(
        health_address=f"127.0.0.1:{ports[0]}", metrics=MetricsSettings(address=f"127.0.0.1:{ports[1]}")
    )
    with listening_at(settings, instruments):
        status, body = await asyncio.to_thread(get, ports[0], "/healthz")
        assert (status, json.loads(body)["working"]) == (200, False)
        found = await asyncio.to_thread(scrape, ports[1])
        assert found.value("speedrun_operator_build_info", version=__version__) == 1
        taken = Settings(health_address="", metrics=settings.metrics)
        with pytest.raises(AddressFault, match=rf"{ports[1]}: .*in use"), listening_at(taken, instruments):
            pass
    await kube.close()


def test_health_is_lost_when_the_loop_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    heart = Heart()
    page = healthz(heart, lambda: {"polls": 3})
    well = page({})
    assert (well.status, json.loads(well.body)["polls"], PATH) == (200, 3, "/healthz")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    ill = page({})
    assert (ill.status, json.loads(ill.body)["alive"]) == (503, False)


async def test_a_loop_that_is_held_up_is_seen_in_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedrun_operator.heart.BEAT_SECONDS", 0.01)
    heart = Heart()
    task = asyncio.create_task(heart.run())
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 (this is the fault)
    await asyncio.sleep(0.05)  # its beat was due long ago
    task.cancel()
    counted = heart.late.counted()
    assert counted.total >= 0.25
    assert dict(counted.buckets)[0.25] < counted.count


def test_buckets_count_up_to_their_bounds() -> None:
    times = Distribution((0.1, 1.0))
    for each in (0.05, 0.1, 0.5, 7.0):
        times.add(each)
    counted = times.counted()
    assert counted.buckets == ((0.1, 2), (1.0, 3))
    assert (counted.count, round(counted.total, 2)) == (4, 7.65)
