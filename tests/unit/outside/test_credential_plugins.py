"""Credential plugins as real processes: called again when they must be, and never left out when they fail."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from speedrun_operator.credentials import plugin
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.kube import access as holder
from speedrun_operator.kube.access import Access, Files
from speedrun_operator.kube.client import Kube, Unavailable
from testbed.processes import start_ticks, wait_for

V1 = "client.authentication.k8s.io/v1beta1"
TOKEN = """#!/bin/bash
echo call >> {calls}
n=$(wc -l < {calls})
echo "tok-$n" > {newest}
printf '{{"apiVersion":"{version}","kind":"ExecCredential","status":{{"token":"tok-%s"{end}}}}}' "$n" {date}
"""


class Bench:
    """A plugin that gives a new token at each call, and an API server that takes the newest alone."""

    def __init__(self, directory: Path) -> None:
        self.calls, self.newest, self.script = directory / "calls", directory / "newest", directory / "tok.sh"
        self.kubeconfig = directory / "kubeconfig"
        self.answers: list[int] = []
        self.authorizations: list[str | None] = []

    def write(self, lasts: float | None, server: str) -> None:
        end = ',"expirationTimestamp":"%s"' if lasts is not None else ""
        date = f'"$(date -u -d "+{lasts} seconds" +%Y-%m-%dT%H:%M:%S.%NZ)"' if lasts is not None else ""
        self.script.write_text(TOKEN.format(calls=self.calls, newest=self.newest, version=V1, end=end, date=date))
        self.script.chmod(0o755)
        self.user({"command": "./tok.sh", "apiVersion": V1, "interactiveMode": "Never"}, server)

    def user(self, exec_: dict[str, Any], server: str) -> None:
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "users": [{"name": "u", "user": {"exec": exec_}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )

    async def answer(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization")
        self.authorizations.append(given)
        status = 200 if given == f"Bearer {self.newest.read_text().strip()}" else 401
        self.answers.append(status)
        return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=status)

    @property
    def called(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[tuple[Bench, str]]:
    one = Bench(tmp_path)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", one.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield one, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_plugins_token_is_renewed_before_it_ends(bench: tuple[Bench, str]) -> None:
    """BR-056: a long-lived process keeps going, at a few calls of the plugin and not one a request."""
    one, server = bench
    one.write(6, server)
    kube = Kube(Access(Files(str(one.kubeconfig), None, explicit=True)))
    deadline = time.monotonic() + 60
    requests = 0
    while one.called < 3:
        assert time.monotonic() < deadline, one.called
        await kube.request("GET", "/version")
        requests += 1
        await asyncio.sleep(0.01)
    await kube.close()
    assert set(one.answers) == {200}, "no visible outage"
    assert requests > 10 * one.called


async def test_a_plugins_token_without_an_end_is_renewed_after_a_refusal(bench: tuple[Bench, str]) -> None:
    """BR-056, where the plugin gives no expirationTimestamp."""
    one, server = bench
    one.write(None, server)
    kube = Kube(Access(Files(str(one.kubeconfig), None, explicit=True)))
    await kube.request("GET", "/version")
    one.newest.write_text("tok-2\n")  # what the server takes from now on is what the plugin prints next
    await asyncio.gather(*(kube.request("GET", "/version") for _ in range(5)))
    await kube.close()
    assert one.called == 2, "one renewal for all who were refused"
    assert one.answers.count(200) == 6


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("sh", ["-c", "exit 255"], "user 'u': the command 'sh' failed with exit code 255: it printed no reason"),
        ("sh", ["-c", "echo no browser >&2; exit 1"], "failed with exit code 1: no browser"),
        ("no-such-plugin", [], "user 'u': the command 'no-such-plugin' is not found in PATH"),
        ("./no-such-plugin", [], "user 'u': the command './no-such-plugin' cannot be run (No such file"),
        ("sh", ["-c", 'echo warning; echo "{}"'], "its output is not an ExecCredential"),
        ("echo", ["{}"], "its output is not an ExecCredential"),
        ("echo", [json.dumps({"kind": "ExecCredential", "status": {"token": ""}})], "printed an empty token"),
        ("echo", [json.dumps({"kind": "ExecCredential", "status": None})], "printed an empty token"),
        (
            "echo",
            [json.dumps({"kind": "ExecCredential", "status": {"clientCertificateData": "x"}})],
            "printed a certificate without its key",
        ),
    ],
    ids=["exit 255", "reason", "missing", "missing path", "warning first", "no kind", "empty", "no status", "no key"],
)
async def test_a_plugin_that_fails_is_told_and_nothing_is_sent_anonymously(
    command: str, arguments: list[str], says: str, bench: tuple[Bench, str]
) -> None:
    """BR-060."""
    one, server = bench
    one.user({"command": command, "args": arguments, "apiVersion": V1}, server)
    kube = Kube(Access(Files(str(one.kubeconfig), None, explicit=True)))
    with pytest.raises(Unavailable) as raised:
        await kube.request("GET", "/version")
    await kube.close()
    with pytest.raises(AccessError) as fault:
        await Files(str(one.kubeconfig), None, explicit=True).read(None)
    assert fault.value.passing is ("exit code" in says), "a network that is away may come back"
    assert says in str(raised.value)
    assert "NoneType" not in str(raised.value)
    assert one.authorizations == [], "no request without credentials"


@pytest.mark.parametrize(
    ("exec_", "says"),
    [
        ({"command": "echo", "apiVersion": "v1alpha1"}, "exec has the apiVersion 'v1alpha1'; supported: "),
        ({"command": "echo", "apiVersion": V1, "interactiveMode": "Always"}, "wants a terminal"),
        ({"apiVersion": V1}, "exec names no command"),
    ],
)
async def test_a_plugin_that_cannot_be_called(exec_: dict[str, Any], says: str, tmp_path: Path) -> None:
    one = Bench(tmp_path)
    one.user(exec_, "https://c.test")
    with pytest.raises(AccessError, match=says):
        await Files(str(one.kubeconfig), None, explicit=True).read(None)


async def test_a_plugin_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    hanging = plugin.Plugin("user 'u'", "sh", ("-c", f"sleep 600 & echo $! > {mark}; wait"))
    with pytest.raises(AccessError, match=r"gave no answer within 2 s; it was ended") as raised:
        await plugin.run(hanging, seconds=2)
    assert raised.value.passing
    pid = int(mark.read_text())
    wait_for("its child to end", lambda: start_ticks(pid) is None, timeout=20)


async def test_a_plugin_is_told_of_the_cluster_if_it_asks(tmp_path: Path) -> None:
    one = Bench(tmp_path)
    told = tmp_path / "told"
    script = f'echo "$KUBERNETES_EXEC_INFO" > {told}; echo "$GREETING" >> {told}; echo {{}}'
    exec_ = {"command": "sh", "args": ["-c", script], "apiVersion": V1, "provideClusterInfo": True}
    one.user({**exec_, "env": [{"name": "GREETING", "value": "hello"}]}, "https://c.test")
    with pytest.raises(AccessError):
        await Files(str(one.kubeconfig), None, explicit=True).read(None)
    info, greeting = told.read_text().splitlines()
    assert json.loads(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://c.test"}},
    }
    assert greeting == "hello"


async def test_what_is_held_outlives_a_source_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(holder, "AGAIN_FIRST", 0.0)
    one = Bench(tmp_path)
    one.write(None, "https://c.test")
    held = Access(Files(str(one.kubeconfig), None, explicit=True))
    first = await held.current()
    object.__setattr__(first, "fresh", datetime.now(UTC) - timedelta(seconds=1))
    one.kubeconfig.unlink()
    assert (await held.current()).token == first.token
    with pytest.raises(AccessError, match="refuses the credential of .*, and another cannot be had: no kubeconfig at"):
        await held.refused(first)
