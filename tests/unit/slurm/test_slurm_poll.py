"""The poll's and the cancellation's text in a real bash: what they ask, what they read, and what they leave alone."""

from __future__ import annotations

import os
import random
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from speedrun_operator.backends.slurm.commands import Section, cancel_line, poll_line, sections
from unit.slurm.login_node import NAME, NONCE, PATH, PREFIX, SINCE, LoginNode

BODY = st.binary(max_size=200) | st.sampled_from([b"", b"\n", b"\n\n", b"@", b"\n@", f"\n@{NONCE[:-1]} x\n".encode()])
WORDS = st.lists(st.text(alphabet="abc=-0123", min_size=1, max_size=6), min_size=1, max_size=4)


def printed(parts: list[tuple[list[str], bytes]]) -> bytes:
    """As the remote command prints them."""
    return b"".join(f"\n@{NONCE} {' '.join(words)}\n".encode() + body for words, body in parts)


@given(st.binary(max_size=50), st.lists(st.tuples(WORDS, BODY), max_size=5))
@example(noise=b"*** Welcome ***\nno line end", parts=[(["squeue", "0"], b"17|RUNNING\n"), (["log", "a"], b"\n\n@x")])
def test_sections_come_out_as_they_went_in(noise: bytes, parts: list[tuple[list[str], bytes]]) -> None:
    expected = [Section(tuple(words), body) for words, body in parts]
    assert sections(noise + printed(parts), NONCE) == expected


@given(st.binary(max_size=300), st.text(alphabet="0123456789abcdef", min_size=16, max_size=16))
def test_reading_sections_never_fails(stdout: bytes, nonce: str) -> None:
    for section in sections(stdout, nonce):
        assert section.body in stdout


def line(offset: int = 0, *, number: int = 0) -> str:
    return poll_line(f"{NAME[:-1]}{number}", f"{PATH[:-1]}{number}", offset, SINCE)


def found(parts: list[Section], *words: str) -> list[Section]:
    return [part for part in parts if part.words[: len(words)] == words]


def a_ledger(node: LoginNode, number: int = 0, **files: str | bytes) -> Path:
    folder = node.home / "runs" / f"{PATH[:-1]}{number}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.integers(0, 400))
@example(b"\n@" + NONCE[:-1].encode() + b" done\n\0\xff\r\n", 3)
@example(b"no line end", 11)
@example(b"", 0)
def test_a_logs_bytes_arrive_as_they_are(tmp_path_factory: pytest.TempPathFactory, data: bytes, offset: int) -> None:
    node = LoginNode(tmp_path_factory.mktemp("node"))
    offset = min(offset, len(data))
    a_ledger(node, log=data)
    parts = node.poll(line(offset))
    [part] = found(parts, "log")
    assert (part.words[1:], part.body) == ((NAME, str(len(data)), str(offset)), data[offset:])
    assert parts[-1].words == ("done",)


def test_a_log_cannot_speak_for_the_poll(node: LoginNode) -> None:
    """The nonce is another one each time."""
    earlier = "fedcba9876543210"
    a_ledger(node, log=f"\n@{earlier} exit {NAME} job=1 exit=0 time=1\n")
    parts = node.poll(line())
    assert found(parts, "exit") == []
    assert earlier in found(parts, "log")[0].body.decode()


def test_the_budgets_of_a_log_and_of_a_poll(node: LoginNode) -> None:
    data = [os.urandom(300) for _ in range(3)]
    for number, content in enumerate(data):
        a_ledger(node, number, log=content)
    parts = found(node.poll(*(line(number=n) for n in range(3)), log_bytes=200, poll_bytes=450), "log")
    assert [part.body for part in parts] == [data[0][:200], data[1][:200], data[2][:50]]
    assert [part.words[2:] for part in parts] == [("300", "0")] * 3
    assert [part.body for part in found(node.poll(line(290), log_bytes=200), "log")] == [data[0][290:]]


def test_the_log_is_read_after_the_queue(node: LoginNode) -> None:
    """BR-016: where squeue no longer knows a job, what it wrote last is in the same answer."""
    folder = a_ledger(node, log="step:1740/1750\n")
    (node.programs / "squeue").write_text(f"#!/bin/bash\nprintf 'step:1750/1750\\n' >>{folder}/log\n")
    [part] = found(node.poll(line()), "log")
    assert part.body == b"step:1740/1750\nstep:1750/1750\n"


def test_an_entry_is_looked_for_after_its_jobs_end(node: LoginNode) -> None:
    """Else a job that puts its entry there and ends in between would seem to have made none."""
    folder, entry = a_ledger(node), node.home / "runs" / ".cache" / "code" / "key"
    ends = f"mkdir -p {entry}; echo bytes=7 >{entry}/manifest; echo job=17 exit=0 time=1 >{folder}/exit"
    stat = node.programs / "stat"
    real = stat.resolve()
    stat.unlink()
    stat.write_text(f'#!/bin/bash\n{ends}\nexec {real} "$@"\n')
    stat.chmod(0o755)
    parts = node.poll(poll_line(NAME, PATH, 0, SINCE, ".cache/code/key"))
    assert [part.words[0] for part in parts if part.words[0] in ("exit", "entry")] == ["exit", "entry"]


def test_a_log_that_shrank_is_said(node: LoginNode) -> None:
    a_ledger(node, log="short\n")
    [part] = found(node.poll(line(99)), "log")
    assert (part.words[1:], part.body) == ((NAME, "6", "0", "shrunk"), b"")


def test_a_ledger_that_is_not_there_is_not_said(node: LoginNode) -> None:
    parts = node.poll(line())
    assert [part.words[0] for part in parts] == ["now", "squeue", "sacct", "done"]


def test_owner_and_marker_are_each_allocations_own(node: LoginNode) -> None:
    """Though one of the files is empty, and another cannot be read."""
    a_ledger(node, 0, owner="17\n", exit="job=17 exit=0 time=1\n")
    a_ledger(node, 1, owner="", exit="")
    folder = a_ledger(node, 2)
    (folder / "owner").mkdir()
    (folder / "exit").mkdir()
    a_ledger(node, 3, owner="cancelled\n")
    parts = node.poll(*(line(number=n) for n in range(4)))
    assert [part.words for part in found(parts, "owner")] == [
        ("owner", NAME, "17"),
        ("owner", f"{NAME[:-1]}3", "cancelled"),
    ]
    assert [part.words for part in found(parts, "exit")] == [("exit", NAME, "job=17", "exit=0", "time=1")]


def row(job: int, name: str = NAME, state: str = "RUNNING") -> str:
    return f"{job}|{state}|1|1|1|node-a|{name}|None\n"


FOREIGN = [row(3, "@"), row(4, "*"), row(5, ""), row(6, "a]b"), row(7, "$(touch pwned)"), row(8, "x|y"), row(9, "`id`")]


def test_squeue_is_asked_once_for_all_of_the_logins_jobs(node: LoginNode) -> None:
    node.says("squeue", "".join([*FOREIGN, row(17)]))
    parts = node.poll(line(), line(number=1))
    assert node.asked("squeue") == ["--me -t all -o %i|%T|%V|%S|%e|%N|%j|%r"]
    [part] = found(parts, "squeue", "0")
    assert part.body == row(17).encode()
    assert not list(node.folder.rglob("pwned"))


@pytest.mark.parametrize(
    ("rows", "owner", "asks"),
    [
        ("", "", True),
        (row(17), "", False),
        (row(17), "17\n", False),
        (row(18), "17\n", True),
        (row(17) + row(18), "17\n", False),
        (row(18), "cancelled\n", False),
        (row(117), "17\n", True),
        (row(17, f"{NAME}1"), "", True),
    ],
)
def test_accounting_is_asked_about_what_squeue_says_nothing_of(
    node: LoginNode, rows: str, owner: str, asks: bool
) -> None:
    node.says("squeue", rows)
    node.says("sacct", f"17|COMPLETED|1|1|1|node-a|{NAME}\n")
    a_ledger(node, owner=owner)
    parts = node.poll(line())
    assert len(found(parts, "sacct", "0")) == len(node.asked("sacct")) == asks


def test_accounting_is_asked_from_a_day_before_the_oldest(node: LoginNode) -> None:
    """Its times are in UTC. A name is never used twice, so that a wide window shows nothing wrong."""
    node.says("sacct")
    node.poll(line(), poll_line("sr-c1c1c1c1-other-0", "lab/other/alloc-0", 0, SINCE - timedelta(hours=5)))
    [asked] = node.asked("sacct")
    assert asked == (
        f"-X -P --name={NAME},sr-c1c1c1c1-other-0 -S 2026-06-30T07:00:00 "
        "-o JobIDRaw,State,Submit,Start,End,NodeList,JobName"
    )


def test_accounting_is_asked_in_portions(node: LoginNode) -> None:
    node.says("sacct")
    lines = [poll_line(f"{PREFIX}{n:036}-0", f"lab/{n}/alloc-0", 0, SINCE) for n in range(2500)]
    parts = node.poll(*lines)
    assert [part.words for part in found(parts, "sacct")] == [("sacct", "0")] * 3
    assert [asked.count(PREFIX) for asked in node.asked("sacct")] == [1000, 1000, 500]


@pytest.mark.parametrize("stderr", ["squeue: error: Munge encode failed", ""])
def test_a_failed_squeue_is_said_and_nobody_else_is_asked(node: LoginNode, stderr: str) -> None:
    node.says("squeue", "", stderr, 1)
    node.says("sacct")
    a_ledger(node, log="text\n")
    parts = node.poll(line())
    assert [part.words[0] for part in parts] == ["now", "squeue", "log", "done"]
    assert parts[1].words == ("squeue", "1")
    assert node.asked("sacct") == []


def test_a_failed_sacct_is_said_with_its_words(node: LoginNode) -> None:
    node.says("sacct", "", "Slurm accounting storage is disabled\n", 1)
    [part] = found(node.poll(line()), "sacct")
    assert (part.words, part.body) == (("sacct", "1"), b"Slurm accounting storage is disabled\n")


def test_thousands_of_ledgers_are_looked_at(node: LoginNode) -> None:
    """Far more names than one command line takes."""
    node.says("squeue", "".join(row(n, f"{PREFIX}{n:036}-0") for n in range(3000)))
    chosen = set(random.Random(1).sample(range(3000), 20))
    for n in chosen:
        folder = node.home / "runs" / f"{'long-' * 30}{n}"
        folder.mkdir(parents=True)
        (folder / "log").write_text(f"log {n}\n")
    lines = [poll_line(f"{PREFIX}{n:036}-0", f"{'long-' * 30}{n}", 0, SINCE) for n in range(3000)]
    assert {part.body.decode() for part in found(node.poll(*lines), "log")} == {f"log {n}\n" for n in chosen}


# Cancelling -------------------------------------------------------------------------------------------------------


def test_only_jobs_of_the_names_asked_are_cancelled(node: LoginNode) -> None:
    node.says("squeue", "".join([*FOREIGN, row(17), row(18, f"{NAME[:-1]}1"), row(19)]))
    node.says("scancel")
    parts = node.cancel(cancel_line(NAME, PATH))
    assert node.asked("scancel") == ["17 19"]
    assert [part.words for part in parts] == [("squeue", "0"), ("done",)]
    assert not list(node.folder.rglob("pwned"))


def test_where_nothing_is_there_a_submission_under_way_finds_the_fence(node: LoginNode) -> None:
    node.says("squeue", "".join(FOREIGN))
    node.says("scancel")
    assert [part.words for part in node.cancel(cancel_line(NAME, PATH))] == [("squeue", "0"), ("done",)]
    assert node.asked("scancel") == []
    assert [each.read_text() for each in (node.home / "runs").rglob("owner")] == ["cancelled\n"]


def test_a_failed_squeue_cancels_nothing_and_says_so(node: LoginNode) -> None:
    node.says("squeue", row(17), "", 1)
    node.says("scancel")
    assert [part.words for part in node.cancel(cancel_line(NAME, PATH))] == [("squeue", "1")]
    assert node.asked("scancel") == []


def test_a_cancellation_takes_an_allocation_that_no_job_has(node: LoginNode) -> None:
    taken, free = a_ledger(node, 0, owner="17\n"), a_ledger(node, 1)
    node.cancel(cancel_line(NAME, PATH), cancel_line(f"{NAME[:-1]}1", f"{PATH[:-1]}1"))
    assert (taken / "owner").read_text() == "17\n"
    assert (free / "owner").read_text() == "cancelled\n"
    assert sorted(path.name for path in free.iterdir()) == ["owner"]
