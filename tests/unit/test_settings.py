"""Settings: flags before the environment before the file; what is wrong is told with its name."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from speedrun_operator.settings import Settings, SettingsFault, load


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SPEEDRUN_"):
            monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def loaded(*flags: str, config: Path | None = None) -> Settings:
    return load(flags, str(config) if config else None, argparse.ArgumentParser(prog="test"))


def fault(*flags: str, config: Path | None = None) -> str:
    with pytest.raises(SettingsFault) as raised:
        loaded(*flags, config=config)
    return str(raised.value)


PLATFORM = ["--platform.url=https://api.test/v1", "--platform.organization=org", "--platform.cluster=cl-1"]


def test_a_cluster_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("SPEEDRUN_PLATFORM__TOKEN_COMMAND", '["program", "an argument"]')
    platform = loaded(*PLATFORM, "--platform.ca-file=~/ca.pem").platform
    assert (platform.in_use, platform.readiness_only, platform.token_variable) == (True, False, "ANDROMEDA_TOKEN")
    assert platform.token_command == ["program", "an argument"]
    assert platform.ca_file == Path("/home/somebody/ca.pem")
    assert not loaded("--platform.url=https://api.test").platform.in_use, "no cluster is named"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--platform.url=http://api.test"], "platform.url: String should match"),
        (["--platform.url=https://user:secret@api.test"], "platform.url: String should match"),
        (["--platform.cluster=../x", *PLATFORM[:2]], "platform.cluster: String should match"),
        (["--platform.cluster=cl-1"], "platform: Value error, cluster is named, but not the API's address"),
        (PLATFORM[::2], "platform: Value error, a cluster needs its organization"),
        (
            [*PLATFORM, "--platform.refresh-token-file=/r"],
            "a refresh token needs platform.issuer and",
        ),
        (
            [*PLATFORM, "--platform.token-file=/t", '--platform.token-command=["p"]'],
            "give one of token_file, token_command and refresh_token_file",
        ),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_a_platform_that_cannot_be(flags: list[str], message: str) -> None:
    assert message in fault(*flags)


def test_without_any_there_are_defaults_and_no_login() -> None:
    settings = loaded()
    assert settings.login.missing == ["login.host", "login.user", "login.key_file", "login.known_hosts_file"]
    assert (settings.slurm.root, settings.slurm.poll_seconds, settings.watch.namespaces) == ("~/speedruns", 10, [])
    assert settings.health_address == "127.0.0.1:8080"


def test_flags_before_environment_before_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("login: {host: from-file, user: from-file, port: 1}\nslurm: {partition: from-file}\n")
    monkeypatch.setenv("SPEEDRUN_LOGIN__HOST", "from-environment")
    monkeypatch.setenv("SPEEDRUN_LOGIN__USER", "from-environment")
    settings = loaded("--login.host=from-flag", config=config)
    assert (settings.login.host, settings.login.user, settings.login.port) == ("from-flag", "from-environment", 1)
    assert settings.slurm.partition == "from-file"
    assert settings.slurm.lost_after_seconds == 300, "what nobody says is the default"


def test_the_file_may_be_named_by_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("cluster_id: here\n")
    monkeypatch.setenv("SPEEDRUN_CONFIG", str(config))
    assert loaded().cluster_id == "here"


def test_the_named_file_goes_before_that_of_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("cluster_id: named\n")
    monkeypatch.setenv("SPEEDRUN_CONFIG", str(config.with_name("absent.yaml")))
    assert loaded(config=config).cluster_id == "named"


def test_an_empty_file_says_nothing(config: Path) -> None:
    config.write_text("# nothing\n")
    assert loaded(config=config).model_dump() == loaded().model_dump()


@pytest.mark.parametrize(
    ("name", "value", "namespaces"),
    [
        ("SPEEDRUN_WATCH__NAMESPACES", "a,b", ["a", "b"]),
        ("SPEEDRUN_WATCH__NAMESPACES", "a, b ,", ["a", "b"]),
        ("SPEEDRUN_WATCH__NAMESPACES", "", []),
        ("speedrun_watch__namespaces", "a", ["a"]),
        ("SPEEDRUN_WATCH", '{"namespaces": ["a", "b"]}', ["a", "b"]),
    ],
)
def test_namespaces_of_the_environment(
    name: str, value: str, namespaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert loaded().watch.namespaces == namespaces


@pytest.mark.parametrize(
    "flags", [["--watch.namespaces", "a,b"], ["--watch.namespaces=a", "--watch.namespaces=b"]], ids=" ".join
)
def test_namespaces_of_flags(flags: list[str]) -> None:
    assert loaded(*flags).watch.namespaces == ["a", "b"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--login.port=0", "login.port: Input should be greater than 0"),
        ("--login.port=65536", "login.port: Input should be less than 65536"),
        ("--login.port=ssh", "login.port: Input should be a valid integer"),
        ("--login.max-channels=0", "login.max_channels: Input should be greater than or equal to 1"),
        ("--login.max-channels=9", "login.max_channels: Input should be less than or equal to 8"),
        ("--login.host=login node", "login.host: String should match"),
        ("--login.user=alice\n", "login.user: String should match"),
        ("--slurm.poll-seconds=0.5", "slurm.poll_seconds: Input should be greater than or equal to 1"),
        ("--slurm.lost-after-seconds=5", "slurm.lost_after_seconds: Input should be greater than or equal to 10"),
        ("--slurm.root=runs", "slurm.root: String should match"),
        ("--slurm.root=~other/runs", "slurm.root: String should match"),
        ("--slurm.root=/shared/$(id)", "slurm.root: String should match"),
        ("--slurm.root=/shared\n", "slurm.root: String should match"),
        ("--slurm.python=python", "slurm.python: String should match"),
        ("--watch.namespaces=Lab", "watch.namespaces.0: String should match"),
        ("--health-address=8080", "health_address: Value error, must be host:port"),
        ("--health-address=here:http", "health_address: Value error, must be host:port"),
        ("--health-address=here:65536", "health_address: Value error, must be host:port"),
        ("--log-level=loud", "log_level: Input should be 'debug', 'info', 'warning' or 'error'"),
        ('--login={"hst": "x"}', "login.hst: Extra inputs are not permitted"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_name(flag: str, message: str) -> None:
    assert fault(flag).startswith(message)


@pytest.mark.parametrize("root", ["~", "~/runs", "/shared/speedruns", "/mnt/my disk/x"])
def test_roots(root: str) -> None:
    assert loaded(f"--slurm.root={root}").slurm.root == root


@pytest.mark.parametrize("python", ["python3", "/opt/venv/bin/python", "~/venv/bin/python3.12"])
def test_pythons(python: str) -> None:
    assert loaded(f"--slurm.python={python}").slurm.python == python


@pytest.mark.parametrize("address", ["", "0.0.0.0:80", "[::1]:8080", "localhost:0"])
def test_health_addresses(address: str) -> None:
    assert loaded(f"--health-address={address}").health_address == address


def test_all_faults_are_told_at_once(config: Path) -> None:
    config.write_text("login: {port: 0}\nslurm: {nodes: 3}\nsulrm: {}\n")
    said = fault(config=config)
    for part in ("login.port: Input", "slurm.nodes: Extra inputs are not", "sulrm: Extra inputs are not permitted"):
        assert part in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SPEEDRUN_LOGIN__HOTS", "login.hots: Extra inputs are not permitted"),
        (
            "SPEEDRUN_LOGN__HOST",
            "SPEEDRUN_LOGN__HOST in the environment: no setting is called logn; there are: kubeconfig,",
        ),
    ],
)
def test_an_unknown_name_in_the_environment_is_refused(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")
    assert fault().startswith(message)


@pytest.mark.parametrize(
    "name", ["SPEEDRUN_OPERATOR_SERVICE_HOST", "SPEEDRUN_OPERATOR_PORT_80_TCP_ADDR", "SPEEDRUNS__X"]
)
def test_what_kubernetes_puts_into_a_pod_is_not_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "10.0.0.1")
    assert loaded().model_dump() == Settings().model_dump()


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        loaded("--login.hots=x")
    assert raised.value.code == 2
    assert "unrecognized arguments: --login.hots=x" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("- a\n", "must be a mapping of setting to value", id="a list"),
        pytest.param("1: 2\n", "must be a mapping of setting to value", id="numbers for names"),
        pytest.param("login: [", "while parsing a flow", id="no YAML"),
        pytest.param("\x00", "unacceptable character", id="no text"),
    ],
)
def test_a_file_that_cannot_be_read(content: str, message: str, config: Path) -> None:
    config.write_text(content)
    said = fault(config=config)
    assert said.startswith(f"settings file {config}: ")
    assert message in said


def test_a_file_that_is_not_there(config: Path) -> None:
    assert fault(config=config) == f"settings file {config}: [Errno 2] No such file or directory: '{config}'"


def test_a_file_in_another_encoding(config: Path) -> None:
    config.write_bytes("login: {user: é}".encode("latin-1"))
    assert fault(config=config).startswith(f"settings file {config}: 'utf-8' codec can't decode")


def test_json_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDRUN_LOGIN", '{"host": ')
    assert '"login"' in fault()
    assert "Expecting value" in fault()


def test_rules_for_what_may_be_run(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("policy: {allowed_recipes: [smoke], custom_recipes: false}\n")
    monkeypatch.setenv("SPEEDRUN_POLICY__ALLOWED_REPOSITORIES", "https://github.com/me/*, git@host:team/x")
    policy = loaded("--policy.foreign-sources=false", config=config).policy
    assert (policy.allowed_recipes, policy.custom_recipes, policy.foreign_sources) == (["smoke"], False, False)
    assert policy.allowed_repositories == ["https://github.com/me/*", "git@host:team/x"]
    assert policy.own_namespace is False


@pytest.mark.parametrize("text", ["https://github.com/me*", "*", "https://*/me", "https://a b"])
def test_a_star_stands_behind_a_slash_only(text: str) -> None:
    with pytest.raises(SettingsFault, match=r"policy\.allowed_repositories"):
        loaded(f"--policy.allowed-repositories={text}")


def test_a_rule_for_partitions_by_type_is_no_name_of_one() -> None:
    with pytest.raises(SettingsFault, match=r"slurm\.gpu_partition"):
        loaded("--slurm.gpu-partition=compute-{gpu}")


LOGINS = '{"team-a": {"secret": "key-a"}, "team-b": {"secret": "key-b", "root": "/shared/b", "port": 2222}}'


@pytest.mark.parametrize("way", ["environment", "flag", "file"])
def test_logins_of_namespaces(way: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--login.host=login"]
    if way == "environment":
        monkeypatch.setenv("SPEEDRUN_LOGINS", LOGINS)
    elif way == "flag":
        flags.append(f"--logins={LOGINS}")
    else:
        config.write_text(f"logins: {LOGINS}\n")
    settings = loaded(*flags, config=config if way == "file" else None)
    assert [*settings.logins] == ["team-a", "team-b"]
    assert (settings.logins["team-a"].root, settings.logins["team-b"].port) == (None, 2222)
    assert settings.roots == ("~/speedruns", "/shared/b")


@pytest.mark.parametrize(
    ("logins", "more", "message"),
    [
        ('{"team-a": {"secret": "x"}}', [], "logins.team-a has no host: set login.host"),
        ('{"a": {"secret": "x"}, "b": {"secret": "x", "root": "/b"}}', ["--login.host=h"], "name the same Secret, x"),
        (
            '{"a": {"secret": "x"}, "b": {"secret": "y"}}',
            ["--login.host=h", "--slurm.root=/shared"],
            "logins.b has the root /shared of another login",
        ),
        ('{"A": {"secret": "x"}}', ["--login.host=h"], "logins.A"),
        ('{"a": {"secret": "../x"}}', ["--login.host=h"], "logins.a.secret"),
        ('{"a": {"key": "x"}}', ["--login.host=h"], "logins.a.key: Extra inputs"),
    ],
)
def test_logins_that_cannot_be(logins: str, more: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDRUN_LOGINS", logins)
    assert message in fault(*more)


def test_sunk_wants_pods_to_end_before_slurm_kills_them() -> None:
    assert loaded("--pods.sunk=true", "--pods.grace-seconds=24").pods.grace_seconds == 24
    assert loaded("--pods.grace-seconds=3600").pods.grace_seconds == 3600
    assert "pods: Value error, grace_seconds must be below 25" in fault("--pods.sunk=true", "--pods.grace-seconds=25")
