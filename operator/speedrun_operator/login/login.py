"""Commands on one login service, over its one connection: how many at once, how long, and what became of them.

What a command is and what it prints is the callers' business.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from speedrun_operator.distribution import Counted, Distribution

from .command import CommandSession, Completed
from .errors import LoginError, NotRun, OutcomeUnknown, Reason
from .frame import Request, encode
from .keeper import Keeper
from .link import ChannelRefused, Link, LinkLost, quiet_asyncssh
from .target import LoginTarget, check_key, load_private_key, read_trust

MAX_OUTPUT = 4 * 1024 * 1024  # bytes of stdout
LATENCY_BOUNDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)  # seconds
REFUSED_FIRST, REFUSED_LONGEST = 0.05, 1.0  # seconds between tries for a session that the server refuses


@dataclass(frozen=True)
class Health:
    """How the login does, for checks and metrics. Counts are since the process started."""

    state: str
    """idle (no connection asked for), connecting, connected, waiting (back-off) or closed."""
    connected_since: datetime | None
    connecting_since: datetime | None
    next_try_in: float
    """Seconds; 0 unless waiting."""
    last_error: LoginError | None
    """Of the last command that failed; kept after all is well again, so see last_error_at."""
    last_error_at: datetime | None
    connects: int
    connect_failures: int
    commands: int
    """Completed, with any exit code."""
    commands_not_run: int
    commands_unknown: int
    latency: Counted
    """Of the completed ones, from asking for it to the whole answer."""
    channels: int
    """Sessions that the server may hold for us now."""


class Login:
    """Runs commands on one login service. For use in one event loop.

    login = Login(LoginTarget(host=…, user=…, key=Path(…), known_hosts=Path(…)))
    done = await login.run("cat > note; wc -c < note", stdin=b"hello", timeout=30)
    await login.close()
    """

    def __init__(self, target: LoginTarget) -> None:
        quiet_asyncssh()
        self.target = target
        self._keeper = Keeper(target)
        self._slots = asyncio.Semaphore(target.max_channels)
        self._channels = 0
        self._not_run = self._unknown = 0
        self._latency = Distribution(LATENCY_BOUNDS)
        self._last_error: tuple[LoginError, datetime] | None = None

    def check_files(self) -> None:
        """Read key and known_hosts without connecting. Raises NotRun naming the file and the remedy."""
        load_private_key(self.target, read_trust(self.target).key)

    def check_key(self) -> None:
        """The same of the key alone, and that not all may read it. Raises NotRun naming the file and the remedy."""
        check_key(self.target)

    def renew(self, target: LoginTarget) -> None:
        """Another key, or other known_hosts, of the same user: the next command connects anew, those under way end."""
        if str(target) != str(self.target):
            raise ValueError(f"{target} is another login than {self.target}")
        self.target = target
        self._keeper.renew(target)

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float,  # noqa: ASYNC109 (which failure its end is depends on how far the command was)
        max_output: int = MAX_OUTPUT,
    ) -> Completed:
        """Run a bash script on the login service, with `stdin` as its standard input, and return what it printed.

        The script starts in the home directory with LC_ALL=C, in a bash without start-up files; it reads its input
        from descriptor 0 (not from /dev/stdin: it is a socket). `timeout` is in seconds for everything, waiting for
        a connection included; `max_output` in bytes of stdout. Any exit code is a result.

        Raises NotRun, OutcomeUnknown (see errors.py), and ValueError for a script with a NUL. A cancelled call ends
        its command and leaves the connection alone.
        """
        request = encode(script, stdin)
        began = time.monotonic()
        deadline = began + timeout
        try:
            link, session = await self._start(request, max_output, deadline)
            done = await self._answer(session, deadline, timeout)
        except LoginError as error:
            self._last_error = (error, datetime.now(UTC))
            if isinstance(error, OutcomeUnknown):
                self._unknown += 1
            else:
                self._not_run += 1
            raise
        self._latency.add(time.monotonic() - began)
        self._keeper.worked(link)
        return done

    async def close(self) -> None:
        """End the connection: running commands end with OutcomeUnknown, later ones with NotRun (LoginClosed)."""
        await self._keeper.close()

    def health(self) -> Health:
        """A snapshot."""
        keeper, latency = self._keeper, self._latency.counted()
        return Health(
            state=keeper.state,
            connected_since=keeper.connected_since,
            connecting_since=keeper.connecting_since,
            next_try_in=keeper.next_try_in(),
            last_error=self._last_error[0] if self._last_error else None,
            last_error_at=self._last_error[1] if self._last_error else None,
            connects=keeper.connects,
            connect_failures=keeper.failures,
            commands=latency.count,
            commands_not_run=self._not_run,
            commands_unknown=self._unknown,
            latency=latency,
            channels=self._channels,
        )

    async def _start(self, request: Request, max_output: int, deadline: float) -> tuple[Link, CommandSession]:
        """Send the request over a channel of a live connection. Raises NotRun, never OutcomeUnknown."""
        pause = REFUSED_FIRST
        while True:
            link = await self._keeper.live(deadline=min(deadline, time.monotonic() + self.target.patience))
            await self._take_slot(deadline)
            session = CommandSession(request, max_output=max_output, loop=asyncio.get_running_loop())
            session.closed.add_done_callback(self._give_slot)
            try:
                await link.start(session, deadline=deadline)
                return link, session
            except LinkLost:
                continue  # not for ever: the keeper backs off from connections that die before a command completes
            except ChannelRefused as refused:
                if time.monotonic() + pause >= deadline:
                    raise self._no_session(refused) from refused
            # The server counts a session until its process has ended, so one may be free in a moment.
            await asyncio.sleep(pause * (1 - random.random() / 2))
            pause = min(REFUSED_LONGEST, pause * 2)

    async def _answer(self, session: CommandSession, deadline: float, allowed: float) -> Completed:
        try:
            done, _ = await asyncio.wait({session.result}, timeout=max(0.0, deadline - time.monotonic()))
        except asyncio.CancelledError:
            session.abandon()
            raise
        if done:
            return session.result.result()
        error = session.unknown(
            Reason.COMMAND_TIMEOUT, f"The command gave no complete answer within {allowed:g} s; it was ended."
        )
        session.abandon()
        raise error

    async def _take_slot(self, deadline: float) -> None:
        """Wait for one of max_channels. A slot is held until the server has closed the channel."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._slots.acquire()
        except TimeoutError:
            raise NotRun(
                Reason.LOGIN_TIMEOUT,
                f"All {self.target.max_channels} channels to the login service were in use until the time was up: "
                "commands hang there, or more are asked for than it can answer.",
            ) from None
        self._channels += 1

    def _give_slot(self, _: object) -> None:
        self._channels -= 1
        self._slots.release()

    def _no_session(self, refused: ChannelRefused) -> NotRun:
        return NotRun(
            Reason.LOGIN_BUSY,
            f"The login service opens no further session for {self.target.user} ({refused}). Other sessions of this "
            f"connection are fine; set max_channels (now {self.target.max_channels}) below the server's MaxSessions.",
        )
