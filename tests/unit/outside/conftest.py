"""The operator's ways to the outside, against servers that speak real HTTP and TLS on loopback."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from speedrun_operator.platform.client import PlatformApi, Where
from speedrun_operator.platform.tokens import FromFile, Source, Tokens
from testbed.platform import ORGANIZATION, Platform

Connect = Callable[..., PlatformApi]
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {token: secret-of-the-kubeconfig}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with Platform(tmp_path / "stand-in", lambda: KUBECONFIG) as one:
        yield one


@pytest.fixture
def token_file(tmp_path: Path, platform: Platform) -> Path:
    """A signed-in person's token."""
    path = tmp_path / "token"
    path.write_text(platform.sign_in() + "\n")
    return path


@pytest.fixture
async def connect(platform: Platform, token_file: Path) -> AsyncIterator[Connect]:
    """Makes clients of the stand-in; waits between tries are noted in `api.waited` and not waited for."""
    made: list[PlatformApi] = []

    def one(
        organization: str = ORGANIZATION, source: Source | None = None, url: str | None = None, trusted: bool = True
    ) -> PlatformApi:
        waited: list[float] = []

        async def note(seconds: float) -> None:
            waited.append(seconds)

        where = Where(url or platform.url, platform.business_url, organization)
        tls = ssl.create_default_context(cafile=str(platform.ca_file)) if trusted else None
        api = PlatformApi(where, Tokens(source or FromFile(token_file)), tls=tls, sleep=note)
        api.waited = waited  # type: ignore[attr-defined]
        made.append(api)
        return api

    yield one
    for each in made:
        await each.close()
