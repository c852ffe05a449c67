"""Which login service, and what it is trusted by: the settings of one login, and the files they name.

The private key is read by this process, not by an ssh client that demands mode 0600 and its own owner: a key mounted
from a Secret under an fsGroup is root's with mode 0440. Both files are read again for each use, because a mounted
Secret changes under a running process.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from .errors import NotRun, Reason

MOST_CHANNELS = 8


@dataclass(frozen=True, kw_only=True)
class LoginTarget:
    """One login on one login service. Times are in seconds.

    Raises ValueError for values that could never work.
    """

    host: str
    user: str
    key: Path | bytes = field(repr=False)
    """The private key without a passphrase: a file, or its content."""
    known_hosts: Path | str
    """The host keys to accept: a file in known_hosts form, or its text. There is no way to accept any key."""
    port: int = 22
    connect_timeout: float = 200.0
    """A per-user login pod takes up to three minutes to start."""
    patience: float = math.inf
    """So long a command waits for a connection that is being made, at most; the attempt goes on without it."""
    max_channels: int = MOST_CHANNELS
    """Commands at once. sshd's MaxSessions is 10 by default, and the login may be used for other things too."""
    keepalive_interval: float = 15.0
    keepalive_count: int = 3
    """A silent peer is given up after interval × (count + 1)."""
    backoff_first: float = 1.0
    backoff_longest: float = 60.0
    origin: str = "the settings"
    """Where key and known_hosts are from, for messages, if they are no files."""

    def __post_init__(self) -> None:
        for name, value in (("host", self.host), ("user", self.user)):
            if not value or not value.isprintable() or " " in value:
                raise ValueError(f"login {name} {value!r}: give a name without spaces or control characters")
        if not 0 < self.port < 65536:
            raise ValueError(f"login port {self.port}: give a number from 1 to 65535")
        if not 1 <= self.max_channels <= MOST_CHANNELS:
            raise ValueError(f"login max_channels {self.max_channels}: give a number from 1 to {MOST_CHANNELS}")
        if self.keepalive_count < 1:
            raise ValueError("login keepalive_count: give at least 1")
        times = (self.connect_timeout, self.patience, self.keepalive_interval, self.backoff_first, self.backoff_longest)
        if min(times) <= 0:
            raise ValueError("login time-outs, patience, keepalive_interval and back-off: give more than 0 seconds")

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


@dataclass(frozen=True)
class Trust:
    """What a connection rests on, as bytes to compare: a change of either is a reason to connect anew."""

    known_hosts: str
    key: bytes = field(repr=False)


def read_trust(target: LoginTarget) -> Trust:
    """Read both files now. Raises NotRun (KnownHostsUnusable, LoginKeyUnusable) with the path and the remedy."""
    return Trust(_read_known_hosts(target), _read_key(target))


def check_key(target: LoginTarget) -> None:
    """What a person should hear before anything runs. Raises NotRun (LoginKeyUnusable), also where all may read it.

    Its group may: that is what an fsGroup gives. A running operator goes on with a key whose mode somebody changes.
    """
    key = _read_key(target)
    if isinstance(target.key, Path) and target.key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise NotRun(
            Reason.LOGIN_KEY_UNUSABLE,
            f"The private key {target.key} is open to every user of this machine{_mode(target.key)}. Close it with "
            f"`chmod 600 {target.key}` (a Secret's volume: defaultMode 0440), and make a new key if others had access.",
        )
    load_private_key(target, key)


def load_private_key(target: LoginTarget, key: bytes) -> asyncssh.SSHKey:
    """The key to log in with. Raises NotRun (LoginKeyUnusable)."""
    place = target.key if isinstance(target.key, Path) else f"in {target.origin}"
    try:
        return asyncssh.import_private_key(key)
    except ValueError as error:  # asyncssh's key errors; their texts hold nothing of the key
        raise NotRun(
            Reason.LOGIN_KEY_UNUSABLE,
            f"The private key {place} cannot be used: {error}. Give a private key in OpenSSH or PEM form without a "
            f"passphrase (`ssh-keygen -p -f FILE` takes one off).",
        ) from error


def keyscan_hint(target: LoginTarget) -> str:
    """How to obtain the host keys, for messages."""
    return (
        f"Get the keys with `ssh-keyscan -p {target.port} {target.host}`, compare their fingerprints "
        f"(`ssh-keygen -lf FILE`) with those that the cluster's administrator gives, and add the lines to known_hosts."
    )


def _read_known_hosts(target: LoginTarget) -> str:
    if isinstance(target.known_hosts, str):
        text = target.known_hosts
        place = target.origin
    else:
        place = str(target.known_hosts)
        try:
            text = target.known_hosts.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise NotRun(
                Reason.KNOWN_HOSTS_UNUSABLE,
                f"Cannot read known_hosts at {place}: {_cause(error)}. Without it no host key is accepted. "
                f"{keyscan_hint(target)}",
            ) from error
    if not text.strip():
        raise NotRun(
            Reason.KNOWN_HOSTS_UNUSABLE,
            f"No known_hosts: {place} is empty, and without it no host key is accepted. {keyscan_hint(target)}",
        )
    return text


def _read_key(target: LoginTarget) -> bytes:
    if isinstance(target.key, bytes):
        return target.key
    try:
        return target.key.read_bytes()
    except OSError as error:
        raise NotRun(
            Reason.LOGIN_KEY_UNUSABLE,
            f"Cannot read the private key {target.key}: {_cause(error)}{_mode(target.key)}. "
            f"Mount it so that user {os.getuid()} or one of its groups may read it (an fsGroup does that).",
        ) from error


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _mode(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f" (mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}, group {found.st_gid})"
