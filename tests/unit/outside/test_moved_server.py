"""An API server that moves, or exchanges its authorities: its source says so, and the operator asks it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from speedrun_operator.kube import access as holder
from speedrun_operator.kube.access import Access, AccessError, Credentials
from speedrun_operator.kube.client import Kube, Unavailable
from testbed import pki


class Says:
    """A source that says one thing after the other, the last one for ever."""

    def __init__(self, *said: Credentials | AccessError) -> None:
        self.said = list(said)
        self.reads = 0

    async def read(self, before: Credentials | None) -> Credentials:
        now = self.said[min(self.reads, len(self.said) - 1)]
        self.reads += 1
        if isinstance(now, AccessError):
            raise now
        return now


@pytest.fixture
async def right(tmp_path: Path) -> AsyncIterator[Credentials]:
    """The way to a server over TLS that a new authority signed."""
    authority = pki.Authority(tmp_path / "new")
    authority.issue("server", "127.0.0.1", server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.directory / "server.crt", authority.directory / "server.key")

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"kind": "Status"})
        return web.Response(text='{"type": "ADDED"}\n')

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    ca = (authority.directory / "ca.crt").read_text()
    yield Credentials(f"https://127.0.0.1:{runner.addresses[0][1]}", "a test", ca, token="t")
    await runner.cleanup()


def wrong(how: str, right: Credentials, directory: Path, port: int) -> Credentials:
    old = pki.Authority(directory / "old")
    if how == "authority":
        return Credentials(right.server, "a test", (old.directory / "ca.crt").read_text(), token="t")
    if how == "server":
        return Credentials(f"https://127.0.0.1:{port}", "a test", right.ca, token="t")
    for name in ("one", "two"):
        old.issue(name, name)
    certificate, key = ((old.directory / each).read_text() for each in ("one.crt", "two.key"))
    return Credentials(right.server, "a test", right.ca, certificate=certificate, private_key=key)


@pytest.mark.parametrize("how", ["authority", "server", "half-way rotation"])
async def test_what_reaches_nobody_is_read_again(
    how: str, right: Credentials, tmp_path: Path, unused_tcp_port: int
) -> None:
    before = wrong(how, right, tmp_path, unused_tcp_port)
    kube = Kube(Access(source := Says(before, right)))
    assert await kube.request("GET", "/version") == {"kind": "Status"}
    await kube.request("GET", "/version")
    assert source.reads == 2
    await kube.close()
    kube = Kube(Access(Says(before, right)))
    assert [each async for each in kube.watch("/api", query=(), silence=5)] == [{"type": "ADDED"}]
    await kube.close()


async def test_a_source_that_knows_no_other_way_is_asked_less_and_less(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(holder.time, "monotonic", lambda: now)
    gone = Credentials(f"http://127.0.0.1:{unused_tcp_port}", "a test", token="t")
    held = Access(source := Says(gone, gone, AccessError("away")))
    await held.current()
    asked = []
    for second in range(200):
        now, before = 1000.0 + second, source.reads
        assert await held.unreached(gone) is None
        if source.reads > before:
            asked.append(second)
    assert asked == [0, 5, 15, 35, 75, 135, 195]
    assert await held.current() == gone, "what is held is kept"
    kube = Kube(held)
    with pytest.raises(Unavailable, match="the API server does not answer"):
        await kube.request("GET", "/version")
    await kube.close()
