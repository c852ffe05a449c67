"""What squeue and sacct print, read into rows: every word, every decoration, every trap."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.backends.slurm.queue import Row, epoch, number, parse_sacct, parse_squeue, state_word
from speedrun_operator.lifecycle.observation import JobState

PREFIX = "sr-c1c1c1c1-"
NAME = f"{PREFIX}uid-0"
TEN, ELEVEN, NOON = (datetime(2026, 7, 1, hour, tzinfo=UTC) for hour in (10, 11, 12))
T10, T11, T12 = (str(int(each.timestamp())) for each in (TEN, ELEVEN, NOON))


def squeue(line: str) -> Row:
    [row] = parse_squeue(line, PREFIX)
    return row


def sacct(line: str) -> Row:
    [row] = parse_sacct(line, [NAME])
    return row


WORDS = {
    JobState.QUEUED: "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED RESV_DEL_HOLD REQUEUE_HOLD SPECIAL_EXIT "
    "PD CF RQ RF RD RH SE",
    JobState.RUNNING: "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED UPDATE_DB REVOKED "
    "EXPEDITING R CG RS RV SI SO ST S",
    JobState.ENDED: "COMPLETED FAILED CANCELLED TIMEOUT DEADLINE OUT_OF_MEMORY NODE_FAIL BOOT_FAIL PREEMPTED "
    "LAUNCH_FAILED RECONFIG_FAIL CD F CA TO DL OOM NF BF PR",
}


@pytest.mark.parametrize(("state", "word"), [(state, word) for state, words in WORDS.items() for word in words.split()])
def test_every_state_word_long_or_short(state: JobState, word: str) -> None:
    assert squeue(f"17|{word}|{T10}|{T11}|N/A|node-a|{NAME}|None").state is state


def test_what_completes_may_show_its_next_start() -> None:
    """A job that is requeued has COMPLETING first, and beside it when it may start again."""
    assert squeue(f"17|RUNNING|{T10}|{T11}|N/A|node-a|{NAME}|None").started is not None
    assert squeue(f"17|COMPLETING|{T10}|{T11}|N/A|node-a|{NAME}|None").started is None


@pytest.mark.parametrize("word", ["EXPEDITING", "", "?", "RUNNINGISH"])
def test_a_word_that_nobody_knows_is_no_end_and_starts_nothing_without_a_node(word: str) -> None:
    assert squeue(f"17|{word}|{T10}|N/A|N/A||{NAME}|None").state is JobState.QUEUED


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("CANCELLED by 1001", "CANCELLED"),
        ("CANCELLED by 1060117793", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("COMPLETED*", "COMPLETED"),
        ("  R ", "RUNNING"),
        ("running", "RUNNING"),
        ("", ""),
    ],
)
def test_decorations_of_a_state(text: str, word: str) -> None:
    assert state_word(text) == word


REASONS = [
    ("None", None),
    ("", None),
    ("Priority", "Priority"),
    ("(Resources)", "Resources"),
    ("launch failed requeued held", "launch failed requeued held"),
    ("(ReqNodeNotAvail, UnavailableNodes:a-[012-014],b-001)", "ReqNodeNotAvail, UnavailableNodes:a-[012-014],b-001"),
    ("a|reason|of|somebody", "a|reason|of|somebody"),
    (
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "ReqNodeNotAvail",
    ),
]


@pytest.mark.parametrize(("text", "reason"), REASONS)
def test_why_a_job_waits_is_free_text(text: str, reason: str | None) -> None:
    row = squeue(f"17|PENDING|{T10}|{T12}|N/A||{NAME}|{text}")
    assert row.why == (reason, None)
    assert row.started is None  # a forecast


def test_a_running_job_waits_for_nothing() -> None:
    row = squeue(f"17|RUNNING|{T10}|{T11}|{T12}|node-a|{NAME}|None")
    assert (row.submitted, row.started, row.ended, row.node) == (TEN, ELEVEN, None, "node-a")
    assert row.why == (None, None)


def test_an_ended_job_in_squeue_has_its_times() -> None:
    row = squeue(f"17|TIMEOUT|{T10}|{T11}|{T12}|node-a|{NAME}|TimeLimit")
    assert (row.started, row.ended) == (ELEVEN, NOON)
    assert row.why == ("TimeLimit", "the job reached its time limit")


def test_a_job_cancelled_as_it_waited_never_started() -> None:
    """squeue gives the time of the cancellation as its start, and keeps the reason for which it waited."""
    row = squeue(f"17|CANCELLED|{T10}|{T12}|{T12}||{NAME}|JobHeldUser")
    assert (row.started, row.ended, row.node) == (None, NOON, None)
    assert row.why == ("Cancelled", "the job was cancelled")


def test_a_row_that_a_refused_submission_left_is_called_so() -> None:
    row = squeue(f"17|FAILED|{T10}|{T10}|{T10}||{NAME}|BadConstraints")
    assert row.why == ("SubmissionRejected", "Slurm has no node that fits what the job asks for")


@pytest.mark.parametrize(
    "line",
    [
        "*** Welcome to cluster-a ***",
        "scratch quota 81% used, job 99999 purged",
        "",
        f"17_[1-50]|PENDING|{T10}|N/A|N/A||{NAME}|None",  # an array
        f"17_3|RUNNING|{T10}|{T10}|N/A|a|{NAME}|None",
        f"17+0|RUNNING|{T10}|{T10}|N/A|a|{NAME}|None",
        f"17|RUNNING|{T10}|{T10}|N/A|a|crazy|name|None",  # somebody's job name
        f"17|RUNNING|{T10}|{T10}|N/A|a|not-{NAME}|None",
        f"17|RUNNING|{T10}|{T10}|N/A|a||None",
        f"17|RUNNING|{NAME}",
        f"|RUNNING|{T10}|{T10}|N/A|a|{NAME}|None",
        f"{'9' * 5000}|RUNNING|{T10}|{T10}|N/A|a|{NAME}|None",
        f"٣|RUNNING|{T10}|{T10}|N/A|a|{NAME}|None",
    ],
)
def test_what_is_no_row_of_ours_is_left_out(line: str) -> None:
    ours = f"18|PENDING|{T10}|N/A|N/A||{NAME}|Priority"
    for text in (f"{line}\n{ours}\n", f"{ours}\n{line}"):
        assert [row.job_id for row in parse_squeue(text, PREFIX)] == ["18"]


@pytest.mark.parametrize("nothing", ["N/A", "Unknown", "None", "0", "", "NOT_SET", "-1", "2026-07-01T10:00:00"])
def test_times_that_are_none(nothing: str) -> None:
    row = sacct(f"17|COMPLETED|{nothing}|{nothing}|{nothing}|node-a|{NAME}")
    assert (row.submitted, row.started, row.ended) == (None, None, None)


@pytest.mark.parametrize("digits", [1, 10, 11, 12, 13, 400])
def test_no_number_is_too_great(digits: int) -> None:
    assert epoch("9" * digits) is None or epoch("9" * digits).year < 9999  # type: ignore[union-attr]
    assert (number("9" * digits) is None) == (digits > 18)


ACCOUNTED = [
    ("COMPLETED", ("Completed", None)),
    ("CANCELLED by 1001", ("Cancelled", "the job was cancelled by user id 1001")),
    ("CANCELLED by 1060117793", ("Cancelled", "the job was cancelled by user id 1060117793")),
    ("CANCELLED+", ("Cancelled", "the job was cancelled")),
    ("TIMEOUT", ("TimeLimit", "the job reached its time limit")),
    ("DEADLINE", ("TimeLimit", "the job reached its time limit")),
    ("FAILED", ("JobFailed", "the job's script failed")),
    ("OUT_OF_MEMORY", ("OutOfMemory", "the job used more memory than it was given")),
    ("NODE_FAIL", ("NodeFailure", "the node failed")),
    ("BOOT_FAIL", ("NodeFailure", "the node failed")),
    ("PREEMPTED", ("Preempted", "the job was preempted")),
    ("LAUNCH_FAILED", ("LaunchFailed", "Slurm could not launch the job")),
]


@pytest.mark.parametrize(("state", "why"), ACCOUNTED)
def test_ends_by_accounting(state: str, why: tuple[str, str | None]) -> None:
    row = sacct(f"17|{state}|{T10}|{T11}|{T12}|node-a|{NAME}")
    assert (row.state, row.why, row.ended) == (JobState.ENDED, why, NOON)


def test_a_node_that_was_none() -> None:
    row = sacct(f"17|CANCELLED by 1001|{T10}|{T12}|{T12}|None assigned|{NAME}")
    assert (row.node, row.started) == (None, None)


@pytest.mark.parametrize(
    "line",
    [
        f"17|COMPLETED|{T10}|{T10}|{T10}|node-a|other-name",  # the number was given before a controller's reset
        f"17|COMPLETED|{T10}|{T10}|{T10}|node-a|{NAME}1",
        f"17.batch|COMPLETED|{T10}|{T10}|{T10}|node-a|{NAME}",
        f"17|COMPLETED|{T10}|{T10}|node-a|{NAME}",
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection",
        "slurmdbd: Too wide of a date range in query",
    ],
)
def test_accounting_of_others_is_left_out(line: str) -> None:
    assert parse_sacct(line, [NAME]) == []


ANY_LINES = st.lists(st.text() | st.lists(st.text(max_size=9), min_size=5, max_size=9).map("|".join)).map("\n".join)


@given(ANY_LINES, st.sampled_from(["", PREFIX, "a"]))
def test_reading_squeue_never_fails(text: str, prefix: str) -> None:
    for row in parse_squeue(text, prefix):
        assert row.state in JobState and row.name.startswith(prefix)
        assert len(row.why) == 2


@given(ANY_LINES, st.lists(st.text(max_size=3)))
def test_reading_sacct_never_fails(text: str, names: list[str]) -> None:
    for row in parse_sacct(text, names):
        assert row.state in JobState and row.name in names
