"""The login service fails in every way that it may while Speedruns wait, are submitted and run.

The operator reaches it through a relay, which is the gateway of these tests.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.faults.story import Story
from cluster.faults.world import World
from cluster.speedruns import Speedruns, condition, quick, slow
from cluster.waiting import until
from testbed.facts import Facts
from testbed.login import Login
from testbed.operator import Operator
from testbed.part import Place
from testbed.relay import Relay

Follow = Callable[[str], Story]


@pytest.fixture(scope="module")
def gateway(bed: Facts) -> Iterator[Relay]:
    with Relay(bed.ssh_port) as relay:
        yield relay


@pytest.fixture(scope="module")
def pins(bed: Facts, gateway: Relay, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """known_hosts for the gateway's port, with the login's key."""
    path = tmp_path_factory.mktemp("pins") / "known_hosts"
    path.write_text(bed.ssh_known_hosts.read_text().replace(f":{bed.ssh_port} ", f":{gateway.port} "))
    return path


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place, gateway: Relay, pins: Path) -> Iterator[Operator]:
    settings = {"SPEEDRUN_LOGIN__PORT": str(gateway.port), "SPEEDRUN_LOGIN__KNOWN_HOSTS_FILE": str(pins)}
    operator = Operator(place, bed, settings)
    operator.install()
    operator.start()
    yield operator
    operator.kill()
    assert "Traceback" not in operator.log.read_text()


@pytest.fixture(autouse=True)
def _healed(operator: Operator, gateway: Relay) -> Iterator[None]:
    yield
    gateway.heal()


def reachable(status: dict[str, Any], word: str) -> bool:
    return condition(status, "BackendReachable").get("status") == word


@pytest.mark.full
def test_stopped_before_the_first_submission(
    runs: Speedruns, story: Follow, login: Login, gateway: Relay, world: World
) -> None:
    login.stop()
    gateway.cut()
    with story("early") as told:
        runs.apply(quick("early"))
        status = runs.wait("early", "unreachable", lambda each: reachable(each, "False"))
        assert (status["phase"], status["reason"]) == ("Pending", condition(status, "BackendReachable")["reason"])
        assert condition(status, "Submitted")["status"] == "False" and "job" not in status
        login.start()
        assert runs.wait_finished("early")["phase"] == "Succeeded"
    assert told.never_went_back()
    assert [word for word, _ in told.said("BackendReachable")] == ["False", "True"]
    assert world.starts(runs.get("early")["metadata"]["uid"]) == [[runs.status("early")["job"]]]


@pytest.mark.full
def test_hung_for_some_seconds_while_it_trains(runs: Speedruns, story: Follow, login: Login, world: World) -> None:
    """What a stall does not last long enough to be called an outage leaves no trace but late numbers."""
    with story("hung") as told:
        runs.apply(slow("hung", 4))
        job = runs.wait_phase("hung", "Training")["job"]
        login.pause()
        until("the job to end behind the operator's back", lambda: world.state(job) == "COMPLETED")
        assert runs.status("hung")["phase"] == "Training"
        login.resume()
        status = runs.wait_finished("hung")
    assert (status["phase"], status["train_time"]) == ("Succeeded", "0.221s")
    assert told.never_went_back() and {word for word, _ in told.said("BackendReachable")} == {"True"}


@pytest.mark.full
def test_hung_for_longer_than_a_poll_waits(runs: Speedruns, story: Follow, login: Login, world: World) -> None:
    with story("hung") as told:
        runs.apply(slow("hung", 5))
        runs.wait_phase("hung", "Training")
        login.pause()
        status = runs.wait("hung", "unreachable", lambda each: reachable(each, "False"), timeout=100)
        assert status["phase"] == "Training"
        assert condition(status, "BackendReachable")["reason"].startswith(("Login", "Connection", "Command"))
        login.resume()
        assert runs.wait_finished("hung", timeout=120)["phase"] == "Succeeded"
    assert told.never_went_back()
    assert [word for word, _ in told.said("BackendReachable")] == ["True", "False", "True"]


CUT = 'touch "$notes/reached"; while [ ! -e "$notes/go" ]; do sleep 0.1; done'


def test_cut_after_sbatch_and_before_its_answer(runs: Speedruns, story: Follow, gateway: Relay, world: World) -> None:
    """It did run: found by its name, and not made again."""
    with world.programs(sbatch=f'"$real" "$@"; code=$?; {CUT}; exit $code') as notes, story("ran") as told:
        gateway.cut()
        runs.apply(slow("ran", 4))
        until("sbatch to have answered", (notes / "reached").exists)
        gateway.cut()
        status = runs.wait("ran", "found", lambda each: bool(each.get("job")))
        (notes / "go").touch()
        assert runs.wait_finished("ran")["phase"] == "Succeeded"
    uid = runs.get("ran")["metadata"]["uid"]
    assert world.jobs_ever(uid) == [status["job"]] and world.starts(uid) == [[status["job"]]]
    assert told.never_went_back()


@pytest.mark.full
def test_cut_before_sbatch_ran(runs: Speedruns, gateway: Relay, world: World) -> None:
    """It did not run, but that is not known: only a claim that has become old is followed by another submission."""
    with world.programs(sbatch=f"{CUT}; exit 1") as notes:
        gateway.cut()
        runs.apply(quick("not-run"))
        until("sbatch to be called", (notes / "reached").exists)
        gateway.cut()
        status = runs.wait("not-run", "unknown", lambda each: each.get("reason") == "SubmissionUnknown")
        assert status["phase"] == "Pending"
        assert "looked up" in condition(status, "Submitted")["message"]
        uid = runs.get("not-run")["metadata"]["uid"]
        assert world.jobs_ever(uid) == []
        world.kill_wrappers(notes)
    gateway.cut()  # sessions from now on have the login's own sbatch
    world.make_claims_old(uid)
    status = runs.wait_finished("not-run", timeout=90)
    assert (status["phase"], len(status["allocations"])) == ("Succeeded", 1)
    assert world.jobs_ever(uid) == [status["job"]] and world.starts(uid) == [[status["job"]]]


@pytest.mark.full
def test_turned_away_in_key_exchange(runs: Speedruns, story: Follow, gateway: Relay) -> None:
    with story("away") as told:
        runs.apply(slow("away", 4))
        runs.wait_phase("away", "Training")
        gateway.turning_away = True
        gateway.cut()
        status = runs.wait("away", "unreachable", lambda each: reachable(each, "False"))
        assert (status["phase"], condition(status, "BackendReachable")["reason"]) == ("Training", "LoginBusy")
        assert "closed the connection during key exchange" in condition(status, "BackendReachable")["message"]
        gateway.heal()
        assert runs.wait_finished("away")["phase"] == "Succeeded"
    assert told.never_went_back()
    assert [word for word, _ in told.said("BackendReachable")][-1] == "True"


@pytest.mark.full
@pytest.mark.parametrize("seconds", [4, 170])
def test_slow_to_start(seconds: int, runs: Speedruns, story: Follow, gateway: Relay) -> None:
    """A login pod of one's own may take three minutes to start: that is waited for, with the reason said."""
    gateway.delay = seconds
    gateway.cut()
    with story("patient") as told:
        runs.apply(quick("patient"))
        if seconds > 100:
            status = runs.wait("patient", "told", lambda each: each.get("reason") == "LoginStarting", timeout=300)
            assert status["phase"] == "Pending"
            assert "at most 200 s" in condition(status, "BackendReachable")["message"]
        assert runs.wait_finished("patient", timeout=seconds + 60)["phase"] == "Succeeded"
    assert told.never_went_back()


def test_another_host_key_stops_everything_until_it_is_pinned(
    runs: Speedruns, story: Follow, login: Login, gateway: Relay, pins: Path, operator: Operator, world: World
) -> None:
    before = pins.read_text()
    with story("keyed") as told:
        runs.apply(slow("keyed", 6))
        job = runs.wait_phase("keyed", "Training")["job"]
        login.use_host_key("other_host")
        polls = operator.health()["polls"]
        until("another poll", lambda: operator.health()["polls"] != polls)
        gateway.cut()
        mismatch = lambda each: condition(each, "BackendReachable").get("reason") == "HostKeyMismatch"  # noqa: E731
        status = runs.wait("keyed", "stopped for the key", mismatch)
        shown = condition(status, "BackendReachable")["message"]
        for key in ("host", "other_host"):
            assert fingerprint(login.root / f"{key}_ed25519.pub") in shown
        assert status["phase"] == "Training"
        runs.wait_event(
            "keyed", lambda each: each[:2] == ("Warning", "HostKeyMismatch") and "known_hosts pins" in each[2]
        )
        until("the job to end meanwhile", lambda: world.state(job) == "COMPLETED")
        assert mismatch(runs.status("keyed"))
        public = (login.root / "other_host_ed25519.pub").read_text().split()
        pid = operator.pid
        pins.write_text(f"[127.0.0.1]:{gateway.port} {public[0]} {public[1]}\n")
        try:
            assert runs.wait_finished("keyed")["phase"] == "Succeeded"
        finally:
            login.use_host_key("host")
            pins.write_text(before)
            gateway.cut()
    assert operator.pid == pid and told.never_went_back()
    # A poll that was under way when the gateway was cut tells of that first.
    assert [each for each in told.said("BackendReachable") if each != ("False", "ConnectionLost")] == [
        ("True", "Reachable"),
        ("False", "HostKeyMismatch"),
        ("True", "Reachable"),
    ]


def fingerprint(public: Path) -> str:
    shown = subprocess.run(["ssh-keygen", "-lf", public], check=True, capture_output=True, text=True)
    return shown.stdout.split()[1]


@pytest.mark.full
def test_chatty_start_up_files_and_foreign_shells(runs: Speedruns, bed: Facts, gateway: Relay, world: World) -> None:
    """The whole life of a run through each login shell, each with a start-up file that prints."""
    chatter = "echo 'Submitted batch job 99'\necho '48213|RUNNING|None'\n"
    files = {"bash": ".bashrc", "tcsh": ".tcshrc", "fish": ".config/fish/config.fish", "zsh": ".zshenv", "dash": None}
    profile = world.home / ".bashrc"
    before = profile.read_text()
    entry = bed.ssh_user
    for name in files:
        if file := files[name]:
            world.write(file, chatter)
        shell(entry, str(shutil.which(name)))
        try:
            gateway.cut()
            runs.apply(quick(f"in-{name}"))
            status = runs.wait_finished(f"in-{name}")
            assert (status["phase"], status["val_loss"]) == ("Succeeded", 3.2782), name
            assert status["job"] != "99"
        finally:
            shell(entry, "/bin/bash")
            if file:
                (world.home / file).unlink()
            world.write(".bashrc", before)
    gateway.cut()


def shell(user: str, path: str) -> None:
    subprocess.run(["usermod", "--shell", path, user], check=True, capture_output=True)


@pytest.mark.full
@pytest.mark.parametrize("sessions", [1, 2])
def test_fewer_sessions_than_commands(
    sessions: int, runs: Speedruns, login: Login, gateway: Relay, world: World
) -> None:
    login.limit_sessions(sessions)
    gateway.cut()
    names = [f"one-{number}" for number in range(4)]
    runs.apply(*(quick(name) for name in names))
    for name in names:
        status = runs.wait_finished(name)
        assert status["phase"] == "Succeeded"
        assert world.jobs_ever(runs.get(name)["metadata"]["uid"]) == [status["job"]]
