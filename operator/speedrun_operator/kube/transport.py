"""HTTP to the API server: one session for the certificates in use, exchanged when those are renewed."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies

import aiohttp

from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.user import Credentials

TIMEOUT_SECONDS = 30.0


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """How to verify the server and who we are. Raises AccessError for certificates that cannot be used."""
    try:
        context = ssl.create_default_context(cadata=credentials.ca)
        if credentials.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if credentials.certificate and credentials.private_key:
            # Python loads them from files alone; this one is ours only (0600), and gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{credentials.certificate}\n{credentials.private_key}")
                file.flush()
                context.load_cert_chain(file.name)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise AccessError(
            f"{credentials.origin}: cannot use the certificates for {credentials.server}: {error}"
        ) from error
    return context


def authorization(credentials: Credentials) -> dict[str, str]:
    """The header that says who we are."""
    if credentials.token:
        return {"Authorization": f"Bearer {credentials.token}"}
    if credentials.username:
        return {"Authorization": aiohttp.encode_basic_auth(credentials.username, credentials.password or "")}
    return {}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. `warnings`: the headers in which an API server says what it dropped or will drop."""

    status: int
    body: bytes
    retry_after: str | None
    warnings: tuple[str, ...]


class Transport:
    """Sends requests. For one event loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._made_for: tuple[Any, ...] = ()
        self._retiring: set[asyncio.Task[None]] = set()
        self.answers: Counter[int] = Counter()
        """Requests by the HTTP status of the answer; 0: there was none."""

    async def send(
        self,
        credentials: Credentials,
        method: str,
        path: str,
        headers: dict[str, str],
        data: bytes | None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Reply:
        """One request, within so many seconds. Raises AccessError; aiohttp's and asyncio's errors without an answer."""
        session = self._for(credentials)
        with self._counted():
            async with session.request(
                method,
                f"{credentials.server}{path}",
                headers={**headers, **authorization(credentials)},
                data=data,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as answer:
                warnings = tuple(answer.headers.getall("Warning", ()))
                reply = Reply(answer.status, await answer.read(), answer.headers.get("Retry-After"), warnings)
        self.answers[reply.status] += 1
        return reply

    async def open(
        self, credentials: Credentials, path: str, headers: dict[str, str], silence: float
    ) -> aiohttp.ClientResponse:
        """A GET whose body is read in pieces, each within `silence` seconds; the caller closes it. Raises as `send`."""
        session = self._for(credentials)
        with self._counted():
            answer = await session.get(
                f"{credentials.server}{path}",
                headers={**headers, **authorization(credentials)},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=TIMEOUT_SECONDS, sock_read=silence),
            )
        self.answers[answer.status] += 1
        return answer

    async def close(self) -> None:
        for task in self._retiring:
            task.cancel()
        if self._session is not None:
            await self._session.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request that gets no answer."""
        try:
            yield
        except (TimeoutError, aiohttp.ClientError, OSError):
            self.answers[0] += 1
            raise

    def _for(self, one: Credentials) -> aiohttp.ClientSession:
        wanted = (one.server, one.ca, one.insecure, one.certificate, one.private_key, one.proxy)
        if self._session is None or wanted != self._made_for:
            context = tls_context(one)
            if self._session is not None:
                task = asyncio.get_running_loop().create_task(_retire(self._session))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context),
                proxy=one.proxy,
                # aiohttp looks for a netrc in a thread of its own at each request as soon as it looks for proxies.
                trust_env=one.proxy is None and bool(getproxies()),
            )
            self._made_for = wanted
        return self._session


async def _retire(session: aiohttp.ClientSession) -> None:
    """Close a session once its last request must be over."""
    try:
        await asyncio.sleep(TIMEOUT_SECONDS)
    finally:
        await session.close()
