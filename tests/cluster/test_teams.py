"""Two teams with logins of their own, and a third namespace without: real users, real jobs, real homes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.speedruns import Speedruns, condition, quick, slow
from cluster.waiting import until
from testbed import users
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.login import Login
from testbed.operator import NAMESPACE, Operator
from testbed.part import Place
from testbed.slurm import Slurm


class Team:
    """One namespace, and the account and Secret that are its login."""

    def __init__(self, login: Login, account: users.User, runs: Speedruns) -> None:
        self.runs = runs
        self.account = account
        self.secret = f"login-{runs.namespace}"
        self.identity = f"{account.login}@127.0.0.1:{login.port}"
        self._known_hosts = login.known_hosts.read_text()

    def secret_with(self, key: Path) -> dict[str, Any]:
        """Its Secret."""
        values = {"user": self.account.login, "ssh-privatekey": key.read_text(), "known_hosts": self._known_hosts}
        metadata = {"name": self.secret, "namespace": NAMESPACE}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}

    def ledgers(self) -> set[str]:
        """Ledgers in the account's home: NAMESPACE/NAME-UID."""
        root = self.account.home / "speedruns"
        return {str(each.parents[1].relative_to(root)) for each in root.glob("*/*/alloc-*/log")}

    def ledger(self, name: str) -> str:
        made = self.runs.get(name)["metadata"]
        return f"{made['namespace']}/{name}-{made['uid'].replace('-', '')[:8]}"


@pytest.fixture(scope="module")
def login(bed: Facts, place: Place) -> Iterator[Login]:
    part = Login(place)
    yield part
    for name in users.NAMES:
        part.authorize(name, part.key(name).with_suffix(".pub").read_text().strip())


@pytest.fixture(scope="module")
def slurm(place: Place) -> Slurm:
    return Slurm(place)


def apply(kubectl: Kubectl, *objects: dict[str, Any]) -> None:
    body = {"apiVersion": "v1", "kind": "List", "items": [*objects]}
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(body))


@pytest.fixture(scope="module")
def nobodys() -> str:
    """A namespace without a login."""
    return f"test-{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="module")
def teams(bed: Facts, place: Place, kubectl: Kubectl, login: Login, nobodys: str) -> Iterator[list[Team]]:
    """Two teams with Secrets; the operator's rights and its namespace are there."""
    Operator(place, bed).install()
    made = [
        Team(login, account, Speedruns(kubectl, f"{nobodys}-{number}"))
        for number, account in enumerate(users.ensure(place))
    ]
    namespaces = [*(each.runs.namespace for each in made), nobodys]
    apply(
        kubectl,
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in namespaces),
        *(each.secret_with(login.key(each.account.name)) for each in made),
    )
    yield made
    kubectl("delete", "namespace", *namespaces, "--wait=false")
    kubectl("delete", "secret", "-n", NAMESPACE, *(each.secret for each in made))


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place, teams: list[Team], nobodys: str) -> Iterator[Operator]:
    settings = {
        "SPEEDRUN_LOGINS": json.dumps({each.runs.namespace: {"secret": each.secret} for each in teams}),
        "SPEEDRUN_LOGINS_NAMESPACE": NAMESPACE,
        "SPEEDRUN_LOGINS_READ_SECONDS": "1",
        "SPEEDRUN_WATCH__NAMESPACES": ",".join([*(each.runs.namespace for each in teams), nobodys]),
        # None of the operator's own: what a team has not in its Secret, nobody has.
        "SPEEDRUN_LOGIN__USER": "",
        "SPEEDRUN_LOGIN__KEY_FILE": "",
        "SPEEDRUN_LOGIN__KNOWN_HOSTS_FILE": "",
    }
    operator = Operator(place, bed, settings)
    operator.start()
    yield operator
    operator.kill()


@pytest.fixture(scope="module")
def checking(operator: Operator, teams: list[Team]) -> subprocess.Popen[str]:
    """`check` under way, with a Secret for the first team alone."""
    first, second = teams
    logins = {first.runs.namespace: {"secret": first.secret}, second.runs.namespace: {"secret": "absent"}}
    return subprocess.Popen(
        [sys.executable, "-m", "speedrun_operator.cli", "check"],
        env={**os.environ, **operator.environment(), "SPEEDRUN_LOGINS": json.dumps(logins)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def owners(slurm: Slurm, uid: str) -> set[str]:
    """Whose jobs there are of one Speedrun."""
    rows = slurm.command("squeue", "-h", "-t", "all", "-o", "%j %u").stdout.splitlines()
    return {row.split()[1] for row in rows if uid in row}


def reachable(status: dict[str, Any]) -> tuple[str, str]:
    said = condition(status, "BackendReachable")
    return said.get("status", ""), said.get("reason", "")


def test_teams_submit_as_themselves(
    operator: Operator,
    checking: subprocess.Popen[str],
    teams: list[Team],
    nobodys: str,
    login: Login,
    slurm: Slurm,
    kubectl: Kubectl,
    tmp_path: Path,
) -> None:
    alice, bob = teams
    logged = operator.log.stat().st_size
    alice.runs.apply(slow("run", 7))
    bob.runs.apply(slow("run", 60))
    nobody = Speedruns(kubectl, nobodys)
    nobody.apply(quick("run"))

    # Each job is its team's own user's, with a ledger in that user's home alone.
    for team, other in ((alice, bob), (bob, alice)):
        status = team.runs.wait_phase("run", "Training")
        assert owners(slurm, team.runs.get("run")["metadata"]["uid"]) == {team.account.name}
        assert status["allocations"][0]["login"] == team.identity
        assert team.ledger("run") in team.ledgers() - other.ledgers()

    status = nobody.wait("run", "waiting", lambda each: each.get("reason") == "NamespaceNotListed")
    admitted = condition(status, "Admitted")
    assert (status["phase"], admitted["status"]) == ("Pending", "False")
    assert f"{nobodys} has no login: the operator's setting logins" in admitted["message"]
    assert owners(slurm, nobody.get("run")["metadata"]["uid"]) == set()

    # A poll is one remote command a login.
    before = operator.health()
    until("four more polls", lambda: operator.health()["polls"] >= before["polls"] + 4)
    after = operator.health()
    asked = after["remote_commands"] - before["remote_commands"]
    assert abs(asked - (after["polls"] - before["polls"])) <= 2

    # The key of one is refused: it says so, and the other finishes meanwhile.
    login.authorize(bob.account.name)
    login.drop_sessions(bob.account.name)
    status = bob.runs.wait("run", "refused", lambda each: reachable(each)[0] == "False", timeout=60)
    assert reachable(status)[1] in ("LoginAuthenticationFailed", "ConnectionLost", "LoginBusy")
    assert alice.runs.wait_finished("run")["phase"] == "Succeeded"
    status = bob.runs.wait("run", "refused", lambda each: reachable(each)[1] == "LoginAuthenticationFailed")
    assert bob.account.login in condition(status, "BackendReachable")["message"]

    # A new key in the Secret is taken up without a restart.
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    login.authorize(bob.account.name, key.with_suffix(".pub").read_text().strip())
    apply(kubectl, bob.secret_with(key))
    bob.runs.wait("run", "reachable again", lambda each: reachable(each)[0] == "True", timeout=60)

    # What is deleted ends through the login that submitted it.
    uid = bob.runs.get("run")["metadata"]["uid"]
    kubectl("delete", "speedrun", "run", "-n", bob.runs.namespace, "--timeout=60s", timeout=70)
    live = slurm.command("squeue", "-h", "-t", "pending,running", "-o", "%j").stdout
    assert uid not in live

    # No key is shown anywhere.
    told = operator.log.read_bytes()[logged:].decode() + kubectl("get", "speedruns,events", "-A", "-o", "yaml")
    argv = Path(f"/proc/{operator.pid}/cmdline").read_text() + Path(f"/proc/{operator.pid}/environ").read_text()
    for secret in (key, login.key(alice.account.name)):
        body = secret.read_text().splitlines()[2]
        assert body not in told and body not in argv
    assert "Traceback" not in told


def test_check_looks_at_every_login(checking: subprocess.Popen[str], teams: list[Team], nobodys: str) -> None:
    alice, bob = teams
    said, complaints = checking.communicate(timeout=60)
    assert (checking.returncode, complaints) == (1, "")
    for line in (
        f"login        ok       {alice.runs.namespace}: {alice.identity} is {alice.account.name} on ",
        f"storage      ok       {alice.runs.namespace}: ~/speedruns: ",
        f"slurm        ok       {alice.runs.namespace}: compute-h100: 2 nodes of 8 nvidia_h100",
        f"login        FAULT    {bob.runs.namespace}: SecretMissing: the login's Secret absent in namespace ",
        f"login        FAULT    {nobodys} is watched, but not in logins",
    ):
        assert any(each.startswith(line) for each in said.splitlines()), said


@pytest.mark.full
def test_a_login_that_hangs_keeps_no_other_team_waiting(operator: Operator, teams: list[Team], login: Login) -> None:
    alice, bob = teams
    bob.runs.apply(slow("hangs", 90))
    bob.runs.wait_phase("hangs", "Training")
    login.pause_sessions(bob.account.name)
    try:
        began = time.monotonic()
        alice.runs.apply(*(quick(f"goes-{each}") for each in range(5)))
        for each in range(5):
            assert alice.runs.wait_finished(f"goes-{each}")["phase"] == "Succeeded"
        took = time.monotonic() - began
        held = bob.runs.status("hangs").get("step", 0)
    finally:
        login.resume()
    assert took < 30
    assert held < 15, "it was followed all the while"
    bob.runs.wait("hangs", "followed again", lambda each: each.get("step", 0) > held + 5, timeout=90)


@pytest.mark.full
def test_jobs_of_the_user_that_a_secret_named_before_are_unknown_and_not_lost(
    operator: Operator, teams: list[Team], login: Login, slurm: Slurm, kubectl: Kubectl
) -> None:
    alice, bob = teams
    alice.runs.apply(slow("changes", 25))
    uid = alice.runs.get("changes")["metadata"]["uid"]
    alice.runs.wait_phase("changes", "Training")
    own = alice.secret_with(login.key(alice.account.name))
    login.authorize(bob.account.name, login.key(bob.account.name).with_suffix(".pub").read_text().strip())
    apply(kubectl, {**bob.secret_with(login.key(bob.account.name)), "metadata": own["metadata"]})
    status = alice.runs.wait("changes", "unknown", lambda each: reachable(each) == ("False", "LoginChanged"))
    said = condition(status, "BackendReachable")["message"]
    assert f"submitted as {alice.identity}" in said and f"is {bob.identity} now" in said
    alice.runs.apply(quick("next"))  # of the same namespace, as the new user
    assert alice.runs.wait_finished("next")["allocations"][0]["login"] == bob.identity
    assert (alice.runs.status("changes")["phase"], owners(slurm, uid)) == ("Training", {alice.account.name})
    apply(kubectl, own)
    status = alice.runs.wait_finished("changes")
    assert (status["phase"], len(status["allocations"])) == ("Succeeded", 1)
