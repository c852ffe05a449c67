"""The model of the remote commands is true to their text: both do the same to the same ledger, and answer the same."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from speedrun_operator.backends.slurm import commands
from speedrun_operator.backends.slurm.commands import Section, Submission, sections
from unit.model import virtual
from unit.model.disk import Disk, Ledger
from unit.model.job import Fate, Job
from unit.model.output import SLURM_DOWN, Output
from unit.model.shell import Shell, sacct_line, squeue_line
from unit.model.slurm import ACCOUNTING_OFF, CONTROLLER_DOWN, MUNGE, TIMED_OUT, Slurm
from unit.slurm.login_node import NAME, NONCE, PATH, SINCE, LoginNode

REFUSED = "sbatch: error: Batch job submission failed: Invalid partition name specified"
DOWN = "sacct: error: Problem talking to the database: Connection refused"
SCRIPT = b"#!/bin/bash\nruns=(0)\n"
FAILURES = {"down": (SLURM_DOWN, 1), "silent": (MUNGE, 0)}
ARGUMENTS = ("--parsable", f"--job-name={NAME}", "--comment=speedrun lab/mine", "--time=10")
LOG = b"one\ntwo\nthree\n"


@dataclass(frozen=True)
class Before:
    """A ledger, and what Slurm's programs say. `claims`: number → age in seconds. `jobs`: their states, by number."""

    files: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[int, float] = field(default_factory=dict)
    jobs: Mapping[int, str] = field(default_factory=dict)
    accounted: Mapping[int, str] = field(default_factory=dict)
    squeue: str = ""
    accounting: str = "on"
    sbatch: str = ""


def a_job(number: int, word: str) -> Job:
    job = Job(number, NAME, "speedrun lab/mine", PATH, (0,), 10, False, Fate(), word=word, submitted=1782900000)
    if word not in ("PENDING", "CANCELLED"):
        job.started, job.node = 1782900001, "node-a"
    if word not in ("PENDING", "RUNNING"):
        job.ended = 0.0
    return job


class Asked(LoginNode):
    """A login node that remembers the last command, its input and its answer."""

    def run(self, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        done = super().run(command, stdin)
        self.last = command, stdin, sections(done.stdout, NONCE)
        return done


def prepare(node: Asked, before: Before, kind: str) -> None:
    """The state on a real disk, and programs that say it."""
    if before.files or before.claims:
        node.ledger.mkdir(parents=True)
    for name, text in before.files.items():
        (node.ledger / name).write_text(text)
    for number, age in before.claims.items():
        folder = node.ledger / f"claim-{number}"
        folder.mkdir()
        os.utime(folder, (time.time() - age,) * 2)
    lines = {
        "submit": lambda job: f"{job.name} {job.id} {job.submitted} {job.word} {job.reason}\n",
        "jobs": lambda job: f"{job.id}|{job.name}|{job.comment}\n",
    }
    rows = "".join(lines.get(kind, squeue_line)(a_job(*each)) for each in before.jobs.items())
    node.says("squeue", "" if before.squeue else rows, *FAILURES.get(before.squeue, ()))
    ended = [a_job(*each) for each in before.accounted.items()]
    short = "".join(f"{job.id}|{job.submitted}|{job.name}\n" for job in ended)
    accounted = short if kind == "submit" else "".join(sacct_line(job, job.word) for job in ended)
    if before.squeue == "silent":
        node.says("sacct", "", MUNGE)
    else:
        failure = {"off": ACCOUNTING_OFF, "down": DOWN}.get(before.accounting, "")
        node.says("sacct", "" if failure else accounted, failure, int(bool(failure)))
    node.says("sbatch", "" if before.sbatch else "19\n", before.sbatch, int(bool(before.sbatch)))
    node.says("scancel")


async def modelled(before: Before, command: str, stdin: bytes) -> tuple[list[Section], Ledger, Slurm]:
    """The same in the model."""
    disk = Disk()
    slurm = Slurm(disk, min_age=10**6, lag=0, accounting=before.accounting, next_id=19)
    slurm.jobs = {number: a_job(number, word) for number, word in before.jobs.items()}
    slurm.ever = [a_job(*each) for each in before.accounted.items()]
    slurm.ill = {"": [], CONTROLLER_DOWN: ["busy"], TIMED_OUT: ["timed out"], REFUSED: ["refuses"]}[before.sbatch]
    slurm.silent = before.squeue == "silent"
    if before.squeue == "down":
        slurm.stop()
    text = {name: content.strip() for name, content in before.files.items()}
    disk.ledgers[PATH] = Ledger(
        exists=bool(before.files or before.claims),
        claims={number: -age for number, age in before.claims.items()},
        jobid=text.get("jobid", ""),
        owner=text.get("owner", ""),
        exit=text.get("exit", ""),
        log=before.files["log"].encode() if "log" in before.files else None,
    )
    output = Output(NONCE)

    async def pause() -> None:
        return None

    await Shell(disk, slurm).run(command, stdin, pause, output)
    for job in slurm.ever:
        if job.life is not None:
            job.life.cancel()
    return sections(output.stdout, NONCE), disk[PATH], slurm


def plain(answer: list[Section]) -> list[tuple[tuple[str, ...], str]]:
    """An answer without the seconds in which it was given."""
    times = {"now": 1, "accepted": 2, "claimed": 1}
    plain = []
    for each in answer:
        kept = 2 + times.get(each.words[2], 9) if each.words[0] == "item" else times.get(each.words[0], 9)
        plain.append((each.words[:kept], each.body.decode().strip().replace("|None|", "||")))
    return plain


def agree(node: Asked, before: Before) -> tuple[Ledger, Slurm]:
    command, stdin, heard = node.last
    said, ledger, slurm = virtual.run(lambda: modelled(before, command, stdin))
    assert plain(said) == plain(heard)
    assert dict.fromkeys(ledger.claims, True) == {
        int(each.name.removeprefix("claim-")): True for each in node.ledger.glob("claim-*")
    }
    for name, kept in (("owner", ledger.owner), ("jobid", ledger.jobid)):
        path = node.ledger / name
        found = path.read_text().split() if path.exists() else [""]
        assert found[:1] == (kept.split() or [""])[:1], name
    assert ledger.exists == node.ledger.exists()
    return ledger, slurm


SUBMISSIONS = {
    "new": Before(),
    "known by its number": Before(files={"jobid": "18 1782900000\n"}, claims={1: 900}),
    "taken by a job": Before(files={"owner": "18\n"}, claims={1: 900}),
    "cancelled": Before(files={"owner": "cancelled\n"}),
    "cancelled, and known": Before(files={"owner": "cancelled\n", "jobid": "18 1782900000\n"}),
    "in the queue": Before(jobs={18: "PENDING"}, claims={1: 5}),
    "ended, and in the queue": Before(jobs={18: "FAILED"}, claims={1: 5}),
    "squeue fails": Before(squeue="down"),
    "squeue is silent": Before(squeue="silent"),
    "squeue is silent, and it was claimed long ago": Before(squeue="silent", claims={1: 400}),
    "squeue is silent, and a job took it": Before(squeue="silent", files={"owner": "18\n"}),
    "claimed just now": Before(claims={1: 5}),
    "claimed 298 seconds ago": Before(claims={1: 297}),
    "claimed long ago": Before(claims={1: 301}),
    "claimed twice": Before(claims={1: 900, 2: 100}),
    "claimed twice, long ago": Before(claims={1: 900, 2: 400}),
    "claimed long ago, and accounting knows": Before(claims={1: 400}, accounted={18: "COMPLETED"}),
    "claimed long ago, and accounting is down": Before(claims={1: 400}, accounting="down"),
    "claimed long ago, and accounting is off": Before(claims={1: 400}, accounting="off"),
    "sbatch refuses": Before(sbatch=REFUSED),
    "sbatch refuses, after an earlier claim": Before(sbatch=REFUSED, claims={1: 400}),
    "sbatch finds nobody": Before(sbatch=CONTROLLER_DOWN),
    "sbatch does not know": Before(sbatch=TIMED_OUT),
}


@pytest.mark.parametrize("case", SUBMISSIONS)
def test_submitting(tmp_path: Path, case: str) -> None:
    node = Asked(tmp_path)
    prepare(node, SUBMISSIONS[case], "submit")
    node.submit(SCRIPT, ARGUMENTS)
    ledger, slurm = agree(node, SUBMISSIONS[case])
    assert len(node.asked("sbatch")) == (1 if SUBMISSIONS[case].sbatch else slurm.next_id - 19)
    assert (ledger.script is not None) == (node.ledger / "script.sh").exists()


def test_a_submission_that_was_cut_while_it_was_sent(tmp_path: Path) -> None:
    node = Asked(tmp_path)
    prepare(node, Before(), "submit")
    items = [Submission(NAME, PATH, SINCE, ARGUMENTS, SCRIPT.decode(), b"x" * 100)]
    command, stdin = commands.submit(root="~/runs", nonce=NONCE, items=items)
    node.run(command, stdin[:9])
    agree(node, Before())
    assert node.asked("sbatch") == []


EXIT = "job=18 exit=0 time=1782900100\n"
POLLS = {
    "nobody knows it": Before(),
    "it waits": Before(jobs={18: "PENDING"}, files={"jobid": "18 1\n"}),
    "it works": Before(jobs={18: "RUNNING"}, files={"owner": "18\n", "log": LOG.decode()}),
    "it ended": Before(jobs={18: "FAILED"}, files={"owner": "18\n", "exit": EXIT, "log": LOG.decode()}),
    "accounting knows": Before(files={"owner": "18\n", "exit": EXIT}, accounted={18: "TIMEOUT"}),
    "another job waits": Before(jobs={20: "PENDING"}, files={"owner": "18\n"}, accounted={18: "FAILED"}),
    "another job waits behind a fence": Before(jobs={20: "PENDING"}, files={"owner": "cancelled\n"}),
    "accounting is off": Before(files={"owner": "18\n", "exit": EXIT}, accounting="off"),
    "accounting is down": Before(files={"owner": "18\n"}, accounting="down"),
    "squeue fails": Before(squeue="down", files={"owner": "18\n", "log": LOG.decode()}),
    "squeue is silent": Before(squeue="silent", files={"owner": "18\n", "log": LOG.decode()}),
}


@pytest.mark.parametrize(
    ("case", "offset"), [*((case, 0) for case in POLLS), *(("it works", each) for each in (4, len(LOG), len(LOG) + 1))]
)
def test_polling(tmp_path: Path, case: str, offset: int) -> None:
    node = Asked(tmp_path)
    prepare(node, POLLS[case], "poll")
    node.poll(commands.poll_line(NAME, PATH, offset, SINCE), log_bytes=6)
    agree(node, POLLS[case])


@pytest.mark.parametrize("case", POLLS)
def test_cancelling(tmp_path: Path, case: str) -> None:
    node = Asked(tmp_path)
    prepare(node, POLLS[case], "cancel")
    node.cancel(commands.cancel_line(NAME, PATH))
    command, stdin, heard = node.last
    said, ledger, slurm = virtual.run(lambda: modelled(POLLS[case], command, stdin))
    assert [each.words for each in said] == [each.words for each in heard]
    assert ledger.owner == (node.ledger / "owner").read_text().strip()
    live = [number for number, word in POLLS[case].jobs.items() if word in ("PENDING", "RUNNING")]
    assert [number for number, _ in slurm.cancelled] == live
    asked = "".join(node.asked("scancel")).split()
    assert {str(each) for each in live} <= set(asked) <= {str(each) for each in POLLS[case].jobs}


@pytest.mark.parametrize(
    "before", [Before(jobs={18: "PENDING", 19: "RUNNING"}), Before(), *(Before(squeue=how) for how in FAILURES)]
)
def test_jobs_with_our_mark(tmp_path: Path, before: Before) -> None:
    node = Asked(tmp_path)
    prepare(node, before, "jobs")
    node.run(commands.jobs(prefix=NAME[:12], nonce=NONCE))
    command, stdin, heard = node.last
    said, _, _ = virtual.run(lambda: modelled(before, command, stdin))
    assert plain(said) == plain(heard)


def test_ending_jobs_with_our_mark(tmp_path: Path) -> None:
    before = Before(jobs={18: "PENDING", 19: "RUNNING"})
    node = Asked(tmp_path)
    prepare(node, before, "jobs")
    node.run(commands.cancel_jobs([("18", NAME), ("19", "another")], root="~/runs", ledgers=(), nonce=NONCE))
    command, stdin, _ = node.last
    _, _, slurm = virtual.run(lambda: modelled(before, command, stdin))
    assert node.asked("scancel") == [f"--name={NAME} 18", "--name=another 19"]
    assert slurm.cancelled == [(18, NAME)], "of another name, it is another job"
