"""One allocation's record: what outcomes and witnesses make of it. `Ended` is final, and only a witness ends it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, Reason
from speedrun_operator.api.status import Allocation
from speedrun_operator.lifecycle.allocations import after_observation, after_outcome, with_ending
from speedrun_operator.lifecycle.observation import Accepted, Busy, Observed, Outcome, Rejected, Unknown
from unit.builders import NOON, at, ended, queued, running, unseen

SUBMITTING, QUEUED, RUNNING, ENDED = AllocationState
LOST_AFTER = timedelta(seconds=300)


def allocation(state: AllocationState, **fields: Any) -> Allocation:
    return Allocation(id=0, name="sr-0", state=state, claimed=NOON, **fields)


WAITS = allocation(QUEUED, job_id="17", submitted=at(1))
WORKS = allocation(RUNNING, job_id="17", submitted=at(1), started=at(3), node="node-a")


@pytest.mark.parametrize(
    ("outcome", "changes"),
    [
        pytest.param(
            Accepted("17", at(4)), {"state": QUEUED, "job_id": "17", "submitted": at(4)}, id="accepted, by its clock"
        ),
        pytest.param(Accepted("17", None), {"state": QUEUED, "job_id": "17", "submitted": at(9)}, id="or else by ours"),
        pytest.param(
            Rejected("SubmissionRejected", "no such partition"),
            {"state": ENDED, "ended": at(9), "reason": "SubmissionRejected", "message": "no such partition"},
            id="rejected",
        ),
        pytest.param(Busy("SlurmBusy", "full"), {"reason": "SlurmBusy", "message": "full"}, id="busy"),
        pytest.param(Unknown("Silence", "cut"), {"reason": "Silence", "message": "cut"}, id="unknown"),
        pytest.param(Unknown("Silence", "x" * 9999), {"reason": "Silence", "message": "x" * 1024}, id="long words"),
    ],
)
def test_an_outcome(outcome: Outcome, changes: dict[str, Any]) -> None:
    before = allocation(SUBMITTING)
    assert after_outcome(before, outcome, at(9)) == before.model_copy(update=changes)


def test_acceptance_takes_back_what_was_unknown() -> None:
    unknown = after_outcome(allocation(SUBMITTING), Unknown("Silence", "cut"), at(5))
    accepted = after_outcome(unknown, Accepted("17", at(1)), at(9))
    assert (accepted.state, accepted.reason, accepted.message) == (QUEUED, None, None)


@pytest.mark.parametrize("before", [WAITS, WORKS, allocation(ENDED)], ids=lambda each: each.state)
@pytest.mark.parametrize(
    "outcome", [Accepted("99", None), Rejected("R", ""), Busy("B", ""), Unknown("U", "")], ids=lambda each: repr(each)
)
def test_a_late_outcome_changes_nothing(before: Allocation, outcome: Outcome) -> None:
    assert after_outcome(before, outcome, at(9)) == before


@pytest.mark.parametrize(
    ("before", "seen", "changes"),
    [
        pytest.param(
            allocation(SUBMITTING, reason="SubmissionUnknown", message="no answer"),
            queued(),
            {"state": QUEUED, "job_id": "17", "submitted": at(1), "reason": None, "message": None},
            id="found by its name",
        ),
        pytest.param(WAITS, queued("Priority"), {"reason": "Priority"}, id="waits for something"),
        pytest.param(
            WAITS, running(), {"state": RUNNING, "started": at(3), "node": "node-a"}, id="starts, and waits no more"
        ),
        pytest.param(
            WAITS.model_copy(update={"reason": "Priority"}),
            running(started=None, node=None),
            {"state": RUNNING, "reason": None},
            id="starts, nobody says when",
        ),
        pytest.param(
            WORKS, running(node=None, started=None, submitted=None, job_id=None), {}, id="what is known stays"
        ),
        pytest.param(
            WORKS,
            queued("BeginTime"),
            {"state": QUEUED, "started": None, "node": None, "reason": "BeginTime", "requeues": 1},
            id="requeued by somebody",
        ),
        pytest.param(
            WORKS.model_copy(update={"requeues": 1}),
            running(started=at(8)),
            {"started": at(8), "requeues": 2},
            id="requeued, and started again between two polls",
        ),
        pytest.param(
            WAITS.model_copy(update={"requeues": 1}),
            running(),
            {"state": RUNNING, "started": at(3), "node": "node-a"},
            id="starts again: that was counted",
        ),
        pytest.param(WORKS, running(started=None), {}, id="nobody says when it started"),
        pytest.param(WORKS, ended(log_complete=False), {}, id="ended, but its log is not read to the end"),
        pytest.param(
            WAITS,
            ended(log_complete=False),
            {"state": RUNNING, "started": at(3), "node": "node-a"},
            id="started and ended between two polls",
        ),
        pytest.param(
            WAITS, ended(log_complete=False, started=None, node=None), {}, id="ended without a start, log not read"
        ),
        pytest.param(
            allocation(SUBMITTING),
            ended(log_complete=False, started=None, node=None),
            {"state": QUEUED, "job_id": "17", "submitted": at(1)},
            id="a job that a witness knows is submitted, even one that ended",
        ),
        pytest.param(
            WORKS,
            ended(None, "TimeLimit", message="it ended"),
            {
                "state": ENDED,
                "ended": at(100),
                "reason": "TimeLimit",
                "message": "it ended: raise spec.timeLimitSeconds; finished steps are skipped the next time",
            },
            id="ended",
        ),
        pytest.param(
            WORKS, ended(ended=None), {"state": ENDED, "ended": at(101), "reason": "Completed"}, id="nobody says when"
        ),
        pytest.param(WAITS, unseen(299), {}, id="unseen for a while"),
        pytest.param(allocation(SUBMITTING), unseen(9999), {}, id="what was never accepted cannot be lost"),
    ],
)
def test_an_observation(before: Allocation, seen: Observed, changes: dict[str, Any]) -> None:
    assert after_observation(before, seen, LOST_AFTER) == before.model_copy(update=changes)


TO_END = {"ending": "Suspended", "message": "suspended by spec.suspend"}


@pytest.mark.parametrize(
    ("outcome", "changes"),
    [
        pytest.param(Accepted("17", at(4)), {"state": QUEUED, "job_id": "17", "submitted": at(4)}, id="accepted"),
        pytest.param(Busy("SlurmBusy", "full"), {}, id="busy"),
        pytest.param(Unknown("Silence", "cut"), {}, id="unknown"),
        pytest.param(
            Rejected("Cancelled", "it was cancelled before it was submitted"),
            {"state": ENDED, "ended": at(9), "reason": "Suspended"},
            id="cancelled, by us",
        ),
        pytest.param(
            Rejected("SubmissionRejected", "no such partition"),
            {"state": ENDED, "ended": at(9), "reason": "SubmissionRejected", "message": "no such partition"},
            id="refused all the same",
        ),
    ],
)
def test_an_outcome_of_what_is_to_end_leaves_the_reason_for_that(outcome: Outcome, changes: dict[str, Any]) -> None:
    before = allocation(SUBMITTING, **TO_END)
    assert after_outcome(before, outcome, at(9)) == before.model_copy(update=changes)


def test_a_cancellation_that_is_not_ours_is_a_rejection() -> None:
    after = after_outcome(allocation(SUBMITTING), Rejected("Cancelled", "it was cancelled"), at(9))
    assert (after.state, after.reason, after.message) == (ENDED, "Cancelled", "it was cancelled")


@pytest.mark.parametrize("said", ["Cancelled", "JobFailed", "NodeFailure", "TimeLimit", "SubmissionRejected"])
@pytest.mark.parametrize("before", [WAITS, WORKS], ids=lambda each: each.state)
def test_what_we_end_ends_for_our_reason(before: Allocation, said: str) -> None:
    marked = before.model_copy(update=TO_END)
    after = after_observation(marked, ended(None, said, message="words of Slurm"), LOST_AFTER)
    assert (after.state, after.reason, after.message) == (ENDED, "Suspended", "suspended by spec.suspend")


def test_what_we_wanted_to_end_and_came_to_its_own_end() -> None:
    after = after_observation(WORKS.model_copy(update=TO_END), ended(), LOST_AFTER)
    assert (after.state, after.reason, after.ending) == (ENDED, "Completed", "Suspended")


@pytest.mark.parametrize("seen", [queued("Priority"), running()], ids=lambda each: each.state)
def test_while_it_is_ending_the_words_stay(seen: Observed) -> None:
    after = after_observation(WORKS.model_copy(update=TO_END), seen, LOST_AFTER)
    assert (after.state, after.reason, after.message) == (seen.state, None, "suspended by spec.suspend")


def test_what_we_end_is_not_lost() -> None:
    after = after_observation(WORKS.model_copy(update=TO_END), unseen(300), LOST_AFTER)
    assert (after.state, after.reason, after.message) == (ENDED, "Suspended", "suspended by spec.suspend")


@pytest.mark.parametrize(
    ("before", "ends"),
    [
        (allocation(SUBMITTING, **TO_END), True),
        (allocation(SUBMITTING), False),
        (WAITS.model_copy(update=TO_END), False),
        (WORKS.model_copy(update=TO_END), False),
        (allocation(ENDED, reason="Completed"), False),
    ],
    ids=["marked", "not marked", "waits", "works", "has ended"],
)
def test_what_is_gone_without_a_job_has_ended(before: Allocation, ends: bool) -> None:
    """Of what had a job, witnesses tell."""
    ended_ = {"state": ENDED, "ended": at(500), "reason": "Suspended"}
    after = after_observation(before, unseen(0, fenced=True), LOST_AFTER)
    assert after == (before.model_copy(update=ended_) if ends else before)


@pytest.mark.parametrize("ending", [None, "Suspended"])
def test_a_job_that_only_its_ledger_tells_of_began(ending: str | None) -> None:
    """It may have a result, so it does not end before its log was read, or it is lost."""
    before = allocation(SUBMITTING, ending=ending)
    after = after_observation(before, unseen(0, job_id="17"), LOST_AFTER)
    assert (after.state, after.job_id) == (RUNNING, "17")
    assert after_observation(after, unseen(300, job_id="17"), LOST_AFTER).reason == (ending or "JobLost")


def test_the_first_reason_for_an_end_stays() -> None:
    once = with_ending(WORKS, Reason.STALLED, "quiet")
    assert (once.ending, once.message, once.state) == ("Stalled", "quiet", RUNNING)
    assert with_ending(once, Reason.SUSPENDED, "suspended") == once
    over = WORKS.model_copy(update={"state": ENDED})
    assert with_ending(over, Reason.STALLED, "quiet") == over
    assert len(with_ending(WORKS, Reason.STALLED, "x" * 9999).message or "") == 1024


@pytest.mark.parametrize("before", [WAITS, WORKS], ids=lambda each: each.state)
def test_lost(before: Allocation) -> None:
    """BR-019: also where accounting is off and the job left no record: within a stated time."""
    after = after_observation(before, unseen(300), LOST_AFTER)
    assert (after.state, after.reason, after.ended) == (ENDED, "JobLost", at(500))
    assert "job 17 for 300 s" in (after.message or "")


def test_absence_counts_from_the_submission() -> None:
    """Its submission had no clear outcome for a while, in which nobody knew it either."""
    late = WAITS.model_copy(update={"submitted": at(201)})
    assert after_observation(late, unseen(499), LOST_AFTER) == late
    assert after_observation(late, unseen(499, asked=at(501)), LOST_AFTER).reason == "JobLost"


@pytest.mark.parametrize(
    "seen", [queued(), running(), ended(None, "Cancelled"), unseen(999)], ids=lambda each: each.state
)
def test_ended_is_final(seen: Observed) -> None:
    before = WORKS.model_copy(update={"state": ENDED, "ended": at(50), "reason": "Completed"})
    assert after_observation(before, seen, LOST_AFTER) == before


def test_words_of_slurm_without_end_are_cut() -> None:
    after = after_observation(WAITS, queued("ReqNodeNotAvail, UnavailableNodes:" + "n," * 9999), LOST_AFTER)
    assert after.reason is not None
    assert len(after.reason) == 1024
