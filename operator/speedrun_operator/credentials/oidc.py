"""OpenID Connect: new tokens for a refresh token (OpenID Connect Discovery 1.0; RFC 6749, section 6)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.lifetime import token_end
from speedrun_operator.credentials.proxies import proxies_understood

SECONDS = 30.0
CONFIGURATION = "/.well-known/openid-configuration"


@dataclass(frozen=True)
class Client:
    """Who asks whom. `whose` names the user or setting that it is of, for messages."""

    whose: str
    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.whose}: the issuer {self.issuer}"


@dataclass(frozen=True)
class Tokens:
    """What the issuer gave. `refresh` is None where the old refresh token stays good."""

    access: str | None = field(default=None, repr=False)
    identity: str | None = field(default=None, repr=False)
    refresh: str | None = field(default=None, repr=False)
    access_end: datetime | None = None


async def refresh(client: Client, refresh_token: str) -> Tokens:
    """Spend the refresh token. Raises AccessError; an issuer that does not answer is passing."""
    if not client.issuer.startswith("https://"):
        raise AccessError(f"{client}: must begin with https://")
    try:
        with proxies_understood(str(client)):
            made = httpx.AsyncClient(verify=client.tls or True, timeout=SECONDS, trust_env=True)
        async with made as http:
            endpoint = await _endpoint(client, http)
            form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": client.client_id}
            if client.client_secret:
                form["client_secret"] = client.client_secret
            answer = await http.post(endpoint, data=form, headers={"Accept": "application/json"})
    except httpx.HTTPError as error:
        raise AccessError(f"{client} does not answer: {error or type(error).__name__}", passing=True) from error
    body = _object(client, answer)
    if answer.status_code != 200:
        raise _refusal(client, answer.status_code, body)
    access, identity, following = (_text(body, name) for name in ("access_token", "id_token", "refresh_token"))
    if access is None and identity is None:
        raise AccessError(f"{client} gave neither an access token nor an id token")
    lasts = body.get("expires_in")
    end = datetime.now(UTC) + timedelta(seconds=float(lasts)) if isinstance(lasts, int | float) else None
    return Tokens(access, identity, following, (token_end(access) if access else None) or end)


async def _endpoint(client: Client, http: httpx.AsyncClient) -> str:
    answer = await http.get(client.issuer.rstrip("/") + CONFIGURATION)
    if answer.status_code != 200:
        raise AccessError(
            f"{client} answers {answer.status_code} to discovery; look at the issuer's address",
            passing=answer.status_code >= 500 or answer.status_code == 429,
        )
    found = _object(client, answer)
    if str(found.get("issuer", "")).rstrip("/") != client.issuer.rstrip("/"):
        raise AccessError(f"{client} calls itself {found.get('issuer')!r}; give that as the issuer")
    endpoint = str(found.get("token_endpoint", ""))
    if not endpoint.startswith("https://"):
        raise AccessError(f"{client} names no token endpoint with https")
    return endpoint


def _object(client: Client, answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        return body
    raise AccessError(
        f"{client} answers {answer.status_code} without JSON; look at the issuer's address",
        passing=answer.status_code >= 500,
    )


def _refusal(client: Client, status: int, body: dict[str, Any]) -> AccessError:
    error = str(body.get("error", status))[:80]
    described = str(body.get("error_description", ""))[:200]
    told = f"{error} ({described})" if described else error
    if status >= 500 or status == 429:
        return AccessError(f"{client} cannot renew the token now: {told}", passing=True)
    if error == "invalid_grant":
        return AccessError(
            f"{client} refuses the refresh token: {told}; it was used, revoked or has expired: sign in again"
        )
    return AccessError(f"{client} refuses to renew the token: {told}")


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) and value else None
