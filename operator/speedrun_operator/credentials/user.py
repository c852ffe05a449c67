"""From a chosen context to what an HTTP client needs, whatever kind of user it names.

A user whose credential cannot be had is a failure; requests without credentials are made for no user at all.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from speedrun_operator.credentials import oidc, plugin
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.kubeconfig import Entry, Selected, read
from speedrun_operator.credentials.lifetime import certificate_end, claims, earliest, fresh_until, token_end

REREAD = timedelta(minutes=5)
"""A file with a token is read again this often: whoever renews it does so ahead of the token's end."""


@dataclass(frozen=True)
class Credentials:
    """How to speak to one API server. PEM texts. `fresh`: until when nothing need be read again."""

    server: str
    origin: str
    ca: str | None = field(default=None, repr=False)
    insecure: bool = False
    certificate: str | None = field(default=None, repr=False)
    private_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    proxy: str | None = None
    fresh: datetime | None = None
    end: datetime | None = None
    refresh_token: str | None = field(default=None, repr=False)
    """What an OIDC issuer gave in place of the kubeconfig's refresh token, which is spent."""
    instead_of: str | None = field(default=None, repr=False)
    """That one of the kubeconfig; another there means that somebody has signed in again."""

    def same_secret(self, other: Credentials) -> bool:
        """Whether a server that refuses one of them would refuse the other, too."""
        mine, theirs = (
            (each.server, each.certificate, each.private_key, each.token, each.username, each.password)
            for each in (self, other)
        )
        return mine == theirs

    def same_way(self, other: Credentials) -> bool:
        """Whether both speak to one server over one kind of connection, whatever they say of who they are."""
        mine, theirs = (
            (each.server, each.ca, each.insecure, each.proxy, each.certificate, each.private_key)
            for each in (self, other)
        )
        return mine == theirs


async def credentials(
    selected: Selected,
    now: datetime,
    *,
    before: Credentials | None = None,
    commands: Collection[str] | None = None,
    insecure_allowed: bool = True,
) -> Credentials:
    """What the context says, read now. Raises AccessError.

    `commands`: the plugins that may be run; None is any, as for a file that its owner wrote. `before`: what was read
    last from the same place; an OIDC refresh token that was rotated since lives there.
    """
    cluster = selected.cluster
    insecure = cluster.content.get("insecure-skip-tls-verify") is True
    if insecure and not insecure_allowed:
        raise AccessError(f"{selected.origin}: it asks not to verify the API server, which is not done")
    proxy = cluster.text("proxy-url") or None
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise AccessError(f"{selected.origin}: proxy-url of {cluster.name!r} must begin with http:// or https://")
    base = Credentials(
        server=selected.server,
        origin=selected.origin,
        ca=cluster.pem("certificate-authority"),
        insecure=insecure,
        proxy=proxy,
    )
    user = selected.user
    if user is None:
        return base
    found = await _of(user, selected, now, before, commands)
    if not any(found.get(name) for name in ("token", "certificate", "username")):
        raise AccessError(f"{user.origin}: the user {user.name!r} has no credential that can be used")
    end: datetime | None = found.pop("end", None)
    fresh = earliest(fresh_until(end, now), found.pop("reread", None))
    return Credentials(**{**_plain(base), **found, "end": end, "fresh": fresh})


def _plain(one: Credentials) -> dict[str, Any]:
    return {"server": one.server, "origin": one.origin, "ca": one.ca, "insecure": one.insecure, "proxy": one.proxy}


async def _of(
    user: Entry, selected: Selected, now: datetime, before: Credentials | None, commands: Collection[str] | None
) -> dict[str, Any]:
    """The fields of Credentials that the user gives; `end` and `reread` beside them."""
    found: dict[str, Any] = {}
    if certificate := user.pem("client-certificate"):
        key = user.pem("client-key")
        if key is None:
            raise AccessError(f"{user.origin}: the user {user.name!r} has a client certificate without its key")
        found |= {"certificate": certificate, "private_key": key, "end": certificate_end(certificate)}
        if user.text("client-certificate"):
            found["reread"] = now + REREAD
    if isinstance(user.content.get("exec"), dict):
        return _earliest(found, await _printed(user, selected, commands))
    if isinstance(user.content.get("auth-provider"), dict):
        return _earliest(found, await _renewed(user, now, before))
    if path := user.path("tokenFile"):
        token = read(path, f"{user.origin}: tokenFile of {user.name!r}").strip()
        return _earliest(found, {"token": _token(token, user), "end": token_end(token), "reread": now + REREAD})
    if "token" in user.content:
        token = user.text("token").strip()
        return _earliest(found, {"token": _token(token, user), "end": token_end(token)})
    if user.text("username"):
        found |= {"username": user.text("username"), "password": user.text("password")}
    return found


def _earliest(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**one, **other, "end": earliest(one.get("end"), other.get("end"))}


def _token(token: str, user: Entry) -> str:
    if not token or not token.isprintable() or " " in token:
        raise AccessError(f"{user.origin}: the token of {user.name!r} is empty or no token")
    return token


async def _printed(user: Entry, selected: Selected, commands: Collection[str] | None) -> dict[str, Any]:
    content: Mapping[str, Any] = user.content["exec"]
    whose = f"{user.origin}: user {user.name!r}"
    command = str(content.get("command") or "")
    if not command:
        raise AccessError(f"{whose}: exec names no command")
    if commands is not None and command not in commands:
        raise AccessError(
            f"{whose}: it wants to run {command!r} here; add it to platform.exec_commands if that is well"
        )
    if content.get("interactiveMode") == "Always":
        raise AccessError(f"{whose}: the command {command!r} wants a terminal (interactiveMode Always)")
    version = str(content.get("apiVersion") or "")
    if version not in plugin.VERSIONS:
        raise AccessError(f"{whose}: exec has the apiVersion {version!r}; supported: {', '.join(plugin.VERSIONS)}")
    variables = [each for each in content.get("env") or [] if isinstance(each, dict) and "name" in each]
    printed = await plugin.run(
        plugin.Plugin(
            whose,
            command,
            tuple(str(each) for each in content.get("args") or []),
            {str(each["name"]): str(each.get("value", "")) for each in variables},
            version,
            str(content.get("installHint") or ""),
            user.directory,
        ),
        _told(selected) if content.get("provideClusterInfo") else None,
    )
    return {
        "token": printed.token,
        "certificate": printed.certificate,
        "private_key": printed.private_key,
        "end": printed.end,
    }


def _told(selected: Selected) -> dict[str, Any]:
    """The cluster as ExecCredential's spec has it."""
    ca = selected.cluster.pem("certificate-authority")
    told: dict[str, Any] = {"server": selected.server}
    return told | ({"certificate-authority-data": base64.b64encode(ca.encode()).decode()} if ca else {})


async def _renewed(user: Entry, now: datetime, before: Credentials | None) -> dict[str, Any]:
    """The id token of an OIDC user; a new one when it has run out."""
    provider = user.content["auth-provider"]
    whose = f"{user.origin}: user {user.name!r}"
    if provider.get("name") != "oidc" or not isinstance(config := provider.get("config"), dict):
        raise AccessError(f"{whose}: the auth-provider {provider.get('name')!r} is not supported; oidc and exec are")
    held = str(config.get("id-token") or "")
    end = token_end(held) if held else None
    configured = str(config.get("refresh-token") or "")
    lasts = bool(held) and (end is None or now < end)
    if lasts and (before is None or _newer(held, end, before, renewable=bool(configured))):
        return {"token": _token(held, user), "end": end}
    rotated = before.refresh_token if before and before.instead_of == configured else None
    if not (refresh_token := rotated or configured):
        raise AccessError(f"{whose}: its id token has expired and there is no refresh token: sign in again")
    tls = None
    if authority := config.get("idp-certificate-authority-data"):
        tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode("ascii", "replace"))
    issuer = str(config.get("idp-issuer-url") or "")
    client = oidc.Client(whose, issuer, str(config.get("client-id") or ""), str(config.get("client-secret") or ""), tls)
    tokens = await oidc.refresh(client, refresh_token)
    if tokens.identity is None:
        raise AccessError(f"{whose}: the issuer {issuer} gave no id token")
    return {
        "token": tokens.identity,
        "end": token_end(tokens.identity) if claims(tokens.identity) else None,
        "refresh_token": tokens.refresh or refresh_token,
        "instead_of": configured,
    }


def _newer(held: str, end: datetime | None, before: Credentials, *, renewable: bool) -> bool:
    """Whether an id token was put there since `before`, and is no older one that a renewal has replaced."""
    if held == before.token:
        return False
    return not renewable or end is None or before.end is None or end >= before.end
