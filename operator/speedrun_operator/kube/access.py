"""Credentials for the API server: where they come from, and one holder of them that everybody asks.

A kubeconfig that is named must exist and be whole; there is no silent fall-back to another cluster or to nobody.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from speedrun_operator.credentials import kubeconfig
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.lifetime import earliest, fresh_until, token_end
from speedrun_operator.credentials.user import REREAD, Credentials, credentials
from speedrun_operator.credentials.whole import Whole

__all__ = ["Access", "AccessError", "Credentials", "Fetched", "Files", "ServiceAccount", "local", "own_namespace"]

logger = logging.getLogger(__name__)
MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGAIN_FIRST, AGAIN_LONGEST = 5.0, 60.0


class Source(Protocol):
    """Where credentials come from; read again at each call."""

    def read(self, before: Credentials | None) -> Coroutine[Any, Any, Credentials]:
        """What it says now; `before` is what it said last. Raises AccessError."""
        ...


@dataclass(frozen=True)
class Files:
    """Kubeconfigs at `paths`, with the path separator between; see kubeconfig.read_files."""

    paths: str
    context: str | None
    explicit: bool

    async def read(self, before: Credentials | None) -> Credentials:
        selected = kubeconfig.select(kubeconfig.read_files(self.paths, explicit=self.explicit), self.context)
        found = await credentials(selected, datetime.now(UTC), before=before)
        if found.refresh_token and found.token and selected.user is not None:
            try:  # the one in the file is spent
                kubeconfig.store_tokens(selected.user, found.token, found.refresh_token)
            except OSError as error:
                logger.error("%s: the new refresh token cannot be kept there: %s", selected.user.origin, error)
        return found


@dataclass(frozen=True)
class ServiceAccount:
    """The pod's own, which the kubelet renews."""

    host: str
    port: str
    directory: Path = MOUNTED

    async def read(self, before: Credentials | None) -> Credentials:
        origin = "the pod's service account"
        token = kubeconfig.read(self.directory / "token", origin).strip()
        ca = kubeconfig.read(self.directory / "ca.crt", origin)
        host = f"[{self.host}]" if ":" in self.host else self.host
        now, end = datetime.now(UTC), token_end(token)
        fresh = earliest(fresh_until(end, now), now + REREAD)
        return Credentials(f"https://{host}:{self.port}", origin, ca, token=token, fresh=fresh, end=end)


@dataclass(frozen=True)
class Fetched:
    """A kubeconfig that a server hands out. It may name no files of this machine, and run only `commands` here."""

    origin: str
    fetch: Callable[[], Awaitable[str]]
    context: str | None
    commands: Collection[str]

    async def read(self, before: Credentials | None) -> Credentials:
        selected = kubeconfig.select(kubeconfig.parse(await self.fetch(), self.origin, None), self.context)
        if not selected.server.startswith("https://"):
            raise AccessError(f"{self.origin}: the API server's URL must begin with https://")
        return await credentials(
            selected, datetime.now(UTC), before=before, commands=self.commands, insecure_allowed=False
        )


def local(named: str | None, context: str | None) -> Source:
    """What this machine has: the kubeconfig that is named, KUBECONFIG, the pod's service account, ~/.kube/config."""
    if named:
        return Files(named, context, explicit=True)
    if variable := os.environ.get("KUBECONFIG"):
        return Files(variable, context, explicit=False)
    if host := os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ServiceAccount(host, os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    return Files(str(Path.home() / ".kube" / "config"), context, explicit=True)


def own_namespace() -> str | None:
    """The namespace that this process runs in as a pod; None: it is no pod."""
    try:
        return (MOUNTED / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


class Access:
    """Holds the credentials of one API server and renews them. For one event loop.

    The source is asked at first, when what it gave is no longer fresh, when the API server refuses it, and when nobody
    is reached with it; at most every 5 s, and less often while it gives nothing new. What is held outlives a source
    that fails for a while.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._held: Credentials | None = None
        self._lock = asyncio.Lock()
        self._reading: Whole[Credentials] = Whole()
        self._pause = AGAIN_FIRST
        self._not_before = 0.0
        self._reach_pause = AGAIN_FIRST
        self._reach_not_before = 0.0
        self.renewals = 0

    @property
    def end(self) -> datetime | None:
        """When what is held expires, where that is known."""
        return self._held.end if self._held else None

    async def close(self) -> None:
        """Wait for a renewal that is under way."""
        await self._reading.close()

    async def current(self) -> Credentials:
        """What to use now. Raises AccessError where there is nothing."""
        held = self._held
        if held is not None and (_fresh(held) or time.monotonic() < self._not_before):
            return held
        async with self._lock:
            if self._held is not held and self._held is not None:
                return self._held  # somebody else has renewed it meanwhile
            try:
                return await self._read()
            except AccessError as error:
                if held is None:
                    raise
                self._wait_longer()
                logger.warning("credentials were not renewed: %s", error)
                return held

    async def refused(self, used: Credentials) -> Credentials:
        """What to use after the API server answered 401 to `used`. Raises AccessError where the source has no other."""
        async with self._lock:
            held = self._held
            if held is not None and not held.same_secret(used):
                return held
            if (wait := self._not_before - time.monotonic()) > 0:
                raise AccessError(f"{_refusal(used)}; its source is asked again in {wait:.0f} s", passing=True)
            try:
                found = await self._read()
            except AccessError as error:
                self._wait_longer()
                raise AccessError(
                    f"{_refusal(used)}, and another cannot be had: {error}", passing=error.passing
                ) from error
            if found.same_secret(used):
                self._wait_longer()
                raise AccessError(f"{_refusal(used)}, and its source has no other: renew it there", passing=True)
            return found

    async def unreached(self, used: Credentials) -> Credentials | None:
        """What to use after nobody was reached with `used`, or its certificates do not fit together; None: no other.

        Whoever moves an API server or exchanges its authorities says so in the source. That is asked at most every
        5 s, less and less often, for one caller: the others do not wait.
        """
        if self._held is not None and not self._held.same_way(used):
            return self._held
        now = time.monotonic()
        if self._lock.locked() or now < self._reach_not_before:
            return None
        rested = now > self._reach_not_before + AGAIN_LONGEST
        self._reach_pause = AGAIN_FIRST if rested else min(AGAIN_LONGEST, 2 * self._reach_pause)
        async with self._lock:
            try:
                # What says who we are was not refused, so that none is renewed but one that has run out.
                found = await self._read(replace(used, token=None))
            except AccessError as error:
                logger.warning("no other way to the API server is known: %s", error)
                return None
            finally:
                self._reach_not_before = time.monotonic() + self._reach_pause
        return None if found.same_way(used) else found

    async def _read(self, told: Credentials | None = None) -> Credentials:
        """Ask the source. `told`: what it hears that it said last, if not what is held."""
        before = self._held
        found = await self._reading.run(lambda: self._source.read(told or before))
        self._held = found
        if before is None or not (found.same_secret(before) and found.same_way(before)):
            self._pause = AGAIN_FIRST
            self._not_before = time.monotonic() + (AGAIN_FIRST if before else 0.0)
            self.renewals += before is not None
            word = "API server" if before is None else "credentials renewed: API server"
            logger.info("%s %s (from %s)", word, found.server, found.origin)
        elif not _fresh(found):  # it has run out, or clocks differ
            self._wait_longer()
        return found

    def _wait_longer(self) -> None:
        self._not_before = time.monotonic() + self._pause
        self._pause = min(AGAIN_LONGEST, 2 * self._pause)


def _fresh(held: Credentials) -> bool:
    return held.fresh is None or datetime.now(UTC) < held.fresh


def _refusal(used: Credentials) -> str:
    return f"the API server {used.server} refuses the credential of {used.origin}"
