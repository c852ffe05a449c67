"""The one connection of a login, kept: opened once however many callers wait, watched, opened anew when needed.

A link is given up when it is lost, or when key or known_hosts have changed. After a failure nobody waits in a queue:
until the back-off is over each caller is told at once what failed and when the next try is.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime

from .backoff import Backoff
from .errors import NotRun, Reason
from .link import Link, open_link
from .target import LoginTarget, Trust, read_trust

SAY_AFTER = 10.0  # seconds of connecting before the log says that it still goes on

logger = logging.getLogger("speedrun_operator.login")


class Keeper:
    """Gives the live link of one target. For one event loop."""

    def __init__(self, target: LoginTarget) -> None:
        self._target = target
        self._backoff = Backoff(first=target.backoff_first, longest=target.backoff_longest, chance=random.random)
        self._link: Link | None = None
        self._open: set[Link] = set()  # the link, and those that it replaced while commands ran on them
        self._connecting: asyncio.Task[Link | NotRun] | None = None
        self._failure: tuple[NotRun, Trust] | None = None  # why we back off, and what was tried
        self._closed = False
        self.connected_since: datetime | None = None
        self.connecting_since: datetime | None = None
        self.connects = 0
        self.failures = 0

    async def live(self, *, deadline: float) -> Link:
        """The open link, opened if need be. Raises NotRun, at `deadline` (time.monotonic) at the latest.

        The attempt to connect is nobody's own: it goes on for connect_timeout when its callers have left.
        """
        if self._closed:
            raise _ending()
        trust = self._current_trust()
        if self._link is not None:
            if self._link.trust == trust:
                return self._link
            self._retire()
        if self._connecting is None:
            self._hold_back(trust)
            self.connecting_since = datetime.now(UTC)
            self._connecting = asyncio.create_task(self._connect(trust))
        connecting = self._connecting
        done, _ = await asyncio.wait({connecting}, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            raise self._still_connecting()
        if connecting.cancelled():
            raise _ending()
        outcome = connecting.result()
        if isinstance(outcome, NotRun):
            raise outcome.delayed(self.next_try_in())
        return outcome

    def renew(self, target: LoginTarget) -> None:
        """From now on this is what a connection is made with."""
        self._target = target

    def worked(self, link: Link) -> None:
        """A command has completed on `link`: its loss will be an accident, not a sign to stay away."""
        link.proven = True
        if link is self._link:
            self._failure = None
            self._backoff.reset()

    def next_try_in(self) -> float:
        """Seconds until a connection may be tried; 0 while there is one, or one is being opened."""
        return 0.0 if self._link or self._connecting else self._backoff.remaining(time.monotonic())

    @property
    def state(self) -> str:
        """idle, connecting, connected, waiting (back-off) or closed."""
        if self._closed:
            return "closed"
        if self._link is not None:
            return "connected"
        if self._connecting is not None:
            return "connecting"
        return "waiting" if self.next_try_in() else "idle"

    async def close(self) -> None:
        """Close the link, and open no other."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        await asyncio.gather(*(link.close() for link in self._open))

    def _current_trust(self) -> Trust:
        """Key and pins as they are now; a live link outlives files that cannot be read for a moment."""
        try:
            return read_trust(self._target)
        except NotRun:
            if self._link is None:
                raise
            return self._link.trust

    def _hold_back(self, trust: Trust) -> None:
        """Raise NotRun during the back-off, unless key or known_hosts have changed since the failure."""
        if self._failure is None:
            return
        error, tried = self._failure
        if tried != trust:
            self._backoff.reset()
        elif (wait := self.next_try_in()) > 0:
            raise error.delayed(wait)

    async def _connect(self, trust: Trust) -> Link | NotRun:
        loop = asyncio.get_running_loop()
        started = loop.time()
        still = loop.call_later(SAY_AFTER, self._say_connecting)
        try:
            link = await open_link(self._target, trust, self._lost)
        except NotRun as error:
            self._fail(error, trust)
            return error
        finally:
            still.cancel()
            self._connecting = None
            self.connecting_since = None
        self.connects += 1
        self._link = link
        self._open.add(link)
        self.connected_since = datetime.now(UTC)
        took = loop.time() - started
        logger.info("login %s: connected in %.2f s (connection %d)", self._target, took, self.connects)
        return link

    def _lost(self, link: Link, cause: Exception | None) -> None:
        self._open.discard(link)
        if link is not self._link:
            return  # replaced before
        self._link = None
        self.connected_since = None
        if self._closed:
            logger.info("login %s: closed", self._target)
        elif link.proven:
            logger.warning("login %s: connection lost (%s); the next command opens another", self._target, cause)
        else:
            # Connections that are accepted and dropped must not be opened again and again without a pause.
            text = f"The login service accepted the login and then dropped the connection ({cause})."
            self._fail(NotRun(Reason.LOGIN_BUSY, text), link.trust)

    def _fail(self, error: NotRun, trust: Trust) -> None:
        self.failures += 1
        self._failure = (error, trust)
        delay = self._backoff.failed(time.monotonic())
        logger.warning("login %s: %s: %s Next try after %.1f s", self._target, error.reason, error.message, delay)

    def _retire(self) -> None:
        assert self._link is not None
        logger.info("login %s: key or known_hosts has changed, connecting anew", self._target)
        link, self._link = self._link, None
        self.connected_since = None
        self._failure = None
        self._backoff.reset()
        link.retire()

    def _say_connecting(self) -> None:
        logger.info("login %s: %s", self._target, self._still_connecting().message)

    def _still_connecting(self) -> NotRun:
        since = self.connecting_since
        waited = (datetime.now(UTC) - since).total_seconds() if since else 0.0
        return NotRun(
            Reason.LOGIN_STARTING,
            f"The login service at {self._target.host}:{self._target.port} is starting, or slow: connecting for "
            f"{waited:.0f} s of at most {self._target.connect_timeout:.0f} s. The attempt goes on.",
        )


def _ending() -> NotRun:
    return NotRun(Reason.LOGIN_CLOSED, "The operator is ending and runs no more commands.")
