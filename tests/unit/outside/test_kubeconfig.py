"""Kubeconfigs: which file counts, how several are merged, and each kind of user; what cannot be used is told."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.kubeconfig import merge, parse, read_files, select
from speedrun_operator.credentials.user import Credentials, credentials
from speedrun_operator.kube.access import Access, Fetched, Files, ServiceAccount, local
from testbed import pki
from testbed.platform import Platform

NOW = datetime.now(UTC)


def config(user: dict[str, Any] | None = None, name: str = "c", **cluster: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.test:6443", **cluster}}],
        "users": [{"name": name, "user": user if user is not None else {"token": "t"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kubeconfig"


async def read(document: dict[str, Any], file: Path, **options: Any) -> Credentials:
    file.write_text(yaml.safe_dump(document))
    return await credentials(select(read_files(str(file), explicit=True), None), NOW, **options)


async def fault(document: dict[str, Any], file: Path, **options: Any) -> str:
    with pytest.raises(AccessError) as raised:
        await read(document, file, **options)
    return str(raised.value)


@pytest.mark.parametrize("dump", [yaml.safe_dump, json.dumps], ids=["YAML", "JSON"])
async def test_yaml_and_json_are_the_same(dump: Any, file: Path) -> None:
    file.write_text(dump(config()))
    found = await Files(str(file), None, explicit=True).read(None)
    assert (found.server, found.token) == ("https://c.test:6443", "t")


async def test_a_named_file_that_is_missing_is_never_another_cluster(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """BR-063: neither the user's default cluster nor the pod's own is a stand-in for a path with a typo."""
    home = tmp_path / "home" / ".kube" / "config"
    home.parent.mkdir(parents=True)
    home.write_text(yaml.safe_dump(config(name="default")))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(
        AccessError, match="no kubeconfig at /etc/kc/typo.yaml; name one with --kubeconfig or KUBECONFIG"
    ):
        await local("/etc/kc/typo.yaml", None).read(None)
    monkeypatch.setenv("KUBECONFIG", "/etc/kc/typo.yaml")
    with pytest.raises(AccessError, match="no kubeconfig at /etc/kc/typo.yaml"):
        await local(None, None).read(None)
    file.write_text(yaml.safe_dump(config(name="chosen")))
    both = f"{file}{os.pathsep}/etc/kc/typo.yaml"
    with pytest.raises(AccessError, match="no kubeconfig at /etc/kc/typo.yaml"):
        await local(both, None).read(None)


async def test_the_chosen_source_is_logged_with_its_server(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """BR-063."""
    file.write_text(yaml.safe_dump(config()))
    caplog.set_level("INFO")
    await Access(local(str(file), None)).current()
    assert f"API server https://c.test:6443 (from {file})" in caplog.text


async def test_the_order_of_sources(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/from/environment")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert local("/named", None) == Files("/named", None, explicit=True)
    assert local(None, "x") == Files("/from/environment", "x", explicit=False)
    monkeypatch.delenv("KUBECONFIG")
    assert local(None, None) == ServiceAccount("10.0.0.1", "443")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert local(None, None) == Files(str(Path.home() / ".kube" / "config"), None, explicit=True)


async def test_several_files_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    one, two = tmp_path / "one" / "a", tmp_path / "two" / "b"
    for path in (one, two):
        path.parent.mkdir()
    (two.parent / "token").write_text("of-b\n")
    first = config(name="a") | {"current-context": ""}
    one.write_text(yaml.safe_dump(first))
    second = config({"tokenFile": "token"}, name="b")
    second["clusters"].append({"name": "a", "cluster": {"server": "https://not-this-one.test"}})
    two.write_text(yaml.safe_dump(second))
    paths = f"{one}{os.pathsep}{two}{os.pathsep}/nowhere"
    found = await Files(paths, None, explicit=False).read(None)
    assert (found.server, found.token) == ("https://b.test:6443", "of-b"), "relative to the file that names it"
    found = await Files(paths, "a", explicit=False).read(None)
    assert (found.server, found.token) == ("https://a.test:6443", "t"), "whoever names a thing first has it"


async def test_a_client_certificate_by_data_and_by_relative_path(file: Path, tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path / "pki")
    authority.issue("alice", "alice")
    by_path = {"client-certificate": "pki/alice.crt", "client-key": "pki/alice.key"}
    found = await read(config(by_path, **{"certificate-authority": "pki/ca.crt"}), file)
    by_data = pki.certificate_user(tmp_path / "pki", "alice")
    other = await read(config(by_data, **{"certificate-authority-data": _base64(tmp_path / "pki" / "ca.crt")}), file)
    assert (found.certificate or "").strip() == (other.certificate or "").strip()
    assert (found.private_key or "").strip() == (other.private_key or "").strip()
    assert found.end is not None and timedelta(days=29) < found.end - NOW < timedelta(days=31)
    assert other.fresh is not None and found.end - timedelta(minutes=6) < other.fresh < found.end, "renewed ahead of it"


async def test_a_token_file_is_read_again(file: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    found = await read(config({"tokenFile": str(tmp_path / "token"), "token": "stale"}), file)
    assert (found.token, found.fresh) == ("one", NOW + timedelta(minutes=5))


async def test_a_name_and_a_password(file: Path) -> None:
    found = await read(config({"username": "alice", "password": "secret"}), file)
    assert (found.username, found.password, "secret" in repr(found)) == ("alice", "secret", False)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (config({}), "the user 'c' has no credential that can be used"),
        (config({"token": ""}), "the token of 'c' is empty or no token"),
        (config({"token": "a b"}), "the token of 'c' is empty or no token"),
        (config({"tokenFile": "nowhere"}), "tokenFile of 'c': cannot read"),
        (config({"client-certificate-data": "QUJD"}), "has a client certificate without its key"),
        (config({"client-certificate-data": "ÿ"}), "client-certificate-data of 'c' is not base64"),
        (config({"token": "t", "as": "root"}), "as of 'c': impersonation is not supported"),
        (config(**{"proxy-url": "socks5://127.0.0.1:1"}), "proxy-url of 'c' must begin with http:// or https://"),
        (config(**{"proxy-url": "127.0.0.1:1"}), "proxy-url of 'c' must begin with http:// or https://"),
        (config({"auth-provider": {"name": "gcp"}}), "the auth-provider 'gcp' is not supported"),
        (config(**{"tls-server-name": "other"}), "tls-server-name of 'c' is not supported"),
        (config() | {"current-context": ""}, "no current-context; name one of c with --context"),
        (config() | {"current-context": "d"}, "no context 'd'; there are: c"),
        (config() | {"clusters": []}, "context 'c' names no cluster with a server's URL"),
        (config() | {"users": []}, "context 'c' names the user 'c', who is not there"),
        ({"a": 1}, "not a kubeconfig: it has no list of clusters"),
        (config() | {"users": [{"user": {}}]}, "an entry of users has no name"),
    ],
    ids=lambda each: each[-30:] if isinstance(each, str) else "",
)
async def test_what_cannot_be_used_is_told(document: dict[str, Any], says: str, file: Path) -> None:
    assert says in await fault(document, file)


@pytest.mark.parametrize("text", ["clusters: [", "\t", "- a", "", "{", "\x00"])
def test_what_is_no_kubeconfig_is_told_without_its_content(text: str) -> None:
    with pytest.raises(AccessError, match="^here: (neither YAML nor JSON|not a kubeconfig)"):
        parse(text, "here", None)


def test_an_empty_merge_has_nothing() -> None:
    with pytest.raises(AccessError, match="no current-context; name one of none"):
        select(merge([]), None)


async def test_an_oidc_users_token_is_renewed_and_written_back(
    platform: Platform, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = platform.refresh_token()
    provider = {
        "client-id": "speedrun",
        "idp-issuer-url": platform.issuer,
        "refresh-token": first,
        "id-token": platform.sign_in(seconds=-10),
        "idp-certificate-authority-data": _base64(platform.ca_file),
    }
    file.write_text(yaml.safe_dump(config({"auth-provider": {"name": "oidc", "config": provider}})))
    found = await Files(str(file), None, explicit=True).read(None)
    kept = yaml.safe_load(file.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert (kept["id-token"], kept["refresh-token"]) == (found.token, found.refresh_token)
    assert kept["refresh-token"] != first
    assert file.stat().st_mode & 0o777 == 0o600
    again = await Files(str(file), None, explicit=True).read(None)
    assert again.token == found.token, "a token that lasts is used"
    third = await Files(str(file), None, explicit=True).read(found)
    assert third.token != found.token, "and renewed when it was refused"


@pytest.mark.parametrize("refresh", [False, True], ids=["no refresh token", "refresh token"])
async def test_a_new_sign_in_is_taken_up(refresh: bool, platform: Platform, file: Path) -> None:
    """Without a restart, and without what the issuer has taken back with the old sign-in."""

    def sign_in(seconds: float) -> str:
        provider = {
            "client-id": "speedrun",
            "idp-issuer-url": platform.issuer,
            "id-token": platform.sign_in(seconds=seconds),
            "idp-certificate-authority-data": _base64(platform.ca_file),
        } | ({"refresh-token": platform.refresh_token()} if refresh else {})
        file.write_text(yaml.safe_dump(config({"auth-provider": {"name": "oidc", "config": provider}})))
        return str(provider["id-token"])

    source = Files(str(file), None, explicit=True)
    first = sign_in(600)
    found = await source.read(None)
    assert found.token == first
    if refresh:
        found = await source.read(found)
        platform.refresh_tokens.clear()
    second = sign_in(7200)
    found = await source.read(found)
    assert found.token == second
    if refresh:
        spent = (await source.read(found)).token
        assert spent not in (first, second), "what is spent next is the new sign-in's, too"
    else:
        with pytest.raises(AccessError, match="sign in again"):
            await source.read(found)


async def test_a_rotated_refresh_token_that_its_source_does_not_know_is_spent_next(platform: Platform) -> None:
    provider = {
        "client-id": "speedrun",
        "idp-issuer-url": platform.issuer,
        "id-token": platform.sign_in(seconds=600),
        "refresh-token": platform.refresh_token(),
        "idp-certificate-authority-data": _base64(platform.ca_file),
    }

    async def fetch() -> str:
        return yaml.safe_dump(config({"auth-provider": {"name": "oidc", "config": provider}}))

    source = Fetched("the fetched one", fetch, None, set())
    found, tokens = None, set()
    for _ in range(4):
        found = await source.read(found)
        tokens.add(found.token)
    assert len(tokens) == 4, "neither the old id token nor the spent refresh token is used again"


async def test_a_fetched_kubeconfig_reads_no_file_and_runs_no_foreign_command(tmp_path: Path) -> None:
    async def fetched(user: dict[str, Any], **cluster: Any) -> Credentials:
        async def fetch() -> str:
            return yaml.safe_dump(config(user, **cluster))

        return await Fetched("the fetched one", fetch, None, {"true"}).read(None)

    assert (await fetched({"token": "t"})).token == "t"
    with pytest.raises(AccessError, match="tokenFile of 'c' names a file of this machine; that is not followed"):
        await fetched({"tokenFile": "/etc/shadow"})
    with pytest.raises(AccessError, match="wants to run 'sh' here; add it to platform.exec_commands"):
        await fetched({"exec": {"command": "sh", "apiVersion": "client.authentication.k8s.io/v1"}})
    with pytest.raises(AccessError, match="the command 'true' printed an empty token|not an ExecCredential"):
        await fetched({"exec": {"command": "true", "apiVersion": "client.authentication.k8s.io/v1"}})
    with pytest.raises(AccessError, match="asks not to verify the API server"):
        await fetched({"token": "t"}, **{"insecure-skip-tls-verify": True})
    with pytest.raises(AccessError, match="must begin with https"):
        await fetched({"token": "t"}, server="http://c.test")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
