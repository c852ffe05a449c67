"""Reads from the Platform and Business APIs: time-outs, bounded retries, and errors that say what to do.

Nothing is ever written there: keys, shells and clusters are their owners' business. TLS is always verified, redirects
are not followed (a token goes to the host that was named, and to no other).
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.proxies import proxies_understood
from speedrun_operator.platform import bodies, errors
from speedrun_operator.platform.errors import Denied, PlatformError, Unanswered
from speedrun_operator.platform.tokens import Token, Tokens

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 30.0
WHOLE_SECONDS = 60.0
TRIES = 4
PAUSE_FIRST = 0.5
PAUSE_LONGEST = 20.0
MOST_BYTES = 8 << 20
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Where:
    """The two APIs' addresses and the organization. `business_url` may be empty: then it is not asked."""

    url: str
    business_url: str
    organization: str


class PlatformApi:
    """One organization's view. For one event loop. Every method raises PlatformError, and nothing else of its own.

    Making one raises AccessError for a proxy of the environment that cannot be used.
    """

    def __init__(
        self,
        where: Where,
        tokens: Tokens,
        *,
        tls: ssl.SSLContext | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.where = where
        self.tokens = tokens
        self.answers: Counter[int] = Counter()
        """Requests by the HTTP status of the answer; 0: there was none."""
        self._sleep = sleep
        with proxies_understood("the Platform API"):
            self._http = httpx.AsyncClient(
                verify=tls or True,
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                follow_redirects=False,
                headers={"User-Agent": "speedrun-operator"},
            )

    async def close(self) -> None:
        await self.tokens.close()
        await self._http.aclose()

    async def clusters(self) -> list[bodies.Cluster]:
        return bodies.clusters(await self._json("/clusters", self._business_org()))

    async def cluster(self, cluster: str) -> bodies.Cluster:
        return bodies.cluster(await self._json(f"/clusters/{_part(cluster)}", self._business_org()))

    async def options(self, cluster: str) -> bodies.Options:
        body = await self._json(f"/clusters/{_part(cluster)}/options", self._business_org())
        return bodies.parsed(bodies.Options, body, "the cluster's options")

    async def ssh_access(self, cluster: str) -> bodies.SshAccess:
        body = await self._json(f"/clusters/{_part(cluster)}/ssh-access", self._organization())
        return bodies.parsed(bodies.SshAccess, body, "SSH access")

    async def kubeconfig(self, cluster: str) -> str:
        """The kubeconfig's text, YAML or JSON: a secret."""
        path = f"/clusters/{_part(cluster)}/kubeconfig"
        return bodies.kubeconfig(await self._get(self.where.url, path, self._organization()))

    async def me(self) -> bodies.Me:
        return bodies.parsed(bodies.Me, await self._json("/me", {}, business=True), "this account")

    async def ssh_keys(self) -> bodies.SshKeys:
        return bodies.ssh_keys(await self._json("/me/ssh-keys", {}, business=True))

    def _business_org(self) -> dict[str, str]:
        return {"businessOrgId": self.where.organization}

    def _organization(self) -> dict[str, str]:
        """/ssh-access and /kubeconfig name the same thing otherwise than all other routes."""
        return {"organizationId": self.where.organization}

    async def _json(self, path: str, query: Mapping[str, str], *, business: bool = False) -> Any:
        base = self.where.business_url if business else self.where.url
        if not base:
            raise Denied("the Business API's address is not known: set platform.business_url")
        text = await self._get(base, path, query)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            shown = bodies.PAGE if text.lstrip()[:1] == "<" else "no JSON: something answers in place of the API"
            setting = "platform.business_url" if business else "platform.url"
            raise Unanswered(f"GET {path}: the answer is {shown}, or {setting} is not its address") from None

    async def _get(self, base: str, path: str, query: Mapping[str, str]) -> str:
        """The body of a 200. Tried again, a few times, where that may help."""
        pause = PAUSE_FIRST
        for left in reversed(range(TRIES)):
            try:
                return await self._once(base, path, query)
            except Unanswered as error:
                wait = pause if error.retry_after is None else error.retry_after
                if not left or wait > PAUSE_LONGEST:
                    raise
                await self._sleep(wait * random.uniform(1.0, 1.2))
                pause *= 2
        raise AssertionError("unreachable")

    async def _once(self, base: str, path: str, query: Mapping[str, str]) -> str:
        what = f"GET {path}"
        try:
            token = await self.tokens.current()
            status, answer, retry_after = await self._send(token, base, path, query)
            if status == 401 and (other := await self.tokens.another(token)) is not None:
                token = other
                status, answer, retry_after = await self._send(token, base, path, query)
        except AccessError as error:
            raise (Unanswered if error.passing else Denied)(str(error)) from error
        except httpx.InvalidURL as error:
            raise Denied(f"{what}: {error}; look at platform.url") from error
        except httpx.HTTPError as error:
            raise Unanswered(f"{what}: the Platform API does not answer: {error or type(error).__name__}") from error
        if status == 200:
            return answer.decode(errors="replace")
        words = bodies.said(answer)
        if status in PASSING:
            told = f" ({words})" if words else ""
            raise Unanswered(f"{what}: the API answers {status}{told}", status=status, retry_after=retry_after)
        if 300 <= status < 400:
            raise Denied(
                f"{what}: {status}: the address redirects elsewhere, which is not followed; look at platform.url"
            )
        raise errors.denied(status, path.rpartition("/")[2], what, words, token.is_service_account)

    async def _send(
        self, token: Token, base: str, path: str, query: Mapping[str, str]
    ) -> tuple[int, bytes, float | None]:
        try:
            status, body, retry_after = await self._ask(token, base, path, query)
        except httpx.HTTPError:
            self.answers[0] += 1
            raise
        self.answers[status] += 1
        return status, body, retry_after

    async def _ask(
        self, token: Token, base: str, path: str, query: Mapping[str, str]
    ) -> tuple[int, bytes, float | None]:
        headers = {"Authorization": f"Bearer {token.value}", "Accept": "application/json, application/yaml;q=0.9"}
        url = f"{base.rstrip('/')}{path}"
        body = bytearray()
        try:
            async with (
                asyncio.timeout(WHOLE_SECONDS),
                self._http.stream("GET", url, params=query, headers=headers) as answer,
            ):
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise Unanswered(f"GET {path}: the answer is longer than {MOST_BYTES >> 20} MiB")
        except TimeoutError:
            self.answers[0] += 1
            raise Unanswered(f"GET {path}: the answer does not end within {WHOLE_SECONDS:g} s") from None
        return answer.status_code, bytes(body), _seconds(answer.headers.get("Retry-After"))


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds; a date is left out: clocks differ, and our own pause does as well."""
    return float(header) if header is not None and header.isdecimal() else None


def _part(cluster: str) -> str:
    """An id as one part of a path; settings let no other through."""
    if not cluster or not all(each.isalnum() or each in "-_." for each in cluster) or cluster.startswith("."):
        raise Denied(f"{cluster!r} is no cluster id; `speedrun-operator clusters` lists them")
    return cluster


__all__ = ["PlatformApi", "PlatformError", "Where"]
