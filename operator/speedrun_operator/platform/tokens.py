"""The person's token, from wherever it is renewed: a file, an environment variable, a command, or a refresh token.

Each is looked at again when the token is about to run out and when the API refuses it, so that a renewed one is taken
up without a restart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from speedrun_operator.credentials import oidc, plugin
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.lifetime import MARGIN, claims, earliest, fresh_until, token_end
from speedrun_operator.credentials.private import write_private
from speedrun_operator.credentials.user import REREAD
from speedrun_operator.credentials.whole import Whole

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Token:
    """A bearer token. `end`: when it expires, where that is known; `fresh`: until when its source need not be read."""

    value: str = field(repr=False)
    end: datetime | None = None
    fresh: datetime | None = None

    @property
    def is_service_account(self) -> bool:
        """Whether the token itself says that it is no person's; these are refused."""
        told = claims(self.value)
        subject = str(told.get("sub", ""))
        return subject.startswith("system:serviceaccount:") or any(
            str(told.get(name, "")).replace("-", "_").lower() in ("service_account", "serviceaccount", "machine")
            for name in ("typ", "type", "token_type", "principal_type", "subject_type")
        )


def token(text: str, where: str) -> Token:
    """Raises AccessError for what cannot be one; the text is never shown."""
    value = text.strip().removeprefix("Bearer ").strip()
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise AccessError(f"{where} holds no token: give the bare token of a signed-in person")
    return Token(value, token_end(value))


class Source(Protocol):
    def __str__(self) -> str: ...

    def read(self) -> Coroutine[Any, Any, Token]:
        """The token as it is there now. Raises AccessError."""
        ...


@dataclass(frozen=True)
class FromFile:
    path: Path

    def __str__(self) -> str:
        return f"the file {self.path}"

    async def read(self) -> Token:
        try:
            found = token(self.path.read_text(encoding="utf-8"), str(self))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise AccessError(f"cannot read the token in {self.path}: {reason}") from error
        return replace(found, fresh=datetime.now(UTC) + REREAD)


@dataclass(frozen=True)
class FromVariable:
    name: str
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def __str__(self) -> str:
        return f"the environment variable {self.name}"

    async def read(self) -> Token:
        if self.name not in self.environment:
            raise AccessError(
                f"no token for the Platform API: set {self.name}, platform.token_file, platform.token_command or "
                "platform.refresh_token_file"
            )
        return token(self.environment[self.name], str(self))


@dataclass(frozen=True)
class FromCommand:
    """A command that prints a token, bare or as an ExecCredential."""

    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"the command {self.argv[0]!r}"

    async def read(self) -> Token:
        run = plugin.Plugin("platform.token_command", self.argv[0], self.argv[1:], plain=True)
        printed = await plugin.run(run)
        if printed.token is None:
            raise AccessError("platform.token_command printed a certificate; the Platform API takes a token")
        made = token(printed.token, str(self))
        return Token(made.value, printed.end or made.end)


@dataclass
class FromRefreshToken:
    """New tokens from the issuer. A refresh token that the issuer rotates is written back before anything else."""

    issuer: str
    client_id: str
    path: Path
    secret_path: Path | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    _rotated: str | None = field(default=None, repr=False)
    _instead_of: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"the refresh token in {self.path}"

    async def read(self) -> Token:
        stored = _text(self.path, "the refresh token")
        # Where it could not be written back, the rotated one is known to us alone; a changed file means a new sign-in.
        spend = self._rotated if self._rotated and stored == self._instead_of else stored
        secret = _text(self.secret_path, "the client's secret") if self.secret_path else ""
        client = oidc.Client("platform.issuer", self.issuer, self.client_id, secret, self.tls)
        tokens = await oidc.refresh(client, spend)
        if tokens.refresh and tokens.refresh != spend:
            self._keep(tokens.refresh, stored)
        if not (value := tokens.access or tokens.identity):
            raise AccessError(f"{client} gave no token")
        made = token(value, str(self))
        return Token(made.value, tokens.access_end if tokens.access else made.end)

    def _keep(self, rotated: str, stored: str) -> None:
        self._rotated, self._instead_of = rotated, stored
        try:
            write_private(self.path, rotated + "\n")
        except OSError as error:
            logger.error(
                "%s: the issuer gave a new refresh token, and it cannot be written there (%s): after a restart of the "
                "operator somebody has to sign in again; give it a file that it may write",
                self.path,
                error.strerror or error,
            )
        else:
            self._rotated = None


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise AccessError(f"cannot read {what} in {path}: {reason}") from error


class Tokens:
    """Holds the token and renews it `ahead` of its end, or in the last fifth of a short life. For one event loop."""

    def __init__(self, source: Source, ahead: timedelta = MARGIN) -> None:
        self.source = source
        self._ahead = ahead
        self._held: Token | None = None
        self._due: datetime | None = None
        self._lock = asyncio.Lock()
        self._reading: Whole[Token] = Whole()
        self.overdue = False
        """Whether a renewal was due, and the source had no other token."""

    @property
    def held(self) -> Token | None:
        return self._held

    async def close(self) -> None:
        """Wait for a renewal that is under way."""
        await self._reading.close()

    async def current(self) -> Token:
        """The token to use. One that cannot be renewed is used to its end. Raises AccessError."""
        async with self._lock:
            held = self._held
            now = datetime.now(UTC)
            if held is not None and (held.fresh is None or now < held.fresh):
                return held
            try:
                return await self._read()
            except AccessError as error:
                self._had_no_other()
                if held is None or (held.end is not None and now >= held.end):
                    raise
                logger.warning("the Platform API's token was not renewed: %s", error)
                return held

    async def another(self, refused: Token) -> Token | None:
        """The token that its source has instead of a refused one; None where it has no other. Raises AccessError."""
        async with self._lock:
            if self._held is not None and self._held.value != refused.value:
                return self._held
            found = await self._read()
            return found if found.value != refused.value else None

    async def _read(self) -> Token:
        found = await self._reading.run(self.source.read)
        due = fresh_until(found.end, datetime.now(UTC), self._ahead)
        if self._held is None or found.value != self._held.value:
            self._due, self.overdue = due, False
        else:
            self._had_no_other()
        self._held = replace(found, fresh=earliest(due, found.fresh))
        return self._held

    def _had_no_other(self) -> None:
        self.overdue = self._due is not None and datetime.now(UTC) >= self._due
