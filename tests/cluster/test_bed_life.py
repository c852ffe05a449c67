"""A bed's life: started, kept, refused, interrupted, orphaned. Each test has a bed of its own, one half only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.bed import Bed
from testbed.part import Place
from testbed.processes import start_ticks, wait_for

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}
HOLD = "with Bed(place, 'kubernetes').hold() as facts: print('ready', flush=True); sys.stdin.read()"
CLAIM = "with Bed(place).claim() as facts: print('ready', flush=True); sys.stdin.read()"
HEAD = "import sys, pathlib\nfrom testbed.bed import Bed\nfrom testbed.part import Place\n"
HEAD += "place = Place(state=pathlib.Path(sys.argv[1]))\n"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Bed]:
    """A bed of this test's own; whatever the test leaves is taken down."""
    bed = Bed(Place(state=tmp_path / "bed"), "kubernetes")
    yield bed
    bed.down(force=True)


def command(bed: Bed, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "testbed", "--state", str(bed.place.state), *arguments]


def by_hand(bed: Bed, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = command(bed, *arguments)
    return subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def another_process(bed: Bed, code: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HEAD + code, str(bed.place.state)]
    with subprocess.Popen(argv, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def pids(bed: Bed) -> set[int]:
    return {pid for _, pid, alive in bed.status() if alive and pid}


@pytest.mark.full
def test_up_status_env_down(own: Bed) -> None:
    assert by_hand(own, "status").returncode == 1
    first = by_hand(own, "up", "--only", "kubernetes")
    assert first.returncode == 0, first.stderr
    running = pids(own)
    assert len(running) == 3
    again = by_hand(own, "up", "--only", "kubernetes")
    assert again.returncode == 0
    assert "up already" in again.stderr
    assert pids(own) == running
    assert by_hand(own, "status").returncode == 0
    assert f"export KUBECONFIG={own.facts().kubeconfig}" in by_hand(own, "env").stdout

    own.place.processes.signal("etcd", signal.SIGKILL)
    wait_for("etcd to die", lambda: not own.place.processes.alive("etcd"), timeout=10)
    told = by_hand(own, "status")
    assert told.returncode == 1
    assert [line.split()[-1] for line in told.stdout.splitlines() if line.startswith("etcd")] == ["down"]
    own.up()
    assert by_hand(own, "status").returncode == 0

    running |= pids(own)
    assert by_hand(own, "down").returncode == 0
    assert not [pid for pid in running if start_ticks(pid)]
    assert by_hand(own, "status").stdout == "no bed is up\n"
    missing = by_hand(own, "env")
    assert missing.returncode == 1
    assert "none is up: run `python -m testbed up` first" in missing.stderr


@pytest.mark.full
def test_a_used_bed_is_not_taken_down_and_a_waiting_test_run_gets_it_afterwards(own: Bed) -> None:
    own.up()
    before = pids(own)
    with another_process(own, CLAIM) as user:
        refused = by_hand(own, "down")
        assert refused.returncode == 1
        assert f"in use by pid {user.pid}" in refused.stderr
        said: list[str] = []

        def hear(line: str) -> None:
            said.append(line)
            if "waiting until it is free" in line:
                user.kill()

        with Bed(Place(state=own.place.state, say=hear), "kubernetes").hold() as facts:
            assert any(f"in use by pid {user.pid}" in line for line in said)
            assert facts.kubeconfig.exists()
            assert not pids(own) & before
    assert pids(own) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(own: Bed, number: signal.Signals) -> None:
    # Where the tests themselves run in the background, a child would inherit that Ctrl-C is ignored.
    argv = ["env", "--default-signal=INT", *command(own, "up", "--only", "kubernetes")]
    with subprocess.Popen(argv, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as child:
        wait_for("the API server to start", lambda: own.place.processes.alive("kube-apiserver"), timeout=60)
        started = pids(own)
        child.send_signal(number)
        _, told = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted: what was started has been stopped" in told
    assert not [pid for pid in started if start_ticks(pid)]
    assert own.status() == []


def test_a_killed_owner_takes_its_bed_along(own: Bed) -> None:
    with another_process(own, HOLD) as owner:
        running = pids(own)
        assert len(running) == 4  # with the watchdog
        owner.kill()
    wait_for("the watchdog's work", lambda: not any(start_ticks(pid) for pid in running), timeout=30)
    assert own.status() == []


def test_a_part_that_does_not_start_is_named_with_its_log(own: Bed, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    broken = assets / "etcd"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo etcd Version: 3.6.0\necho no disk today; exit 1\n')
    broken.chmod(0o755)
    argv = command(own, "up", "--only", "kubernetes")
    environment = ENVIRONMENT | {"KUBEBUILDER_ASSETS": str(assets)}
    failed = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert failed.returncode == 1
    assert "etcd: ended" in failed.stderr
    assert "no disk today" in failed.stderr
    assert own.status() == []
