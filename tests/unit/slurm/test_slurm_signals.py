"""Jobs that a signal ended: only accounting knows why, and it may be late, down or off."""

from __future__ import annotations

import pytest

from speedrun_operator.backends.slurm.ledger import absorb
from speedrun_operator.lifecycle.observation import JobState
from unit.slurm.answers import LOG, NAME, NEW, OFF, accounted, poll, queued, see

KILLED = "job=17 exit=143 time=300 signal=TERM"
SIGNALS = {
    "a cancellation": (KILLED, "Cancelled"),
    "the signal ahead of the time limit": ("job=17 exit=140 time=300 signal=USR1", "TimeLimit"),
    "what ran was killed": ("job=17 exit=137 time=300", "JobFailed"),
}


@pytest.mark.parametrize("case", SIGNALS)
def test_accounting_has_time_to_say_why_a_signal_came(case: str) -> None:
    marker, reason = SIGNALS[case]
    memory = NEW
    for at, complete in ((0, False), (119, False), (120, True)):
        memory, seen = absorb(memory, poll("", "", marker=marker, log=(0, LOG) if at == 0 else None), NAME, at)
        assert (seen.state, seen.reason, seen.log_complete) == (JobState.ENDED, reason, complete)


@pytest.mark.parametrize(
    ("word", "reason"), [("CANCELLED by 1001", "Cancelled"), ("PREEMPTED", "Preempted"), ("TIMEOUT", "TimeLimit")]
)
def test_what_accounting_says_in_time_counts(word: str, reason: str) -> None:
    memory, _ = absorb(NEW, poll("", accounted(17, "RUNNING"), marker=KILLED, log=(0, LOG)), NAME, 0)
    memory, seen = absorb(memory, poll("", accounted(17, word), marker=KILLED), NAME, 90)
    assert (seen.reason, seen.log_complete) == (reason, True)


def test_accounting_that_is_down_has_the_same_time() -> None:
    down = poll("", "Connection refused", sacct_code=1, marker=KILLED)
    memory, seen = absorb(NEW, down, NAME, 0)
    assert not seen.log_complete
    assert see(down, memory, 120).log_complete


@pytest.mark.parametrize("case", SIGNALS)
def test_without_accounting_there_is_nobody_to_wait_for(case: str) -> None:
    marker, reason = SIGNALS[case]
    seen = see(poll("", OFF, sacct_code=1, marker=marker, log=(0, LOG)))
    assert (seen.reason, seen.log_complete) == (reason, True)


def test_a_programs_own_exit_code_waits_for_nobody() -> None:
    seen = see(poll("", "", marker="job=17 exit=3 time=300", log=(0, LOG)))
    assert (seen.reason, seen.log_complete) == ("JobFailed", True)


def test_the_marker_of_an_earlier_start_is_no_end() -> None:
    """The job was requeued, and then Slurm lost it."""
    memory, _ = absorb(NEW, poll(queued(17, reason="BeginTime"), owner="17", marker=KILLED), NAME, 0)
    memory, seen = absorb(memory, poll("", "", owner="17", marker=KILLED), NAME, 10)
    assert seen.state is JobState.UNSEEN
    again = poll("", "", owner="17", marker="job=17 exit=0 time=900", log=(0, LOG))
    assert see(again, memory, 20).reason == "Completed"
