"""A poll's answer becomes an observation: who is believed, in which order, and what nobody says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.backends.reading import Reading
from speedrun_operator.backends.slurm.answer import Poll, read_poll
from speedrun_operator.backends.slurm.commands import Section
from speedrun_operator.backends.slurm.ledger import Memory, absorb
from speedrun_operator.lifecycle.observation import JobState
from unit.slurm.answers import LOG, NAME, NEW, NOW, OFF, PREFIX, UNFINISHED, accounted, poll, queued, section, see

Said = tuple[JobState, str | None, str | None]
UNSEEN: Said = (JobState.UNSEEN, None, None)
WITNESSES: Mapping[str, tuple[Poll, Said]] = {
    "nobody knows it": (poll("", ""), UNSEEN),
    "it waits": (poll(queued(17, reason="Priority")), (JobState.QUEUED, "17", "Priority")),
    "it runs": (poll(queued(17, "RUNNING")), (JobState.RUNNING, "17", None)),
    "COMPLETING is no end": (poll(queued(17, "COMPLETING")), (JobState.RUNNING, "17", None)),
    "squeue's end": (poll(queued(17, "TIMEOUT")), (JobState.ENDED, "17", "TimeLimit")),
    "squeue before the marker": (
        poll(queued(17, "COMPLETING"), marker="job=17 exit=0 time=300"),
        (JobState.RUNNING, "17", None),
    ),
    "squeue before sacct: requeued after its node failed": (
        poll(queued(17, reason="BeginTime"), accounted(17, "NODE_FAIL")),
        (JobState.QUEUED, "17", "BeginTime"),
    ),
    "sacct's end": (poll("", accounted(17, "CANCELLED by 1001")), (JobState.ENDED, "17", "Cancelled")),
    "sacct before the marker": (
        poll("", accounted(17, "TIMEOUT"), marker="job=17 exit=143 time=300"),
        (JobState.ENDED, "17", "TimeLimit"),
    ),
    "sacct lags: what it calls running, and squeue does not know, is unseen": (
        poll("", accounted(17, "RUNNING")),
        UNSEEN,
    ),
    "sacct lags, and the marker tells": (
        poll("", accounted(17, "RUNNING"), marker="job=17 exit=0 time=300"),
        (JobState.ENDED, "17", "Completed"),
    ),
    "the marker, accounting off": (
        poll("", OFF, sacct_code=1, marker="job=17 exit=3 time=300"),
        (JobState.ENDED, "17", "JobFailed"),
    ),
    "the marker, accounting down": (
        poll("", "Connection refused", sacct_code=1, marker="job=17 exit=0 time=300"),
        (JobState.ENDED, "17", "Completed"),
    ),
    "accounting down": (poll("", "Connection refused", sacct_code=1), UNSEEN),
    "a marker that says nothing": (poll("", "", marker="job=17 exit= time="), UNSEEN),
    "an old row of the same number": (poll("", "17|COMPLETED|1|2|3|node-a|another-name\n"), UNSEEN),
    "of two that wait, the newer": (poll(queued(17) + queued(18, submitted=101)), (JobState.QUEUED, "18", None)),
    "the newer by time, when numbers began anew": (
        poll(queued(9000) + queued(2, submitted=101)),
        (JobState.QUEUED, "2", None),
    ),
    "one that may still run before one that ended": (
        poll(queued(17) + queued(18, "CANCELLED", submitted=101)),
        (JobState.QUEUED, "17", None),
    ),
    "of two, the owner": (
        poll(queued(17, "RUNNING") + queued(18, submitted=101), owner="17"),
        (JobState.RUNNING, "17", None),
    ),
    "the owner's end, whatever waits": (
        poll(queued(18, submitted=101), accounted(17, "FAILED"), owner="17"),
        (JobState.ENDED, "17", "JobFailed"),
    ),
    "the owner's end, whatever ended after it": (
        poll(queued(17, "FAILED") + queued(18, "COMPLETED", submitted=101), owner="17"),
        (JobState.ENDED, "17", "JobFailed"),
    ),
    "nothing of the owner": (poll(queued(18, submitted=101), "", owner="17"), (JobState.UNSEEN, "17", None)),
    "cancelled on its way": (poll(queued(17), owner="cancelled"), (JobState.QUEUED, "17", None)),
}


@pytest.mark.parametrize(
    ("owner", "job", "fenced"), [(None, None, False), ("17", "17", False), ("cancelled", None, True)]
)
def test_what_the_ledger_alone_tells(owner: str | None, job: str | None, fenced: bool) -> None:
    for answer in (poll("", "", owner=owner), poll("", "refused", sacct_code=1, owner=owner)):
        seen = see(answer)
        assert (seen.state, seen.job_id, seen.fenced) == (JobState.UNSEEN, job, fenced)


@pytest.mark.parametrize("case", WITNESSES)
def test_who_is_believed(case: str) -> None:
    answer, said = WITNESSES[case]
    seen = see(answer)
    assert (seen.state, seen.job_id, seen.reason) == said
    assert seen.asked == datetime.fromtimestamp(NOW, UTC)


def test_a_queue_that_was_not_asked_is_not_an_empty_one() -> None:
    assert not poll(None).queue_known
    assert poll("").queue_known


@pytest.mark.parametrize(
    "sections",
    [
        [],
        [section("done")],
        [section(f"now {NOW}"), section("squeue 0")],
        [section(f"now {NOW}"), section("done"), section("squeue 0")],
        [section("now then"), section("squeue 0"), section("done")],
    ],
)
def test_an_answer_that_is_not_whole_is_none(sections: list[Section]) -> None:
    assert read_poll(sections, PREFIX, [NAME]) is None


@pytest.mark.parametrize(
    ("codes", "said", "known"),
    [
        ([], "", False),
        ([0], "", True),
        ([1], OFF, True),
        ([1], "Problem talking to the database", False),
        ([0, 0], "", True),
        ([0, 1], "", False),
    ],
)
def test_accounting_is_known_only_when_all_of_it_answered(codes: list[int], said: str, known: bool) -> None:
    sections = [section(f"now {NOW}"), section("squeue 0"), *(section(f"sacct {code}", said) for code in codes)]
    answer = read_poll([*sections, section("done")], PREFIX, [NAME])
    assert answer is not None and answer.accounting_known is known
    assert answer.accounting_off is (said == OFF)


def test_a_failed_sacct_is_not_read() -> None:
    assert see(poll("", accounted(17, "COMPLETED"), sacct_code=1)).state is JobState.UNSEEN


# How long nobody knows it -----------------------------------------------------------------------------------------


def test_absence_counts_from_the_first_answer_that_lacks_it() -> None:
    memory = NEW
    for at in (0, 10, 20):
        memory, seen = absorb(memory, poll("", ""), NAME, 100 + at)
        assert seen.unseen_for == timedelta(seconds=at)


@pytest.mark.parametrize(
    "between",
    [
        lambda memory: memory.unanswered(),
        lambda memory: absorb(memory, poll("", "refused", sacct_code=1), NAME, 200)[0],
        lambda memory: absorb(memory, poll(queued(17)), NAME, 200)[0],
    ],
    ids=["no answer", "accounting down", "seen"],
)
def test_absence_counts_only_over_answers_in_a_row(between: object) -> None:
    memory, _ = absorb(NEW, poll("", ""), NAME, 100)
    memory = between(memory)  # type: ignore[operator]
    assert see(poll("", ""), memory, 500).unseen_for == timedelta(0)


def test_absence_counts_anew_once_a_job_began() -> None:
    memory, _ = absorb(NEW, poll("", ""), NAME, 100)
    memory, seen = absorb(memory, poll("", "", owner="17"), NAME, 390)
    assert seen.unseen_for == timedelta(0)
    assert see(poll("", "", owner="17"), memory, 410).unseen_for == timedelta(seconds=20)


def test_a_job_whose_log_grows_is_not_missed() -> None:
    """Whatever squeue and sacct say: absence counts from when the log last grew."""
    memory, _ = absorb(NEW, poll("", "", owner="17", log=(0, LOG[:50])), NAME, 100)
    memory, seen = absorb(memory, poll("", "", owner="17", log=(50, b"")), NAME, 390)
    assert seen.unseen_for == timedelta(seconds=290)
    memory, seen = absorb(memory, poll("", "", owner="17", log=(50, LOG[50:90])), NAME, 400)
    assert seen.unseen_for == timedelta(0)
    assert see(poll("", "", owner="17", log=(90, b"")), memory, 420).unseen_for == timedelta(seconds=20)


def test_with_accounting_off_absence_counts() -> None:
    answer = poll("", OFF, sacct_code=1)
    memory, _ = absorb(NEW, answer, NAME, 100)
    assert see(answer, memory, 400).unseen_for == timedelta(seconds=300)


# The log ----------------------------------------------------------------------------------------------------------

RUNNING, ENDED = queued(17, "RUNNING"), queued(17, "COMPLETED")


@settings(deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=200), max_size=20))
def test_a_log_in_pieces_reads_as_the_whole(cuts: list[int]) -> None:
    memory, at = NEW, 0
    for length in [*cuts, len(LOG)]:
        piece = LOG[at : at + length]
        memory, seen = absorb(memory, poll(RUNNING, log=(at, piece), size=len(LOG)), NAME, 0)
        at += len(piece)
        assert memory.behind == (at < len(LOG))
        assert (seen.log is None) == (at < len(LOG))
    assert seen.log == Reading("modded-nanogpt").after(LOG).progress


def test_what_was_caught_up_with_once_is_shown_while_more_is_read() -> None:
    memory, _ = absorb(NEW, poll(RUNNING, log=(0, LOG[:50])), NAME, 0)
    memory, seen = absorb(memory, poll(RUNNING, log=(50, LOG[50:90]), size=len(LOG)), NAME, 1)
    assert memory.behind and seen.log is not None


def test_without_a_log_there_is_an_empty_one() -> None:
    seen = see(poll(queued(17)))
    assert seen.log is not None and seen.log.runs == ()


def test_an_answer_to_an_older_question_is_not_read_twice() -> None:
    memory, before = absorb(NEW, poll(RUNNING, log=(0, LOG[:400])), NAME, 0)
    memory, seen = absorb(memory, poll(RUNNING, log=(0, LOG[:500])), NAME, 1)
    assert seen.log == before.log and memory.behind
    memory, seen = absorb(memory, poll(RUNNING, log=(400, LOG[400:])), NAME, 2)
    assert seen.log == Reading("modded-nanogpt").after(LOG).progress


def test_a_log_that_shrank_is_another_one() -> None:
    memory, _ = absorb(NEW, poll(RUNNING, log=(0, LOG[:400])), NAME, 0)
    shrunk = read_poll(
        [section(f"now {NOW}"), section("squeue 0", RUNNING), section(f"log {NAME} 90 0 shrunk"), section("done")],
        PREFIX,
        [NAME],
    )
    assert shrunk is not None
    memory, seen = absorb(memory, shrunk, NAME, 1)
    assert (seen.log, memory.behind, memory.reading.offset) == (None, True, 0)
    memory, seen = absorb(memory, poll(RUNNING, log=(0, LOG)), NAME, 2)
    assert seen.log == Reading("modded-nanogpt").after(LOG).progress


def test_a_job_that_releases_its_nodes_runs_until_it_is_gone_and_its_last_line_counts() -> None:
    """BR-016: COMPLETING is neither an end nor a wait."""
    polls = [
        poll(RUNNING, log=(0, LOG[:100])),
        poll(queued(17, "COMPLETING"), log=(100, UNFINISHED[100:])),
        poll("", accounted(17, "COMPLETED"), log=(len(UNFINISHED), LOG[len(UNFINISHED) :])),
    ]
    memory, seen = NEW, []
    for answer in polls:
        memory, observed = absorb(memory, answer, NAME, 0)
        seen.append(observed)
    assert [each.state for each in seen] == [JobState.RUNNING, JobState.RUNNING, JobState.ENDED]
    last = seen[-1]
    assert last.log_complete and last.log == Reading("modded-nanogpt").after(LOG).progress
    assert [run.progress.final and run.progress.final.val_loss for run in last.log.runs] == [Decimal("3.2790")]


COMPLETE = {
    "its last line is there": (LOG, 0.0, True),
    "its last line is not there yet": (UNFINISHED, 0.0, False),
    "nothing came for a while": (UNFINISHED, 5.0, True),
    "too short a while": (UNFINISHED, 4.9, False),
}


@pytest.mark.parametrize("case", COMPLETE)
def test_when_a_log_is_complete(case: str) -> None:
    log, later, complete = COMPLETE[case]
    memory, seen = absorb(NEW, poll(ENDED, log=(0, log)), NAME, 100)
    if later:
        memory, seen = absorb(memory, poll(ENDED, log=(len(log), b"")), NAME, 100 + later)
    assert seen.state is JobState.ENDED and seen.log_complete is complete


def test_a_log_that_is_not_read_up_to_its_end_is_not_complete() -> None:
    memory, seen = absorb(NEW, poll(ENDED, log=(0, LOG[:300]), size=len(LOG)), NAME, 0)
    assert not seen.log_complete
    memory, seen = absorb(memory, poll(ENDED, log=(300, LOG[300:350]), size=len(LOG)), NAME, 60)
    assert not seen.log_complete
    assert see(poll(ENDED, log=(350, LOG[350:])), memory, 61).log_complete


def test_the_end_counts_anew_when_the_job_lives_on() -> None:
    memory, _ = absorb(NEW, poll(ENDED), NAME, 0)
    memory, _ = absorb(memory, poll(RUNNING), NAME, 10)
    assert not see(poll(ENDED), memory, 20).log_complete


def test_a_job_that_never_started_has_no_log_to_wait_for() -> None:
    assert see(poll(queued(17, "CANCELLED"))).log_complete
    assert not see(poll(queued(17, "CANCELLED"), log=(0, b"x\n"))).log_complete


WORD = st.text(min_size=1, max_size=8).filter(lambda text: not any(each.isspace() for each in text))
SECTIONS = st.lists(
    st.builds(
        Section,
        st.lists(
            WORD | st.sampled_from(["now", "squeue", "sacct", "owner", "exit", "log", NAME, "0", "1", "exit=1", "²"]),
            max_size=6,
        ).map(tuple),
        st.binary(max_size=60) | st.sampled_from([RUNNING.encode(), ENDED.encode(), LOG]),
    )
)


@given(SECTIONS, st.sampled_from([NEW, replace(NEW, size=90, unseen_since=1.0, ended_since=2.0)]))
def test_reading_an_answer_never_fails_and_invents_no_end(sections: list[Section], memory: Memory) -> None:
    answer = read_poll([section(f"now {NOW}"), *sections, section("done")], PREFIX, [NAME])
    if answer is None or not answer.queue_known:
        return
    seen = see(answer, memory, 3.0)
    witnesses = [*answer.rows.get(NAME, ()), *answer.accounted.get(NAME, ())]
    if seen.state is JobState.ENDED:
        assert NAME in answer.exits or any(row.state is JobState.ENDED for row in witnesses)
