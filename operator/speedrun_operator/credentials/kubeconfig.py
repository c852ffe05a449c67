"""Kubeconfigs: read, merged as kubectl merges them, and one context chosen. YAML or JSON.

What a kubeconfig asks for and this does not do (impersonation, another name for TLS) is refused: leaving it out would
be another identity, or another server.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.private import write_private

UNSUPPORTED_USER = ("as", "as-uid", "as-groups", "as-user-extra")


@dataclass(frozen=True)
class Entry:
    """A cluster, user or context with its origin. `directory`: relative paths start there; None: paths are refused."""

    name: str
    content: Mapping[str, Any] = field(repr=False)
    origin: str
    directory: Path | None

    def text(self, key: str) -> str:
        value = self.content.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise AccessError(f"{self.origin}: {key} of {self.name!r} must be a string")
        return value

    def path(self, key: str) -> Path | None:
        """The file that `key` names, if it names one."""
        if not (named := self.text(key)):
            return None
        if self.directory is None:
            raise AccessError(
                f"{self.origin}: {key} of {self.name!r} names a file of this machine; that is not followed"
            )
        return self.directory / Path(named).expanduser()

    def pem(self, key: str) -> str | None:
        """What `<key>-data` holds, else the file that `<key>` names holds."""
        if data := self.text(f"{key}-data"):
            try:
                return base64.b64decode(data, validate=False).decode("ascii")
            except ValueError:
                raise AccessError(f"{self.origin}: {key}-data of {self.name!r} is not base64 of a PEM text") from None
        path = self.path(key)
        return read(path, f"{self.origin}: {key} of {self.name!r}") if path else None


def read(path: Path, what: str) -> str:
    """A file's text. Raises AccessError."""
    try:
        return path.read_text(encoding="utf-8").strip() + "\n"
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise AccessError(f"{what}: cannot read {path}: {reason}") from error


@dataclass(frozen=True)
class Kubeconfig:
    """One kubeconfig, or several merged."""

    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]
    contexts: Mapping[str, Entry]
    current: str
    origin: str


@dataclass(frozen=True)
class Selected:
    """What one context says. `user` is None where it names none."""

    context: str
    cluster: Entry
    user: Entry | None
    origin: str

    @property
    def server(self) -> str:
        return self.cluster.text("server").rstrip("/")


def parse(text: str, origin: str, directory: Path | None) -> Kubeconfig:
    """A kubeconfig's text. `origin` names it in messages. Raises AccessError."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        raise AccessError(f"{origin}: neither YAML nor JSON{f' (line {where.line + 1})' if where else ''}") from None
    if not isinstance(document, dict) or not isinstance(document.get("clusters"), list):
        raise AccessError(f"{origin}: not a kubeconfig: it has no list of clusters")

    def entries(plural: str, singular: str) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for each in document.get(plural) or []:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise AccessError(f"{origin}: an entry of {plural} has no name")
            content = each.get(singular)
            found.setdefault(
                each["name"], Entry(each["name"], content if isinstance(content, dict) else {}, origin, directory)
            )
        return found

    current = document.get("current-context")
    return Kubeconfig(
        entries("clusters", "cluster"),
        entries("users", "user"),
        entries("contexts", "context"),
        current if isinstance(current, str) else "",
        origin,
    )


def merge(configs: Sequence[Kubeconfig]) -> Kubeconfig:
    """As kubectl does: whoever names a thing first has it; the first current context counts."""

    def first(parts: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
        merged: dict[str, Entry] = {}
        for part in parts:
            merged = {**part, **merged}
        return merged

    return Kubeconfig(
        first(each.clusters for each in configs),
        first(each.users for each in configs),
        first(each.contexts for each in configs),
        next((each.current for each in configs if each.current), ""),
        os.pathsep.join(each.origin for each in configs),
    )


def read_files(paths: str, *, explicit: bool) -> Kubeconfig:
    """The kubeconfigs at `paths` (several with the path separator between), merged.

    Where they are named for us (`explicit`) each must be there; of KUBECONFIG's, as for kubectl, one is enough.
    Raises AccessError.
    """
    named = [Path(part).expanduser() for part in paths.split(os.pathsep) if part]
    there = [path for path in named if path.is_file()]
    if missing := [str(path) for path in named if path not in there and (explicit or not there)]:
        raise AccessError(f"no kubeconfig at {', '.join(missing)}; name one with --kubeconfig or KUBECONFIG")
    if not there:
        raise AccessError("no kubeconfig is named; name one with --kubeconfig or KUBECONFIG")
    return merge([parse(read(path, "kubeconfig"), str(path), path.absolute().parent) for path in there])


def select(config: Kubeconfig, context: str | None) -> Selected:
    """The named context, or the current one, with its cluster and user. Raises AccessError."""
    name = context or config.current
    if not name:
        raise AccessError(f"{config.origin}: no current-context; name one of {_names(config.contexts)} with --context")
    chosen = config.contexts.get(name)
    if chosen is None:
        raise AccessError(f"{config.origin}: no context {name!r}; there are: {_names(config.contexts)}")
    cluster = config.clusters.get(chosen.text("cluster"))
    if cluster is None or not cluster.text("server").startswith(("https://", "http://")):
        raise AccessError(f"{config.origin}: context {name!r} names no cluster with a server's URL")
    if cluster.text("tls-server-name"):
        raise AccessError(f"{config.origin}: tls-server-name of {cluster.name!r} is not supported; take it out")
    named = chosen.text("user")
    user = config.users.get(named)
    if named and user is None:
        raise AccessError(f"{config.origin}: context {name!r} names the user {named!r}, who is not there")
    if user and (asked := [key for key in UNSUPPORTED_USER if user.content.get(key)]):
        raise AccessError(f"{config.origin}: {', '.join(asked)} of {user.name!r}: impersonation is not supported")
    return Selected(name, cluster, user, config.origin)


def _names(entries: Mapping[str, Entry]) -> str:
    return ", ".join(sorted(entries)) or "none"


def store_tokens(user: Entry, identity: str, refresh_token: str) -> None:
    """Write an OIDC user's new tokens into the user's file, as kubectl does. Raises AccessError, OSError."""
    path = Path(user.origin)
    document = yaml.safe_load(read(path, "kubeconfig"))
    for each in document["users"]:
        if each["name"] == user.name:
            each["user"]["auth-provider"]["config"] |= {"id-token": identity, "refresh-token": refresh_token}
    write_private(path, yaml.safe_dump(document, sort_keys=False))
