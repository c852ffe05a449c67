"""A process of the bed is signalled only while it is the very process that the bed started."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.processes import Processes, StartFailed, free_ports, start_ticks, wait_for

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path / "processes")
    yield made
    for name in made.names():
        made.stop(name, grace=0)


def test_a_process_is_recorded_found_by_another_reader_and_stopped(processes: Processes, tmp_path: Path) -> None:
    proc = processes.start("sleeper", SLEEP, log=tmp_path / "log")
    other = Processes(processes.directory)
    assert other.names() == ["sleeper"]
    assert other.alive("sleeper")
    other.stop("sleeper")
    assert start_ticks(proc.pid) is None
    assert other.names() == []
    assert not processes.alive("sleeper")


def test_a_name_runs_once(processes: Processes, tmp_path: Path) -> None:
    processes.start("sleeper", SLEEP, log=tmp_path / "log")
    with pytest.raises(StartFailed, match="sleeper: is running already"):
        processes.start("sleeper", SLEEP, log=tmp_path / "log")


def test_a_pid_given_to_somebody_else_is_never_signalled(processes: Processes, tmp_path: Path) -> None:
    proc = processes.start("sleeper", SLEEP, log=tmp_path / "log")
    record = processes.directory / "sleeper.json"
    fields = json.loads(record.read_text())
    record.write_text(json.dumps(fields | {"ticks": proc.ticks - 1}))
    assert not processes.alive("sleeper")
    processes.signal("sleeper", signal.SIGKILL)
    processes.kill("sleeper")
    assert start_ticks(proc.pid) == proc.ticks
    record.write_text(json.dumps(fields))


def test_a_zombie_counts_as_ended() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        wait_for("the child to end", lambda: start_ticks(pid) is None, timeout=10)
        assert Path(f"/proc/{pid}").exists()
    finally:
        os.waitpid(pid, 0)


def test_a_deaf_process_is_killed_after_the_grace(processes: Processes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    proc = processes.start("deaf", DEAF, log=log)
    processes.ready("deaf", lambda: "deaf" in log.read_text(), timeout=10)
    processes.stop("deaf", grace=0.2)
    assert start_ticks(proc.pid) is None


def test_a_frozen_process_is_stopped(processes: Processes, tmp_path: Path) -> None:
    proc = processes.start("sleeper", SLEEP, log=tmp_path / "log")
    processes.signal("sleeper", signal.SIGSTOP)
    processes.stop("sleeper", grace=5)
    assert start_ticks(proc.pid) is None


def test_what_ends_while_it_starts_shows_the_end_of_its_log(processes: Processes, tmp_path: Path) -> None:
    lines = "; ".join(f"print('line {number}')" for number in range(40))
    processes.start("broken", [sys.executable, "-c", lines], log=tmp_path / "log")
    with pytest.raises(StartFailed) as failure:
        processes.ready("broken", lambda: False, timeout=10)
    message = str(failure.value)
    assert message.startswith("broken: ended while it was starting")
    assert "line 39" in message
    assert "line 5\n" not in message


def test_what_is_not_ready_in_time_says_so(processes: Processes, tmp_path: Path) -> None:
    processes.start("sleeper", SLEEP, log=tmp_path / "log")
    with pytest.raises(StartFailed, match=r"sleeper: not ready within 0\.1 s"):
        processes.ready("sleeper", lambda: False, timeout=0.1)


def test_nothing_starts_while_the_bed_is_taken_down(processes: Processes, tmp_path: Path) -> None:
    processes.close()
    with pytest.raises(StartFailed, match="being taken down"):
        processes.start("sleeper", SLEEP, log=tmp_path / "log")
    assert processes.names() == []
    processes.reopen()
    processes.start("sleeper", SLEEP, log=tmp_path / "log")
    assert processes.alive("sleeper")


def test_stopping_what_was_never_started_does_nothing(processes: Processes) -> None:
    processes.stop("nobody")
    processes.kill("nobody")
    processes.signal("nobody", signal.SIGTERM)


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_wait_for_names_what_it_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"the moon: not within 0\.1 s"):
        wait_for("the moon", lambda: False, timeout=0.1)
    assert time.monotonic() - began < 5
