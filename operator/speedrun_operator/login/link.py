"""One authenticated connection, and the only place where asyncssh's failures get our names.

Nothing of this machine's SSH set-up is used: no ssh_config, agent, default keys, default known_hosts or Kerberos.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import asyncssh

from .command import CommandSession
from .errors import NotRun, Reason
from .frame import EXEC_COMMAND
from .hostkeys import Pins, find_pins, refusal
from .target import LoginTarget, Trust, load_private_key

CLOSE_WAIT = 5.0  # seconds for a goodbye before the socket is dropped


class ChannelRefused(Exception):
    """The server opens no further session now (MaxSessions). The connection and its other commands are fine."""


class LinkLost(Exception):
    """The connection ended before the command was sent, which therefore did not run."""


class Link:
    """An open connection. `trust` is what it was made with."""

    def __init__(self, connection: asyncssh.SSHClientConnection, trust: Trust) -> None:
        self.trust = trust
        self.proven = False  # a command has completed on it
        self._connection = connection
        self._sessions: set[CommandSession] = set()
        self._retired = False

    async def start(self, session: CommandSession, *, deadline: float) -> None:
        """Open a channel and send the command; returns once it is sent.

        Whatever happens, `session.closed` is set once the server holds no channel for it. Raises ChannelRefused,
        LinkLost, and NotRun where waiting does not help or the `deadline` (time.monotonic) has passed.
        """
        allowed = max(0.0, deadline - time.monotonic())
        self._sessions.add(session)
        session.closed.add_done_callback(lambda _: self._session_closed(session))
        opening = asyncio.ensure_future(self._connection.create_session(lambda: session, EXEC_COMMAND, encoding=None))
        opening.add_done_callback(session.opening_ended)
        try:
            done, _ = await asyncio.wait({opening}, timeout=allowed)
        except asyncio.CancelledError:
            session.abandon()
            raise
        if not done:
            session.abandon()
            raise NotRun(
                Reason.LOGIN_TIMEOUT,
                f"The login service opened no session within {allowed:.1f} s; the connection may be dead or the "
                "machine hung.",
            )
        error = opening.exception()
        if error is None:
            return
        # Sending is the last step of opening, so nothing of the command has gone out.
        session.abandon()
        if self._connection.is_closed() or isinstance(error, asyncssh.DisconnectError):
            self._connection.abort()
            await self._connection.wait_closed()  # on_lost has been called by then: nobody gets this link again
            raise LinkLost(str(error)) from error
        if isinstance(error, asyncssh.ChannelOpenError):
            if error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                raise NotRun(
                    Reason.SHELL_UNAVAILABLE,
                    f"Logged in, but the login service refuses to run commands ({error.reason}). The account needs "
                    "permission to execute.",
                ) from error
            raise ChannelRefused(error.reason) from error
        raise error

    def retire(self) -> None:
        """Take no new commands; close once the running ones have ended."""
        self._retired = True
        if not self._sessions:
            self._connection.close()

    async def close(self) -> None:
        """Close now; running commands end with OutcomeUnknown."""
        self._connection.close()
        try:
            async with asyncio.timeout(CLOSE_WAIT):
                await self._connection.wait_closed()
        except TimeoutError:
            self._connection.abort()

    def _session_closed(self, session: CommandSession) -> None:
        self._sessions.discard(session)
        if self._retired and not self._sessions:
            self._connection.close()


async def open_link(target: LoginTarget, trust: Trust, on_lost: Callable[[Link, Exception | None], None]) -> Link:
    """Connect, verify the host key, log in. Raises NotRun.

    `on_lost` is called once when the link has ended, for whatever reason, but not before this returns.
    """
    pins = find_pins(trust.known_hosts, target)
    key = load_private_key(target, trust.key)
    peer = _Peer(pins)
    _provide_local_user()
    try:
        async with asyncio.timeout(target.connect_timeout):
            connection = await asyncssh.connect(
                target.host,
                target.port,
                username=target.user,
                client_factory=lambda: peer,
                client_keys=[key],
                known_hosts=(pins.keys, pins.authorities, pins.revoked),
                server_host_key_algs=pins.algorithms(),
                config=None,
                agent_path=None,
                gss_kex=False,
                gss_auth=False,
                host_based_auth=False,
                kbdint_auth=False,
                password_auth=False,
                x509_trusted_certs=None,
                compression_algs=None,
                login_timeout=target.connect_timeout,
                keepalive_interval=target.keepalive_interval,
                keepalive_count_max=target.keepalive_count,
            )
    except Exception as error:  # whatever a strange server makes asyncssh raise: no command was sent
        raise _not_run(error, target, peer, key) from error
    link = Link(connection, trust)
    if connection.is_closed():
        raise _not_run(asyncssh.ConnectionLost("closed right after the login"), target, peer, key)
    peer.on_lost = lambda cause: on_lost(link, cause)
    return link


class _Peer(asyncssh.SSHClient):
    """What asyncssh tells of a connection: how far it came, the key that the server showed, its end."""

    def __init__(self, pins: Pins) -> None:
        self.pins = pins
        self.stage = "connecting"
        self.presented: asyncssh.SSHKey | None = None
        self.on_lost: Callable[[Exception | None], None] | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.stage = "key exchange"

    def begin_auth(self, username: str) -> None:
        self.stage = "authentication"

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        # Asked only for a key that is not pinned: remembered for the message, never accepted.
        self.presented = key
        return False

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.presented = key
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.on_lost is not None:
            self.on_lost(exc)


def _not_run(error: Exception, target: LoginTarget, peer: _Peer, key: asyncssh.SSHKey) -> NotRun:
    """The failure to connect, by what a person can do about it."""
    where = f"{target.host}:{target.port}"
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return refusal(target, peer.pins, peer.presented, str(error))
        case asyncssh.PermissionDenied():
            return _denied(target, key, str(error))
        case asyncssh.DisconnectError() if "authentication failures" in error.reason:
            return _denied(target, key, error.reason)
        case TimeoutError() if error.errno is None:  # ours; the kernel's has a number, and comes before any stage
            return NotRun(
                Reason.LOGIN_TIMEOUT,
                f"The login service at {where} did not finish {peer.stage} within {target.connect_timeout:.0f} s. A "
                "per-user login pod takes up to 3 minutes to start; check its pod and that the network lets this "
                "port through.",
            )
        case socket.gaierror():
            return NotRun(
                Reason.LOGIN_UNREACHABLE,
                f"The login service's name {target.host} does not resolve ({error.strerror}). Check the host in the "
                "settings; inside the cluster it is SERVICE.NAMESPACE.svc.",
            )
        case asyncssh.ConnectionLost() | ConnectionResetError() | BrokenPipeError() if peer.stage != "connecting":
            return NotRun(
                Reason.LOGIN_BUSY,
                f"The login service at {where} closed the connection during {peer.stage}. It is busy (MaxStartups), "
                "restarting, or a gateway turns this client away; nothing needs changing if it goes away by itself.",
            )
        case OSError():
            return NotRun(
                Reason.LOGIN_UNREACHABLE,
                f"Cannot connect to the login service at {where} ({error.strerror or error}). Check that it runs and "
                "that the network lets this port through.",
            )
    cause = str(error) or type(error).__name__
    return NotRun(
        Reason.LOGIN_HANDSHAKE_FAILED,
        f"No SSH session with the login service at {where}: {cause} (during {peer.stage}). Check that an SSH server "
        "answers on this port and that it allows current algorithms.",
    )


def _denied(target: LoginTarget, key: asyncssh.SSHKey, cause: str) -> NotRun:
    return NotRun(
        Reason.LOGIN_AUTHENTICATION_FAILED,
        f"The login service at {target.host}:{target.port} does not let user {target.user} in with the key "
        f"{key.get_fingerprint()} ({cause}). Check the user name and that this key's public half is registered for "
        "it; a key registered just now can take two minutes.",
    )


def _provide_local_user() -> None:
    """Let asyncssh find a local user name and home, which it insists on and has no use for here.

    A container that runs under an arbitrary user id has no passwd line, and asyncssh then refuses to connect.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = "speedrun-operator"
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def quiet_asyncssh() -> None:
    """asyncssh logs several lines a channel at INFO; unless someone has chosen its level, only warnings pass."""
    logger = logging.getLogger("asyncssh")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
