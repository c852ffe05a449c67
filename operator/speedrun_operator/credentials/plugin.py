"""Credential plugins: a command that prints a token or a client certificate, as kubectl's `exec` users name one.

The contract is client.authentication.k8s.io/v1 (and v1beta1): KUBERNETES_EXEC_INFO goes in, an ExecCredential comes out
on standard output. A plugin that fails is a failure, never a request without credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.lifetime import certificate_end, earliest, moment, token_end

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
SECONDS = 60.0
KILL_SECONDS = 5.0
MOST_OUTPUT = 1 << 20
MOST_TOLD = 300


@dataclass(frozen=True)
class Plugin:
    """A command and how to call it. `whose` names the user or setting that it is of, for messages."""

    whose: str
    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str = VERSIONS[0]
    hint: str = ""
    directory: Path | None = None
    plain: bool = False
    """A bare token is taken, too."""

    def __str__(self) -> str:
        return f"{self.whose}: the command {self.command!r}"


@dataclass(frozen=True)
class Printed:
    """What a plugin printed. PEM texts; `end` is when it expires, where that is known."""

    token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    private_key: str | None = field(default=None, repr=False)
    end: datetime | None = None


async def run(plugin: Plugin, cluster: Mapping[str, Any] | None = None, seconds: float = SECONDS) -> Printed:
    """Run it and read what it printed. `cluster` is told to plugins that ask for it. Raises AccessError."""
    spec: dict[str, Any] = {"interactive": False} | ({"cluster": dict(cluster)} if cluster else {})
    info = json.dumps({"apiVersion": plugin.version, "kind": "ExecCredential", "spec": spec})
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": info}
    process = await _start(plugin, environment)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    except TimeoutError:
        raise AccessError(f"{plugin} gave no answer within {seconds:g} s; it was ended", passing=True) from None
    finally:
        await _end(process)
    if process.returncode != 0:
        said = err.decode(errors="replace").strip()[-MOST_TOLD:]
        told = f"{plugin} failed with exit code {process.returncode}: {said or 'it printed no reason'}"
        raise AccessError(told, passing=True)  # the code does not tell a network that is away from a sign-in that ended
    return _read(plugin, out[:MOST_OUTPUT].decode(errors="replace"))


async def _start(plugin: Plugin, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    command = plugin.command
    if "/" in command:
        command = str((plugin.directory or Path()) / command)
    elif shutil.which(command, path=environment.get("PATH")) is None:
        raise AccessError(f"{plugin} is not found in PATH{_hint(plugin)}")
    try:
        return await asyncio.create_subprocess_exec(
            command,
            *plugin.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise AccessError(f"{plugin} cannot be run ({error.strerror or error}){_hint(plugin)}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the plugin and its children, if it is not over; what the loop holds of it is let go of."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()


def _hint(plugin: Plugin) -> str:
    return f": {plugin.hint.strip()[:MOST_TOLD]}" if plugin.hint.strip() else "; install it where the operator runs"


def _read(plugin: Plugin, text: str) -> Printed:
    """What was printed is never shown: it may be the secret."""
    try:
        printed = json.loads(text)
    except ValueError:
        token = text.strip()
        if plugin.plain and not token:
            raise AccessError(f"{plugin} printed an empty token") from None
        if plugin.plain and len(token.split()) == 1:
            return Printed(token=token, end=token_end(token))
        raise AccessError(f"{plugin}: its output is not an ExecCredential") from None
    if not isinstance(printed, dict) or printed.get("kind") != "ExecCredential":
        raise AccessError(f"{plugin}: its output is not an ExecCredential")
    status = printed.get("status")
    status = status if isinstance(status, dict) else {}
    token, certificate, key = (
        str(status.get(name) or "").strip() for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if certificate and not key:
        raise AccessError(f"{plugin} printed a certificate without its key")
    if not token and not certificate:
        raise AccessError(f"{plugin} printed an empty token")
    end = earliest(
        moment(str(status.get("expirationTimestamp") or "")),
        token_end(token) if token else None,
        certificate_end(certificate) if certificate else None,
    )
    return Printed(token or None, certificate or None, key or None, end)
