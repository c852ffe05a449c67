"""The Secret of a login: what is taken from it, what is said of a bad one, and what a changed one changes."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from speedrun_operator.backends.base import Place
from speedrun_operator.backends.memory import Cluster, MemoryBackend
from speedrun_operator.backends.slurm.backend import SlurmBackend, SlurmSite
from speedrun_operator.entries import Setup
from speedrun_operator.kube.client import Json, Refused, Unavailable
from speedrun_operator.lifecycle.situation import Policy, Waiting
from speedrun_operator.login import LoginTarget
from speedrun_operator.login_secret import NoNamespace, read, secrets_namespace, teams
from speedrun_operator.logins import Logins
from speedrun_operator.reconcile import Engine
from speedrun_operator.settings import Settings
from speedrun_operator.teams import Teams
from unit.builders import SITE
from unit.engine_world import ApiServer

HOME = "speedrun-system"
PATH = f"/api/v1/namespaces/{HOME}/secrets/key-a"


@cache
def key() -> bytes:
    return asyncssh.generate_private_key("ssh-ed25519").export_private_key()


def host_line(host: str = "login.example") -> bytes:
    public = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    return f"{host} {public}".encode()


def whole(**changes: bytes | None) -> dict[str, bytes]:
    made = {"user": b"alice\n", "ssh-privatekey": key(), "known_hosts": host_line()}
    changed = {name.replace("_private", "-private"): value for name, value in changes.items()}
    return {name: value for name, value in (made | changed).items() if value is not None}


class Api(ApiServer):
    """Secrets; `fault` is what every request gets."""

    fault: Exception | None = None
    asked = 0

    def put(self, data: Mapping[str, bytes], path: str = PATH) -> None:
        self.objects[path] = {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}

    async def request(self, method: str, path: str, **options: Any) -> Json:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return await super().request(method, path, **options)


def settings(**changes: Any) -> Settings:
    made = {"login": {"host": "login.example"}, "logins": {"team-a": {"secret": "key-a"}}, "logins_namespace": HOME}
    return Settings(**(made | changes))


async def found(api: Api, with_: Settings | None = None) -> LoginTarget | Waiting:
    return await read(api, with_ or settings(), HOME, teams(with_ or settings())[0])


async def test_user_key_and_known_hosts_come_from_one_request_by_name() -> None:
    api = Api()
    api.put(whole())
    target = await found(api, settings(logins={"team-a": {"secret": "key-a", "port": 2222}}))
    assert isinstance(target, LoginTarget)
    assert (str(target), target.key, api.asked) == ("alice@login.example:2222", key(), 1)
    assert key().decode().splitlines()[1] not in repr(target)


async def test_host_keys_may_be_the_operators() -> None:
    api = Api()
    api.put(whole(known_hosts=None))
    waiting = await found(api)
    assert isinstance(waiting, Waiting) and "has no known_hosts; it has: ssh-privatekey, user" in waiting.message
    login = {"host": "login.example", "known_hosts_file": __file__}
    target = await found(api, settings(login=login))
    assert isinstance(target, LoginTarget) and target.known_hosts == Path(__file__)


def with_passphrase(folder: Path) -> bytes:
    file = folder / "id"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file.read_bytes()


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"user": None}, "SecretKeyMissing", "has no user; it has: known_hosts, ssh-privatekey"),
        ({"user": b" \n"}, "SecretKeyMissing", "has no user"),
        ({"ssh_privatekey": None, "user": None}, "SecretKeyMissing", "has no user and no ssh-privatekey"),
        ({"user": b"a b"}, "SecretUnusable", "give a name without spaces"),
        ({"user": b"\xff"}, "SecretUnusable", "user is no text"),
        ({"ssh_privatekey": b"hunter2"}, "LoginKeyUnusable", "ssh-keygen -p"),
    ],
    ids=["no user", "blank user", "no key and no user", "two words", "binary", "no key"],
)
async def test_a_bad_secret_is_said_with_its_name_and_what_to_do(
    changes: dict[str, bytes | None], reason: str, says: str
) -> None:
    api = Api()
    api.put(whole(**changes))
    waiting = await found(api)
    assert isinstance(waiting, Waiting)
    assert waiting.reason == reason
    assert says in waiting.message and f"Secret key-a in namespace {HOME}" in waiting.message
    assert "hunter2" not in waiting.message


async def test_a_key_with_a_passphrase(tmp_path: Path) -> None:
    api = Api()
    api.put(whole(ssh_privatekey=with_passphrase(tmp_path)))
    waiting = await found(api)
    assert isinstance(waiting, Waiting) and waiting.reason == "LoginKeyUnusable"
    assert "Passphrase must be specified" in waiting.message and "Secret key-a" in waiting.message


async def test_a_secret_that_is_missing_or_forbidden() -> None:
    api = Api()
    waiting = await found(api)
    assert isinstance(waiting, Waiting) and waiting.reason == "SecretMissing"
    assert f"kubectl create secret generic key-a -n {HOME} --from-literal=user=NAME" in waiting.message
    api.fault = Refused(403, "no")
    waiting = await found(api)
    assert isinstance(waiting, Waiting) and waiting.reason == "SecretForbidden"
    assert "grant its account `get` on it" in waiting.message


def test_outside_of_a_cluster_the_secrets_namespace_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert secrets_namespace(settings()) == HOME
    monkeypatch.setattr("speedrun_operator.login_secret.own_namespace", lambda: "own")
    assert secrets_namespace(settings(logins_namespace=None)) == "own"
    monkeypatch.setattr("speedrun_operator.login_secret.own_namespace", lambda: None)
    with pytest.raises(NoNamespace, match="set logins_namespace"):
        secrets_namespace(settings(logins_namespace=None))


class World:
    """`Teams` over Secrets in memory, and the engine that it tells."""

    def __init__(self, with_: Settings) -> None:
        self.api = Api()
        self.logins = Logins({namespace: each.secret for namespace, each in with_.logins.items()})
        setup = Setup(
            cluster="c", recipes={}, site=SITE, policy=Policy(), poll_seconds=1, release_seconds=1, logins=self.logins
        )
        self.engine = Engine(kube=self.api, backends={}, setup=setup)
        self.teams = Teams(
            self.api, self.engine, with_, HOME, lambda login, root: SlurmBackend(login, SlurmSite(root, "python3"), "c")
        )

    @property
    def backend(self) -> SlurmBackend:
        (backend,) = self.engine.backends
        assert isinstance(backend, SlurmBackend)
        return backend

    def target(self) -> LoginTarget:
        return self.backend.login.target


async def test_another_key_of_the_same_user_is_the_same_login() -> None:
    world = World(settings())
    world.api.put(whole())
    await world.teams.once()
    before = world.backend
    other = asyncssh.generate_private_key("ssh-ed25519").export_private_key()
    world.api.put(whole(ssh_privatekey=other))
    await world.teams.once()
    assert world.backend is before
    assert (world.target().key, world.logins.identity_of("team-a")) == (other, "alice@login.example:22")


async def test_another_user_is_another_login() -> None:
    world = World(settings())
    world.api.put(whole())
    await world.teams.once()
    before = world.backend
    world.api.put(whole(user=b"carol"))
    await world.teams.once()
    assert world.backend is not before
    assert world.logins.identity_of("team-a") == "carol@login.example:22"
    await asyncio.sleep(0)
    assert before.login.health().state == "closed"


async def test_a_secret_that_is_gone_ends_the_use_of_its_key_and_one_that_is_not_read_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(settings())
    world.api.put(whole())
    await world.teams.once()
    for fault in (Unavailable(0, "no answer"), Refused(403, "not now")):
        world.api.fault = fault
        await world.teams.once()
        assert world.logins.waits("team-a") is None
    world.api.fault = None
    world.api.objects.clear()
    await world.teams.once()
    assert list(world.engine.backends) == []
    waits = world.logins.waits("team-a")
    assert waits is not None and waits.reason == "SecretMissing"
    world.api.put(whole())
    await world.teams.once()
    assert world.logins.waits("team-a") is None
    assert key().decode().splitlines()[1] not in caplog.text


async def test_two_roots_of_one_user_are_refused() -> None:
    """Jobs that prepare are named by what they make: those of one root would be taken for the other's."""
    logins = {"team-a": {"secret": "key-a"}, "team-b": {"secret": "key-b", "root": "/shared/b"}}
    world = World(settings(logins=logins))
    world.api.put(whole())
    await world.teams.once()
    world.api.put(whole(), PATH.replace("key-a", "key-b"))
    await world.teams.once()
    assert world.logins.waits("team-a") is None
    waits = world.logins.waits("team-b")
    assert waits is not None and "as Secret key-a does with another root" in waits.message


def test_namespaces_with_the_same_secret_share_one_login() -> None:
    logins = {"team-a": {"secret": "key-a"}, "team-a-dev": {"secret": "key-a"}, "team-b": {"secret": "key-b"}}
    made = teams(settings(logins=logins))
    assert [(each.name, each.namespaces) for each in made] == [
        ("key-a", ("team-a", "team-a-dev")),
        ("key-b", ("team-b",)),
    ]


async def test_the_same_place_serves_them_all() -> None:
    logins = Logins({"team-a": "key-a", "team-a-dev": "key-a"})
    setup = Setup(cluster="c", recipes={}, site=SITE, policy=Policy(), poll_seconds=1, release_seconds=1, logins=logins)
    engine = Engine(kube=ApiServer(), backends={}, setup=setup)
    engine.opened("key-a", "alice@login:22", MemoryBackend(Cluster()), None)  # type: ignore[arg-type]
    assert setup.slurm("team-a") == setup.slurm("team-a-dev") == Place(login="key-a")
