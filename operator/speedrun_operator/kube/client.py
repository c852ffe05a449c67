"""A small client of the API server: JSON in, JSON out, errors by what to do.

ApiError
├── NotFound       it is not there (any more)
├── Conflict       it changed since it was read: read again, decide again
├── Refused        the request can never succeed as it is (400, 403, 405, 413, 415, 422)
└── Unavailable    no answer, 401 (it says nothing of the request, and another credential passes), 410 (a list grew
                   old), 429 or a server's fault: try later (`retry_after` seconds)
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp

from speedrun_operator import __version__
from speedrun_operator.api.names import CRD_INSTALL, GROUP, PLURAL, VERSION
from speedrun_operator.kube.access import Access, AccessError, Credentials
from speedrun_operator.kube.transport import TIMEOUT_SECONDS, Reply, Transport

logger = logging.getLogger(__name__)

LONGEST_REST = 60.0
TOLD_LIMIT = 100
USER_AGENT = f"speedrun-operator/{__version__}"
MERGE_PATCH = "application/merge-patch+json"
Json = dict[str, Any]
Sent = TypeVar("Sent")


class ApiError(Exception):
    """The API server did not do what was asked. `status` is its HTTP status, 0 where it did not answer."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409."""


class Refused(ApiError):
    """The request itself is at fault, or we have no right to it."""


class Unavailable(ApiError):
    """Try later."""


class Kube:
    """One API server. For one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._transport = Transport()
        self._told: set[str] = set()
        self._rest_until = 0.0

    @property
    def answers(self) -> Mapping[int, int]:
        """Requests since the start by the HTTP status of the answer; 0: there was none."""
        return self._transport.answers

    async def close(self) -> None:
        await self._access.close()
        await self._transport.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = "application/json",
    ) -> Json:
        """One request; the reply's JSON. Raises ApiError's family, nothing else but CancelledError.

        A 401 is answered once with a renewed credential, if there is one: the server did nothing with the request.
        """
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": USER_AGENT}
        data = None if body is None else json.dumps(body).encode()
        reply = await self._send(method, path, query, headers, data)
        try:
            read = json.loads(reply.body)
        except ValueError as error:
            raise Unavailable(reply.status, "the API server's answer is no JSON") from error
        return read if isinstance(read, dict) else {}

    async def raw(self, path: str, *, query: Sequence[tuple[str, str]] = (), seconds: float = TIMEOUT_SECONDS) -> bytes:
        """The reply's bytes to a GET, such as of a container's log. Raises as `request`."""
        headers = {"Accept": "*/*", "User-Agent": USER_AGENT}
        return (await self._send("GET", path, query, headers, None, seconds)).body

    async def watch(self, path: str, *, query: Sequence[tuple[str, str]], silence: float) -> AsyncIterator[Json]:
        """Watch events until the API server ends the stream. Raises as `request`, and when it is silent for `silence`.

        `silence`: seconds; the server sends a bookmark about once a minute.
        """
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        target = f"{path}?{urlencode([*query, ('watch', 'true')])}"
        await self._turn()
        answer = None
        try:
            used, answer = await self._reached(lambda one: self._transport.open(one, target, headers, silence))
            if answer.status == 401:
                body = await answer.read()
                answer.close()
                answer = await self._transport.open(await self._renewed(used, body), target, headers, silence)
            if answer.status >= 400:
                raise self._refusal(answer.status, await answer.read(), answer.headers.get("Retry-After"))
            left = b""
            while chunk := await answer.content.readany():
                *lines, left = (left + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        except AccessError as error:
            raise Unavailable(0, str(error)) from error
        except ValueError as error:
            raise Unavailable(0, "the API server's watch is no JSON") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(0, f"the API server does not answer: {error or type(error).__name__}") from error
        finally:
            if answer is not None:
                answer.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: dict[str, str],
        data: bytes | None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Reply:
        target = f"{path}?{urlencode(query)}" if query else path
        await self._turn()
        try:
            used, reply = await self._reached(
                lambda one: self._transport.send(one, method, target, headers, data, seconds)
            )
            if reply.status == 401:
                renewed = await self._renewed(used, reply.body)
                reply = await self._transport.send(renewed, method, target, headers, data, seconds)
        except AccessError as error:
            raise Unavailable(0, str(error)) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(0, f"the API server does not answer: {error or type(error).__name__}") from error
        self._tell(reply.warnings, f"{method} {path}")
        if reply.status >= 400:
            raise self._refusal(reply.status, reply.body, reply.retry_after)
        return reply

    def _refusal(self, status: int, data: bytes, retry_after: str | None) -> ApiError:
        """What to raise; where the server asks for a rest, nobody asks it anything before."""
        refusal = _error(status, data, retry_after)
        if refusal.retry_after:
            self._rest_until = max(self._rest_until, _now() + min(refusal.retry_after, LONGEST_REST))
        return refusal

    async def _reached(self, send: Callable[[Credentials], Awaitable[Sent]]) -> tuple[Credentials, Sent]:
        """`send` with the credentials that there are, and once more with others where it reached nobody with those."""
        used = await self._access.current()
        try:
            return used, await send(used)
        except (aiohttp.ClientConnectorError, AccessError):  # nothing was sent
            other = await self._access.unreached(used)
            if other is None:
                raise
        return other, await send(other)

    async def _renewed(self, used: Credentials, answer: bytes) -> Credentials:
        """Another credential than the refused one. Raises Unavailable where there is none."""
        try:
            return await self._access.refused(used)
        except AccessError as error:
            raise Unavailable(401, f"{_error(401, answer, None)}; {error}") from error

    def _tell(self, warnings: Sequence[str], what: str) -> None:
        """Log what the API server warns of, such as a field that its CRD does not know and drops: each once."""
        for warning in warnings:
            if warning not in self._told and len(self._told) < TOLD_LIMIT:
                self._told.add(warning)
                logger.error(
                    "the API server warns at %s: %s; if its CRD is older: %s", what, warning[:1000], CRD_INSTALL
                )

    async def _turn(self) -> None:
        """Wait where the server has asked for that, whoever it was told."""
        if (left := self._rest_until - _now()) > 0:
            await asyncio.sleep(left)

    async def get_speedrun(self, namespace: str, name: str) -> Json:
        return await self.request("GET", speedrun_path(namespace, name))

    async def patch_speedrun(self, namespace: str, name: str, body: Json, *, subresource: str = "") -> Json:
        """A JSON merge patch; with `metadata.resourceVersion` in it, only on that version."""
        return await self.request(
            "PATCH", speedrun_path(namespace, name, subresource), body=body, content_type=MERGE_PATCH
        )

    async def list_speedruns(self, namespace: str | None, *, labels: str = "", chunk: int = 500) -> list[Json]:
        """All Speedruns of a namespace (None: of all), read in chunks."""
        return [each async for each in self.each_speedrun(namespace, labels=labels, chunk=chunk)]

    async def each_speedrun(self, namespace: str | None, *, labels: str = "", chunk: int = 500) -> AsyncIterator[Json]:
        """The same one after another, with no more than a chunk of them in memory."""
        token = ""
        while True:
            query = [("limit", str(chunk)), ("labelSelector", labels), ("continue", token)]
            page = await self.request("GET", speedrun_path(namespace), query=[each for each in query if each[1]])
            for each in page.get("items") or []:
                yield each
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    async def cluster_uid(self) -> str:
        """The UID of kube-system: what tells this cluster from any other."""
        namespace = await self.request("GET", "/api/v1/namespaces/kube-system")
        return str(namespace["metadata"]["uid"])


def _now() -> float:
    return asyncio.get_running_loop().time()


def speedrun_path(namespace: str | None, name: str = "", subresource: str = "") -> str:
    scope = f"/namespaces/{namespace}" if namespace else ""
    tail = "".join(f"/{part}" for part in (name, subresource) if part)
    return f"/apis/{GROUP}/{VERSION}{scope}/{PLURAL}{tail}"


def _error(status: int, data: bytes, retry_after: str | None) -> ApiError:
    try:
        parsed = json.loads(data)
        message = str(parsed.get("message") or parsed)
    except (ValueError, AttributeError):
        message = data[:200].decode(errors="replace")
    message = f"{status}: {message[:1000]}"
    if status == 404:
        return NotFound(status, message)
    if status == 409:
        return Conflict(status, message)
    if status in (401, 410, 429) or status >= 500:
        wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
        return Unavailable(status, message, wait)
    return Refused(status, message)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """The JSON merge patch (RFC 7386) that makes `new` of `old`; empty when they are equal. Lists go whole."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif old[key] != value:
            patch[key] = value
    return patch
