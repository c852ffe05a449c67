"""Which way in the settings mean, and what Kopf logs in with: never again what the API server refused."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf
import pytest

from speedrun_operator.credentials import oidc
from speedrun_operator.handlers import LOGIN_AGAIN, KopfLogin, connection_info
from speedrun_operator.kube import access as holder
from speedrun_operator.kube.access import Access, AccessError, Credentials, Files
from speedrun_operator.outside import access, login_fault, platform_api
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.platform.settings import PlatformSettings
from speedrun_operator.settings import Settings
from testbed.platform import CLUSTER, ORGANIZATION, Platform
from unit.outside.conftest import Connect


class Gives:
    """A source that gives one token after the other, each fresh for so long."""

    def __init__(self, *tokens: str, fresh: timedelta | None = None) -> None:
        self.tokens = list(tokens)
        self.fresh = fresh
        self.reads = 0

    async def read(self, before: Credentials | None) -> Credentials:
        token = self.tokens[min(self.reads, len(self.tokens) - 1)]
        self.reads += 1
        fresh = None if self.fresh is None else datetime.now(UTC) + self.fresh
        return Credentials("https://c.test", "a test", token=token, fresh=fresh)


def logging_in(source: Gives) -> KopfLogin:
    return KopfLogin(Access(source), asyncio.get_running_loop())


async def test_kopf_gets_another_credential_after_a_refusal() -> None:
    login = logging_in(Gives("one", "two"))
    assert [(await login.connection()).token for _ in range(2)] == ["one", "two"]


async def test_kopf_never_gets_a_refused_credential_again() -> None:
    """It would end Kopf; so it is told to ask again instead, and its watches stay."""
    login = logging_in(source := Gives("one"))
    await login.connection()
    for _ in range(3):
        with pytest.raises(kopf.LoginError, match="refuses the credential of a test"):
            await login.connection()
    assert source.reads == 2, "the source is not stormed"


async def test_kopf_gets_a_renewed_credential_when_its_own_ran_out() -> None:
    login = logging_in(Gives("one", "two", fresh=timedelta(0)))
    assert [(await login.connection()).token for _ in range(2)] == ["one", "two"]


async def test_what_the_engine_renewed_is_kopfs_as_well() -> None:
    held = Access(source := Gives("one", "two", "three"))
    login = KopfLogin(held, asyncio.get_running_loop())
    await login.connection()
    await held.refused(await held.current())
    assert (await login.connection()).token == "two"
    assert source.reads == 2


async def test_a_new_life_of_kopf_asks_for_what_there_is() -> None:
    held = Access(source := Gives("one", "two"))
    for _ in range(2):
        assert (await KopfLogin(held, asyncio.get_running_loop()).connection()).token == "one"
    assert source.reads == 1


async def test_a_source_that_fails_is_a_login_error() -> None:
    class Fails(Gives):
        async def read(self, before: Credentials | None) -> Credentials:
            raise AccessError("no such plugin")

    with pytest.raises(kopf.LoginError, match="no such plugin"):
        await logging_in(Fails()).connection()


async def test_one_refusal_of_many_is_one_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Access(source := Gives("one", "two"))
    used = await held.current()
    found = await asyncio.gather(*(held.refused(used) for _ in range(10)))
    assert ({each.token for each in found}, source.reads) == ({"two"}, 2)


async def test_a_source_without_another_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(holder.time, "monotonic", lambda: now)
    held = Access(source := Gives("one"))
    used = await held.current()
    asked = []
    for second in range(300):
        now = 1000.0 + second
        before = source.reads
        with pytest.raises(AccessError):
            await held.refused(used)
        if source.reads > before:
            asked.append(second)
    assert asked == [0, 5, 15, 35, 75, 135, 195, 255]


async def test_a_source_with_what_has_run_out_alone_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where this machine's clock is ahead of the source's."""
    now = 1000.0
    monkeypatch.setattr(holder.time, "monotonic", lambda: now)
    held = Access(source := Gives("one", fresh=timedelta(seconds=-60)))
    await held.current()
    asked = []
    for second in range(100):
        now, before = 1000.0 + second, source.reads
        assert (await held.current()).token == "one"
        if source.reads > before:
            asked.append(second)
    assert asked == [0, 5, 15, 35, 75]


def test_what_kopf_gets_is_whole_and_expires_not_at_once() -> None:
    now = datetime.now(UTC)
    found = Credentials("https://c.test", "x", "CA", token="t", fresh=now - timedelta(hours=1))
    info = connection_info(found, now)
    assert (info.server, info.ca_data, info.token, info.scheme) == ("https://c.test", "CA", "t", "Bearer")
    assert info.expiration == now + LOGIN_AGAIN
    certificate = connection_info(Credentials("https://c.test", "x", certificate="C", private_key="K"), now)
    assert (certificate.certificate_data, certificate.private_key_data, certificate.expiration) == ("C", "K", None)


# ---- which way in


def settings(platform: Platform, token_file: Path, **changes: Any) -> PlatformSettings:
    return PlatformSettings(
        url=platform.url,
        organization=ORGANIZATION,
        cluster=CLUSTER,
        ca_file=platform.ca_file,
        token_file=token_file,
        **changes,
    )


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another cluster, which this machine's own kubeconfig names."""
    path = tmp_path / "elsewhere"
    path.write_text(
        "{clusters: [{name: c, cluster: {server: 'https://elsewhere.test'}}], users: [{name: u, user: {token: t}}],"
        " contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
    )
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    return path


async def server_of(api: PlatformApi | None, kubeconfig: str | None = None, **platform: Any) -> str:
    return (await access(Settings(kubeconfig=kubeconfig, **platform), api).current()).server


async def test_a_named_cluster_comes_before_this_machines_own(
    platform: Platform, token_file: Path, elsewhere: Path
) -> None:
    named = settings(platform, token_file)
    api = platform_api(named)
    assert await server_of(api, platform=named) == "https://127.0.0.1:6443"
    assert await server_of(api, str(elsewhere), platform=named) == "https://elsewhere.test", "a named file comes first"
    only = settings(platform, token_file, readiness_only=True)
    assert await server_of(api, platform=only) == "https://elsewhere.test", "in the cluster it serves readiness alone"
    assert await server_of(None) == "https://elsewhere.test"
    await api.close()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALL_PROXY", "socks5://127.0.0.1:1"), ("NO_PROXY", "[::1"), ("HTTPS_PROXY", "nonsense://x")],
)
async def test_a_proxy_that_cannot_be_used_is_told(
    variable: str, value: str, platform: Platform, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(AccessError, match="the proxy to the Platform API cannot be used: .*NO_PROXY"):
        platform_api(settings(platform, token_file))
    with pytest.raises(AccessError, match="the proxy to .*the issuer https://i.test cannot be used"):
        await oidc.refresh(oidc.Client("a test", "https://i.test", "c"), "r")


async def test_a_named_cluster_that_cannot_be_had_is_never_another(
    platform: Platform, token_file: Path, elsewhere: Path, connect: Connect
) -> None:
    named = settings(platform, token_file)
    platform.fail(404, 60)
    with pytest.raises(AccessError, match="404 .*no such cluster or organization") as raised:
        await server_of(connect(), platform=named)
    assert not raised.value.passing
    platform.fail(503, 60)
    with pytest.raises(AccessError, match="the API answers 503") as raised:
        await server_of(connect(), platform=named)
    assert raised.value.passing
    platform.heal()
    platform.state.lifecycle = "provisioning"
    with pytest.raises(AccessError, match="ClusterProvisioning: .* has no kubeconfig yet") as raised:
        await server_of(connect(), platform=named)
    assert raised.value.passing


@pytest.mark.parametrize(
    ("user", "wrong"), [(f"{CLUSTER}.alice", False), ("alice", False), ("", False), ("cl-other.alice", True)]
)
def test_the_login_is_of_the_cluster_that_the_platform_is_asked_about(
    user: str, wrong: bool, platform: Platform, token_file: Path
) -> None:
    whole = Settings.model_validate({"platform": settings(platform, token_file), "login": {"user": user}})
    fault = login_fault(whole)
    assert (fault is not None) is wrong
    assert fault is None or f"'cl-other.alice' is of cluster cl-other, and platform.cluster is {CLUSTER}" in fault
    assert login_fault(Settings.model_validate({"login": {"user": user}})) is None, "no platform is asked"


async def test_a_service_accounts_files_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("mounted\n")
    (tmp_path / "ca.crt").write_text("CA\n")
    found = await holder.ServiceAccount("fd00::1", "443", tmp_path).read(None)
    assert (found.server, found.token, found.ca) == ("https://[fd00::1]:443", "mounted", "CA\n")
    assert found.fresh is not None and found.fresh - datetime.now(UTC) < timedelta(minutes=6)


async def test_no_representation_holds_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "k"
    secret = "c2VjcmV0"
    path.write_text(
        "{clusters: [{name: c, cluster: {server: 'https://c.test'}}], users: [{name: u, user: {token: "
        + secret
        + "}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
    )
    held = Access(Files(str(path), None, explicit=True))
    found = await held.current()
    assert found.token == secret
    assert secret not in repr(found) + repr(held) + repr(vars(held))
    assert base64.b64decode(secret) not in repr(found).encode()
