"""The client of the API server, against a real HTTP server: what came back, by what to do about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from speedrun_operator.api.spec import KeyRef
from speedrun_operator.backends.pods.outcome import read_refusal
from speedrun_operator.kube import client, transport
from speedrun_operator.kube.access import Access, AccessError, Credentials
from speedrun_operator.kube.client import ApiError, Conflict, Kube, NotFound, Refused, Unavailable
from speedrun_operator.kube.values import secret
from speedrun_operator.lifecycle.observation import Unknown

Answer = Callable[[web.Request], Awaitable[web.Response]]


class Server:
    """Answers every request as `answer` says, and remembers them."""

    def __init__(self) -> None:
        self.answer: Answer = self.ok
        self.seen: list[tuple[str, str, str, str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.text()
        self.seen.append((request.method, request.path_qs, request.headers.get("Content-Type", ""), body))
        return await self.answer(request)

    async def ok(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status"})

    def says(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=status, text=text, headers=headers)

        self.answer = answer


class Says:
    """A source of credentials: the server, and one token after the other."""

    def __init__(self, server: str, *tokens: str) -> None:
        self.server = server
        self.tokens = list(tokens) or ["only"]
        self.reads = 0

    async def read(self, before: Credentials | None) -> Credentials:
        token = self.tokens[min(self.reads, len(self.tokens) - 1)]
        self.reads += 1
        return Credentials(self.server, "a test", token=token)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    """A server on a loopback port, and its address."""
    one = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", one.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield one, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def kube(server: tuple[Server, str]) -> AsyncIterator[Kube]:
    made = Kube(Access(Says(server[1])))
    yield made
    await made.close()


def status(code: int, message: str) -> str:
    return json.dumps({"kind": "Status", "code": code, "message": message})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, Refused),
        (403, Refused),
        (404, NotFound),
        (405, Refused),
        (409, Conflict),
        (410, Unavailable),
        (413, Refused),
        (415, Refused),
        (422, Refused),
        (429, Unavailable),
        (500, Unavailable),
        (502, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
async def test_errors_by_what_to_do(code: int, kind: type[ApiError], server: tuple[Server, str], kube: Kube) -> None:
    server[0].says(code, status(code, "the server's own words"))
    with pytest.raises(ApiError) as raised:
        await kube.get_speedrun("lab", "mine")
    assert type(raised.value) is kind
    assert (raised.value.status, str(raised.value)) == (code, f"{code}: the server's own words")
    assert len(server[0].seen) == 1, "whoever asks decides when it is tried again"


async def test_requests_are_counted_by_what_was_answered(server: tuple[Server, str], kube: Kube) -> None:
    await kube.request("GET", "/version")
    server[0].says(403, status(403, "no"))
    for _ in range(2):
        with pytest.raises(Refused):
            await kube.request("GET", "/version")
    assert dict(kube.answers) == {200: 1, 403: 2}
    nobody = Kube(Access(Says("http://127.0.0.1:1")))
    with pytest.raises(Unavailable):
        await nobody.request("GET", "/version")
    assert dict(nobody.answers) == {0: 1}
    await nobody.close()


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [("3", 3.0), ("0", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None), ("-1", None)],
)
async def test_a_wait_that_is_asked_for(
    retry_after: str, seconds: float | None, server: tuple[Server, str], kube: Kube
) -> None:
    server[0].says(429, status(429, "slowly"), {"Retry-After": retry_after})
    with pytest.raises(Unavailable) as raised:
        await kube.get_speedrun("lab", "mine")
    assert raised.value.retry_after == seconds


@pytest.mark.parametrize("how", ["request", "watch"])
async def test_after_a_wait_was_asked_for_nobody_asks_before(
    how: str, server: tuple[Server, str], kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = 100.0, []
    monkeypatch.setattr(client, "_now", lambda: now)

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    monkeypatch.setattr(client.asyncio, "sleep", sleep)
    server[0].says(429, status(429, "slowly"), {"Retry-After": "7"})
    with pytest.raises(Unavailable):
        if how == "request":
            await kube.get_speedrun("lab", "mine")
        else:
            await anext(kube.watch("/api/v1/pods", query=[], silence=9))
    server[0].answer = server[0].ok
    await kube.get_speedrun("lab", "another")
    assert slept == [7.0]
    await kube.get_speedrun("lab", "another")
    assert slept == [7.0]


@pytest.mark.parametrize("text", ["<html>bad gateway</html>", "", "[1]", "null", '"word"', "\ufffd" * 5000], ids=repr)
async def test_an_error_that_is_not_the_servers_own(text: str, server: tuple[Server, str], kube: Kube) -> None:
    server[0].says(502, text)
    with pytest.raises(Unavailable) as raised:
        await kube.get_speedrun("lab", "mine")
    assert str(raised.value).startswith("502: ")
    assert len(str(raised.value)) < 1100


async def test_an_answer_that_is_no_json(server: tuple[Server, str], kube: Kube) -> None:
    server[0].says(200, "ok")
    with pytest.raises(Unavailable, match="the API server's answer is no JSON"):
        await kube.get_speedrun("lab", "mine")


async def test_nobody_answers(unused_tcp_port: int) -> None:
    kube = Kube(Access(Says(f"http://127.0.0.1:{unused_tcp_port}")))
    with pytest.raises(Unavailable, match="the API server does not answer") as raised:
        await kube.get_speedrun("lab", "mine")
    assert raised.value.status == 0
    await kube.close()


async def test_an_answer_that_does_not_come(
    server: tuple[Server, str], kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TIMEOUT_SECONDS", 0.2)
    waits = asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        await waits.wait()
        return web.Response()

    server[0].answer = never
    with pytest.raises(Unavailable, match="the API server does not answer"):
        await kube.get_speedrun("lab", "mine")
    waits.set()


async def test_a_patch_of_status(server: tuple[Server, str], kube: Kube) -> None:
    await kube.patch_speedrun("lab", "mine", {"status": {"step": None}}, subresource="status")
    path = "/apis/speedrun.dev/v1alpha1/namespaces/lab/speedruns/mine/status"
    ((method, asked, kind, body),) = server[0].seen
    assert (method, asked, kind) == ("PATCH", path, "application/merge-patch+json")
    assert json.loads(body) == {"status": {"step": None}}, "a null takes a field away"


@pytest.mark.parametrize(("namespace", "scope"), [(None, ""), ("lab", "/namespaces/lab")])
async def test_a_list_is_read_in_chunks(
    namespace: str | None, scope: str, server: tuple[Server, str], kube: Kube
) -> None:
    one, two, three = ({"metadata": {"name": name}} for name in "abc")
    pages = {"": ([one, two], "a+b/c"), "a+b/c": ([three], "d"), "d": ([], "")}

    async def page(request: web.Request) -> web.Response:
        assert (request.query["limit"], request.query["labelSelector"]) == ("2", "x!=true")
        items, following = pages[request.query.get("continue", "")]
        return web.json_response({"items": items, "metadata": {"continue": following}})

    server[0].answer = page
    assert await kube.list_speedruns(namespace, labels="x!=true", chunk=2) == [one, two, three]
    assert all(path.startswith(f"/apis/speedrun.dev/v1alpha1{scope}/speedruns?") for _, path, _, _ in server[0].seen)
    assert len(server[0].seen) == 3


async def test_a_warning_of_the_server_is_logged_once_as_an_error(
    server: tuple[Server, str], kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    """BR-046: what the CRD does not know is dropped while the write succeeds."""
    server[0].says(200, "{}", {"Warning": '299 - "unknown field \\"status.val_loss\\""'})
    for _ in range(2):
        await kube.patch_speedrun("lab", "mine", {"status": {"val_loss": 3.28}}, subresource="status")
    [said] = [record for record in caplog.records if "unknown field" in record.message]
    assert said.levelname == "ERROR"
    assert "PATCH /apis/" in said.message and "kubectl apply --server-side" in said.message


async def test_a_refused_token_is_renewed_and_the_request_made_again(server: tuple[Server, str]) -> None:
    async def newest_only(request: web.Request) -> web.Response:
        known = request.headers["Authorization"] == "Bearer new"
        return web.json_response({"kind": "Status"}, status=200 if known else 401)

    server[0].answer = newest_only
    source = Says(server[1], "old", "new")
    kube = Kube(Access(source))
    await kube.get_speedrun("lab", "mine")
    await kube.get_speedrun("lab", "mine")
    assert (source.reads, len(server[0].seen)) == (2, 3), "one refusal, one renewal, and nothing more"
    await kube.close()


async def test_a_refused_token_without_another_is_told_and_asks_no_further(server: tuple[Server, str]) -> None:
    server[0].says(401, status(401, "Unauthorized"))
    source = Says(server[1])
    kube = Kube(Access(source))
    for _ in range(5):
        with pytest.raises(Unavailable, match="401: Unauthorized; the API server .* refuses the credential of a test"):
            await kube.get_speedrun("lab", "mine")
    assert source.reads == 2, "no storm on the source"
    await kube.close()


async def test_a_refused_token_ends_no_allocation_and_asks_for_no_right(server: tuple[Server, str]) -> None:
    """A 401 passes with another credential: it says nothing of the pod, nor of what the account may read."""
    server[0].says(401, status(401, "Unauthorized"))
    kube = Kube(Access(Says(server[1])))
    with pytest.raises(Unavailable) as raised:
        await kube.request("POST", "/api/v1/namespaces/lab/pods", body={})
    assert isinstance(read_refusal(raised.value), Unknown)
    with pytest.raises(Unavailable):
        await secret(kube, "lab", KeyRef(name="s", key="k"), "spec.env")
    await kube.close()


async def test_certificates_that_cannot_be_used_are_told(server: tuple[Server, str]) -> None:
    class Broken(Says):
        async def read(self, before: Credentials | None) -> Credentials:
            return Credentials(self.server, "a test", certificate="no PEM", private_key="no PEM")

    kube = Kube(Access(Broken(server[1])))
    with pytest.raises(Unavailable, match="a test: cannot use the certificates for"):
        await kube.get_speedrun("lab", "mine")
    await kube.close()


async def test_no_credentials_is_no_anonymous_request(server: tuple[Server, str]) -> None:
    class Failing(Says):
        async def read(self, before: Credentials | None) -> Credentials:
            raise AccessError("the plugin failed")

    kube = Kube(Access(Failing(server[1])))
    with pytest.raises(Unavailable, match="the plugin failed"):
        await kube.get_speedrun("lab", "mine")
    assert server[0].seen == []
    await kube.close()
