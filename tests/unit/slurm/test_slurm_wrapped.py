"""Slurm's programs behind a site's wrapper: one that hides failures in empty answers, and one that prints banners.

BR-020, variant: what is empty with an exit code of 0, and has an error beside it, is no answer.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from speedrun_operator.backends.slurm import ask_text, commands, facts, storage_text
from speedrun_operator.backends.slurm.answer import Poll, read_poll
from speedrun_operator.backends.slurm.commands import cancel_line, poll_line
from speedrun_operator.lifecycle.observation import Accepted, Busy, Unknown
from speedrun_operator.preparation.needs import Kind, Need
from unit.slurm.login_node import NAME, NONCE, PATH, PREFIX, SINCE, LoginNode

MUNGE = "error: Munge encode failed: Failed to access /run/munge/munge.socket.2\n"
DATABASE = "sacct: error: Problem talking to the database: Connection refused\n"
BANNER = "*** Welcome to the cluster ***\n\nMaintenance on 2026 12 24\n17 18 19\n"
NEED = Need(Kind.DATA, "0" * 16)
JOBS = "sp-c1c1c1c1-0000000000000000-"


def polled(node: LoginNode) -> Poll:
    answer = read_poll(node.poll(poll_line(NAME, PATH, 0, SINCE)), PREFIX, [NAME])
    assert answer is not None
    return answer


def a_ledger(node: LoginNode, path: str = PATH, **files: str) -> Path:
    folder = node.home / "runs" / path
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def an_old_claim(node: LoginNode) -> Path:
    folder = a_ledger(node)
    (folder / "claim-1").touch()
    os.utime(folder / "claim-1", (time.time() - 400,) * 2)
    return folder


def prepared(node: LoginNode) -> list[tuple[str, ...]]:
    node.says("df")
    command = commands.prepare(
        root="~/runs", nonce=NONCE, need=NEED, prefix=JOBS, after=-1, since=SINCE,
        arguments=["--parsable"], script="#!/bin/bash\n",
    )  # fmt: skip
    return [section.words for section in commands.sections(node.run(command).stdout, NONCE)]


# Silent ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("banner", ["", BANNER])
def test_an_empty_queue_with_an_error_beside_it_is_no_answer(node: LoginNode, banner: str) -> None:
    node.says("squeue", banner, MUNGE)
    node.says("sacct")
    a_ledger(node, owner="17\n", log="text\n")
    answer = polled(node)
    assert not answer.queue_known and "Munge encode failed" in answer.said
    assert node.asked("sacct") == [], "of which jobs squeue knows nothing, nobody knows"


@pytest.mark.parametrize("code", [0, 1])
def test_an_error_in_the_place_of_rows_is_no_answer(node: LoginNode, code: int) -> None:
    node.says("squeue", f"squeue: {MUNGE}", "", code)
    answer = polled(node)
    assert not answer.queue_known and "Munge encode failed" in answer.said
    outcome = node.submit()
    assert isinstance(outcome, Busy) and "Munge encode failed" in outcome.message


@pytest.mark.parametrize("said", ["", "bash: warning: setlocale: cannot change locale\n", "Have a nice day\n"])
def test_an_empty_queue_is_one(node: LoginNode, said: str) -> None:
    node.says("squeue", "", said)
    node.says("sacct", "", said)
    answer = polled(node)
    assert answer.queue_known and answer.accounting_known


def test_a_queue_without_so_much_as_its_heading_is_no_answer(node: LoginNode) -> None:
    """A wrapper that swallows both streams, and gives 0: a job that runs is not to be lost by it."""
    node.says("squeue", heading=False)
    node.says("sacct")
    a_ledger(node, owner="17\n", log="text\n")
    answer = polled(node)
    assert not answer.queue_known and "squeue printed nothing, not even its heading" in answer.said
    assert node.asked("sacct") == []


def test_accounting_without_so_much_as_its_heading_is_no_answer(node: LoginNode) -> None:
    node.says("sacct", heading=False)
    answer = polled(node)
    assert answer.queue_known and not answer.accounting_known and not answer.accounting_off


@pytest.mark.parametrize("said", ["", "Have a nice day\n"])
def test_rows_without_a_heading_count(node: LoginNode, said: str) -> None:
    node.says("squeue", f"17|RUNNING|1|1|1|node-a|{NAME}|None\n", said, heading=False)
    assert [each.job_id for each in polled(node).rows[NAME]] == ["17"]


def test_rows_count_whatever_stands_beside_them(node: LoginNode) -> None:
    node.says("squeue", f"17|RUNNING|1|1|1|node-a|{NAME}|None\n", "error: a plugin could not be loaded\n")
    answer = polled(node)
    assert answer.queue_known and [each.job_id for each in answer.rows[NAME]] == ["17"]


@pytest.mark.parametrize("said", [MUNGE, DATABASE])
def test_empty_accounting_with_an_error_beside_it_is_no_answer(node: LoginNode, said: str) -> None:
    node.says("sacct", "", said)
    answer = polled(node)
    assert answer.queue_known and not answer.accounting_known and not answer.accounting_off


def test_accounting_that_is_off_is_so_with_any_exit_code(node: LoginNode) -> None:
    node.says("sacct", "", "Slurm accounting storage is disabled\n")
    answer = polled(node)
    assert answer.accounting_known and answer.accounting_off


@pytest.mark.parametrize("banner", ["", BANNER])
def test_a_silent_queue_submits_nothing(node: LoginNode, banner: str) -> None:
    node.says("squeue", banner, MUNGE)
    node.says("sbatch", "19\n")
    outcome = node.submit()
    assert isinstance(outcome, Busy) and not outcome.reachable and "Munge encode failed" in outcome.message
    assert node.asked("sbatch") == []


def test_silent_accounting_lets_no_old_claim_be_followed(node: LoginNode) -> None:
    an_old_claim(node)
    node.says("sacct", "", DATABASE)
    node.says("sbatch", "19\n")
    outcome = node.submit()
    assert isinstance(outcome, Unknown) and "Problem talking to the database" in outcome.message
    assert node.asked("sbatch") == []


@pytest.mark.parametrize("banner", ["", BANNER])
def test_a_silent_queue_ends_no_attempt_of_a_preparation(node: LoginNode, banner: str) -> None:
    a_ledger(node, f".cache/jobs/{NEED.key}/try-0", jobid="17 1\n")
    node.says("squeue", banner, MUNGE)
    node.says("sbatch", "19\n")
    assert prepared(node) == [("item", "0", "unasked")]
    assert node.asked("sbatch") == []


def test_a_cancellation_that_a_silent_queue_answers_is_none(node: LoginNode) -> None:
    node.says("squeue", "", MUNGE)
    node.says("scancel")
    assert ("squeue", "0") not in [part.words for part in node.cancel(cancel_line(NAME, PATH))]


def test_other_questions_take_no_silence_for_an_answer(node: LoginNode) -> None:
    """What resync ends, which entries and ledgers are in use, and which partitions there are."""
    head = f"{ask_text.CLEAN}\nroot=~/runs\nnonce={NONCE}\n"
    node.says("squeue", "", MUNGE)
    node.says("sinfo", "", MUNGE)
    node.says("df")
    uses = a_ledger(node, "CACHE/uses", **{"17": "data key\n"}) / "17"
    for command, answer in (
        (commands.jobs(prefix=PREFIX, nonce=NONCE), ("squeue", "0")),
        (f"{head}{storage_text.ROOM}\n{storage_text.LIST}\n", ("squeue", "0")),
        (head + storage_text.LEDGERS, ("ledgers", "0")),
        (facts.command(root="~/runs", nonce=NONCE), ("sinfo", "0")),
    ):
        found = [each.words for each in commands.sections(node.run(command).stdout, NONCE)]
        assert found and answer not in found
    assert uses.exists()


# Chatty ------------------------------------------------------------------------------------------------------------


def test_a_banner_is_no_job_of_an_old_claim(node: LoginNode) -> None:
    folder = an_old_claim(node)
    node.says("squeue", BANNER)
    node.says("sacct", BANNER)
    node.says("sbatch", "19\n")
    outcome = node.submit()
    assert isinstance(outcome, Accepted) and outcome.job_id == "19"
    assert (folder / "jobid").read_text().startswith("19 ")


@pytest.mark.parametrize("foreign", ["", f"{NAME}1 16 1782900000 PENDING None\n", f"{NAME} 16_1 1 PENDING None\n"])
def test_a_job_is_found_behind_a_banner(node: LoginNode, foreign: str) -> None:
    for make in (node.ledger.mkdir, lambda **_: an_old_claim(node)):
        make(parents=True)
        node.says("squeue", f"{BANNER}{foreign}{NAME} 18 1782900000 PENDING Priority\n")
        node.says("sbatch", "19\n")
        outcome = node.submit()
        assert isinstance(outcome, Accepted) and outcome.job_id == "18"
        assert node.asked("sbatch") == []
        for each in node.ledger.iterdir():
            each.unlink()
        node.ledger.rmdir()


def test_an_old_claims_job_is_found_in_accounting_behind_a_banner(node: LoginNode) -> None:
    an_old_claim(node)
    node.says("sacct", f"{BANNER}12|34\n12|34|another-name\n18|1782900000|{NAME}\n")
    node.says("sbatch", "19\n")
    outcome = node.submit()
    assert isinstance(outcome, Accepted) and outcome.job_id == "18"


@pytest.mark.parametrize("broken", ["Welcome to\n", "17x 1\n", "-1 1\n", f"{'9' * 30} 1\n", "17_2 1\n"])
def test_a_broken_job_id_in_the_ledger_is_none(node: LoginNode, broken: str) -> None:
    """The job is looked for as if none had been recorded, and recorded anew."""
    folder = a_ledger(node, jobid=broken)
    node.says("squeue", f"{NAME} 18 1782900000 PENDING Priority\n")
    outcome = node.submit()
    assert isinstance(outcome, Accepted) and outcome.job_id == "18"
    assert (folder / "jobid").read_text() == "18 1782900000\n"


def test_a_broken_owner_in_the_ledger_is_said(node: LoginNode) -> None:
    """No job could take the allocation any more."""
    a_ledger(node, owner="Welcome to\n")
    node.says("sbatch", "19\n")
    outcome = node.submit()
    assert isinstance(outcome, Unknown) and "owner" in outcome.message and "Welcome" in outcome.message
    assert node.asked("sbatch") == []


def test_a_poll_reads_rows_behind_a_banner(node: LoginNode) -> None:
    row = f"17|RUNNING|1|1|1|node-a|{NAME}|None\n"
    node.says("squeue", f"{BANNER}Welcome|a|b|c|d|e|{NAME}|f\n{row}")
    answer = polled(node)
    assert [each.job_id for each in answer.rows[NAME]] == ["17"]
    node.says("squeue", f"{BANNER}Welcome|a|b|c|d|e|{NAME}|f\n")
    node.says("sacct", f"{BANNER}17|COMPLETED|1|1|1|node-a|{NAME}\n")
    assert [each.word for each in polled(node).accounted[NAME]] == ["COMPLETED"]


def test_a_cancellation_cancels_no_banner(node: LoginNode) -> None:
    node.says("squeue", f"{BANNER}Welcome|a|b|c|d|e|{NAME}|f\n17|RUNNING|1|1|1|node-a|{NAME}|None\n")
    node.says("scancel")
    node.cancel(cancel_line(NAME, PATH))
    assert node.asked("scancel") == ["17"]


@pytest.mark.parametrize(("rows", "attempt", "job"), [("", "1", "19"), (f"{JOBS}0 17\n", "0", "17")])
def test_a_banner_is_no_job_that_prepares(node: LoginNode, rows: str, attempt: str, job: str) -> None:
    a_ledger(node, f".cache/jobs/{NEED.key}/try-0", jobid="17 1\n")
    node.says("squeue", BANNER + rows)
    node.says("sbatch", "19\n")
    said = prepared(node)
    assert said[0] == ("attempt", attempt)
    assert said[1][:4] == ("item", "0", "accepted", job)
