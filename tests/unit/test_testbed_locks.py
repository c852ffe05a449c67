"""One bed a machine: its lock and its users are those of living processes, never of dead ones."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.locks import Users, exclusive, living
from testbed.processes import start_ticks, wait_for

TESTS = Path(__file__).parents[1]
HOLD_LOCK = "from testbed.locks import exclusive\nwith exclusive(path, print): ready()"
HOLD_CLAIM = "from testbed.locks import Users\nwith Users(path).claim(): ready()"


@contextmanager
def another_process(path: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does `code` and stays in `ready()` until it is killed or its standard input ends."""
    head = "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
    head += "def ready():\n    print('ready', flush=True)\n    sys.stdin.read()\n"
    child = subprocess.Popen(
        [sys.executable, "-c", head + code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("text", "alive"),
    [
        ("", False),
        ("{pid} {ticks}\n", True),
        ("{pid} {other}\n", False),
        ("99999999 {ticks}\n", False),
        ("{pid}\n", False),
        ("rubbish\n{pid} {ticks}\n\n", True),
    ],
)
def test_a_signature_counts_while_that_very_process_lives(text: str, alive: bool) -> None:
    pid, ticks = os.getpid(), start_ticks(os.getpid())
    assert ticks is not None
    assert living(text.format(pid=pid, ticks=ticks, other=ticks + 1)) == ([pid] if alive else [])


@given(st.text())
def test_any_text_in_a_lock_file_is_survived(text: str) -> None:
    assert isinstance(living(text), list)


def test_a_lock_is_waited_for_and_its_holder_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    told: list[str] = []
    entered = threading.Event()

    def enter() -> None:
        with exclusive(path, told.append):
            entered.set()

    with another_process(path, HOLD_LOCK) as holder:
        waiter = threading.Thread(target=enter)
        waiter.start()
        wait_for("the message", lambda: bool(told), timeout=10)
        assert len(told) == 1
        assert told[0].startswith(f"pid {holder.pid} (")
        assert not entered.is_set()
        holder.kill()
        assert entered.wait(10), "a killed process still holds the lock"
        waiter.join()


def test_a_lock_file_that_was_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    entered = threading.Event()
    told: list[str] = []

    def enter() -> None:
        with exclusive(path, told.append):
            entered.set()
            assert path.exists()

    with exclusive(path, told.append):
        waiter = threading.Thread(target=enter)
        waiter.start()
        wait_for("the second to wait", lambda: bool(told), timeout=10)
        path.unlink()
    assert entered.wait(10)
    waiter.join()


def test_the_lock_is_free_after_an_error_inside(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(RuntimeError), exclusive(tmp_path / "lock", told.append):
        raise RuntimeError
    with exclusive(tmp_path / "lock", told.append):
        pass
    assert told == []


def test_users_are_the_living_claimers(tmp_path: Path) -> None:
    users = Users(tmp_path / "users")
    assert users.living() == []
    with another_process(users.path, HOLD_CLAIM) as one, another_process(users.path, HOLD_CLAIM) as two:
        names = users.living()
        assert [name.split(" (")[0] for name in names] == [f"pid {one.pid}", f"pid {two.pid}"]
        one.kill()
        one.wait()
        assert [name.split(" (")[0] for name in users.living()] == [f"pid {two.pid}"]
        with users.claim():
            assert len(users.living()) == 2
    assert users.living() == []


def test_a_child_does_not_inherit_a_claim(tmp_path: Path) -> None:
    users = Users(tmp_path / "users")
    with users.claim():
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        assert users.living() == []
        child.kill()
