"""`clusters`, `kubeconfig` and `check`'s platform lines, as a user meets them; no output ever holds a token."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedrun_operator.check_platform import platform_findings
from speedrun_operator.cli import main
from speedrun_operator.findings import Finding
from speedrun_operator.platform.settings import PlatformSettings
from speedrun_operator.settings import LoginSettings, Settings
from testbed.platform import CLUSTER, ORGANIZATION, Person, Platform
from unit.outside.conftest import Connect

ME = [f"--organization={ORGANIZATION}"]


@pytest.fixture
def flags(platform: Platform, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in os.environ:
        if name.upper().startswith("SPEEDRUN_"):
            monkeypatch.delenv(name)
    return [
        f"--platform.url={platform.url}",
        f"--platform.ca-file={platform.ca_file}",
        f"--platform.token-file={token_file}",
        *ME,
    ]


def run(*arguments: str) -> int:
    """The command's exit code. Beside the test's loop: it has one of its own."""
    codes: list[int] = []

    def work() -> None:
        try:
            codes.append(main(arguments))
        except SystemExit as ended:
            codes.append(int(ended.code or 0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return codes[0]


def test_clusters_lists_each_with_its_readiness(
    platform: Platform, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    platform.state.ssh_ready, platform.state.ssh_reason = False, "login node starts"
    assert run("clusters", *flags) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "NAME", "STATE", "SCHEDULER", "SLURM", "STORAGE", "SSH", "WAITS", "FOR"]
    assert row.split() == [
        CLUSTER,
        "speedrun-h100",
        "active",
        "sunk",
        "ready",
        "ceph",
        "ready",
        "not",
        "ready",
        "SshNotReady",
    ]


def test_a_cluster_that_cannot_be_asked_about_does_not_hide_the_others(
    platform: Platform, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "_options", lambda: {"scheduler": 3})
    assert run("clusters", *flags) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[:4] == [CLUSTER, "speedrun-h100", "active", "unknown"]
    assert f"{CLUSTER}: the answer about the cluster's options has another shape" in said.err


def test_clusters_that_may_not_be_seen(
    platform: Platform, flags: list[str], token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token_file.write_text(token := platform.sign_in(Person(permissions=set())))
    assert run("clusters", *flags) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and "missing permission clusters.read" in printed.err
    assert token not in printed.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["clusters"], "clusters needs platform.url, platform.organization; see --help"),
        (["kubeconfig", "--cluster=cl-x"], "cluster is named, but not the API's address: set platform.url"),
        (["kubeconfig", "--platform.url=https://a.test", *ME], "kubeconfig needs platform.cluster"),
        (["clusters", "--platform.url=http://a.test"], "platform.url: String should match"),
        (
            ["clusters", "--platform.url=https://a.test", "--organization=a/b"],
            "platform.organization: String should match",
        ),
        (["run", "--platform.url=https://a.test", "--cluster=x"], "a cluster needs its organization"),
        (["clusters", "--cluster=x"], "unrecognized arguments: --cluster=x"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_wrong_use_is_told(
    arguments: list[str], says: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err


def test_no_flag_takes_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--help") == 0
    shown = capsys.readouterr().out
    assert "--platform.token-file" in shown
    assert "--platform.token " not in shown, "a secret in argv is everybody's"


def test_a_kubeconfig_of_its_own(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "written"
    path.write_text("readable by all")
    path.chmod(0o644)
    assert run("kubeconfig", *flags, f"--cluster={CLUSTER}", "-o", str(path)) == 0
    written = yaml.safe_load(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert written["current-context"] == f"andromeda-{CLUSTER}"
    assert written["users"][0]["user"] == {"token": "secret-of-the-kubeconfig"}
    printed = capsys.readouterr()
    assert str(path) in printed.out and "secret" not in printed.out + printed.err


def test_a_kubeconfig_beside_the_users_own(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    entry: dict[str, Any] = {"name": "mine", "cluster": {"server": "https://mine.test"}}
    path.write_text(
        yaml.safe_dump({"clusters": [entry], "users": [], "contexts": [], "current-context": "mine", "x": 1})
    )
    monkeypatch.setenv("KUBECONFIG", f"{path}{os.pathsep}/elsewhere")
    for _ in range(2):
        assert run("kubeconfig", *flags, f"--cluster={CLUSTER}", "--merge") == 0
    written = yaml.safe_load(path.read_text())
    assert [each["name"] for each in written["clusters"]] == ["mine", f"andromeda-{CLUSTER}"]
    assert (written["current-context"], written["x"]) == ("mine", 1), "theirs stays theirs"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["clusters: [", "just text"])
def test_a_users_file_that_is_broken_is_left_alone(
    text: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert run("kubeconfig", *flags, f"--cluster={CLUSTER}", "--merge", "-o", str(path)) == 1
    assert path.read_text() == text
    assert "Traceback" not in capsys.readouterr().err


def test_a_kubeconfig_that_is_not_there_yet(
    platform: Platform, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platform.state.lifecycle = "provisioning"
    assert run("kubeconfig", *flags, f"--cluster={CLUSTER}", "-o", str(tmp_path / "k")) == 1
    assert "409 (the cluster is provisioning)" in capsys.readouterr().err
    assert not (tmp_path / "k").exists()


# ---- check


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


async def report(connect: Connect, key: Path | None = None) -> dict[str, Finding]:
    api = connect()
    settings = Settings(
        platform=PlatformSettings(url=api.where.url, organization=ORGANIZATION, cluster=CLUSTER),
        login=LoginSettings(key_file=key),
    )
    return {each.subject: each async for each in platform_findings(api, settings)}


async def test_check_says_that_all_is_well(platform: Platform, connect: Connect, key: Path) -> None:
    platform.state.keys = [{"public_key": key.with_suffix(".pub").read_text()}]
    found = await report(connect, key)
    assert [(each.subject, each.good) for each in found.values()] == [
        ("token", True),
        ("cluster", True),
        ("ssh key", True),
    ]
    assert (
        "speedrun-h100 is active: scheduler sunk, Slurm ready, storage ceph ready, SSH ready" in found["cluster"].text
    )
    assert "is registered and known to the cluster" in found["ssh key"].text
    assert "a teammate's) adds a login account, which restarts" in found["ssh key"].text
    assert platform.writes == []


@pytest.mark.parametrize(
    ("change", "good", "says"),
    [
        ({"keys": []}, False, "this account has no key: register SHA256:"),
        (
            {"keys": [{"fingerprint": "SHA256:other"}]},
            False,
            "is not among this account's 1 keys: register it (that restarts nothing)",
        ),
        ({"observation_current": False}, None, "the cluster has not been observed lately"),
        ({"generation": 4}, False, "the cluster knows generation 3 of the keys and not 4 yet: wait"),
        ({"login_shell": "/bin/zsh"}, True, "the shell is /bin/bash there and not /bin/zsh yet"),
    ],
    ids=["none", "others", "not observed", "older generation", "shell"],
)
async def test_check_says_how_the_key_stands(
    change: dict[str, Any], good: bool | None, says: str, platform: Platform, connect: Connect, key: Path
) -> None:
    platform.state.keys = [{"public_key": key.with_suffix(".pub").read_text()}]
    for name, value in change.items():
        setattr(platform.state, name, value)
    found = (await report(connect, key))["ssh key"]
    assert (found.good, says in found.text) == (good, True), found
    assert platform.writes == [], "keys and shells are never changed"


async def test_check_says_what_is_awaited_and_who_may_not_see(
    platform: Platform, connect: Connect, token_file: Path
) -> None:
    platform.state.slurm, platform.state.slurm_reason = "False", "ControllerStarting"
    found = await report(connect)
    assert str(found["cluster"]) == (
        "cluster      FAULT    SlurmNotReady: Slurm of the cluster speedrun-h100 is not ready: ControllerStarting"
    )
    token_file.write_text(platform.sign_in(Person(service_account=True)))
    found = await report(connect)
    assert found["token"].good is False and "sign in as a person" in found["token"].text
    assert found["cluster"].good is False


async def test_the_stand_in_wants_the_headers_of_writes(platform: Platform, connect: Connect) -> None:
    api = connect()
    token = (await api.tokens.current()).value
    body = {"public_key": "ssh-ed25519 AAAA"}
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{platform.business_url}/me/ssh-keys"
    assert (await api._http.post(url, json=body, headers=headers)).status_code == 400
    full = {**headers, "Idempotency-Key": "1", "Audit-Reason": "a test"}
    assert (await api._http.post(url, content=json.dumps(body), headers=full)).status_code == 201
