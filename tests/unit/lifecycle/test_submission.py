"""When an allocation is opened and when one is submitted: never twice at once, never without the finalizer."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.observation import Accepted, Observed, Outcome, Unknown
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.lifecycle.submission import needs_another, open_allocation, to_submit
from unit.builders import CLUSTER, NOON, UID, at, ended, queued, resource, situation, unseen

SUBMITTING, QUEUED, ENDED = AllocationState.SUBMITTING, AllocationState.QUEUED, AllocationState.ENDED
MOST_LOST = 5


def allocation(state: AllocationState, reason: str | None = None, number: int = 0) -> Allocation:
    return Allocation(id=number, name=f"sr-{number}", state=state, claimed=NOON, reason=reason)


def run(phase: Phase = Phase.PENDING, counted: bool = False) -> Run:
    return Run(index=0, arm="A", phase=phase, counted=counted)


LOST = allocation(ENDED, "JobLost")


@pytest.mark.parametrize(
    ("allocations", "one", "another"),
    [
        pytest.param([], run(), True, id="the first"),
        pytest.param([allocation(SUBMITTING)], run(), False, id="one whose outcome is unknown"),
        pytest.param([allocation(QUEUED)], run(Phase.QUEUED), False, id="one that waits"),
        pytest.param([allocation(ENDED, "Completed")], run(Phase.SUCCEEDED, True), False, id="a result"),
        pytest.param([allocation(ENDED, "NodeFailure")], run(Phase.FAILED), False, id="a failure is not tried again"),
        pytest.param([allocation(ENDED, "SubmissionRejected")], run(Phase.FAILED), False, id="a refusal is not either"),
        pytest.param([LOST], run(Phase.FAILED), True, id="a lost job"),
        pytest.param([LOST], run(Phase.SUCCEEDED, True), False, id="a lost job that left a result"),
        pytest.param([LOST], run(Phase.MISSED, True), False, id="a lost job that had diverged"),
        pytest.param([LOST, allocation(SUBMITTING)], run(), False, id="one after a lost job"),
        pytest.param([LOST] * MOST_LOST, run(Phase.FAILED), True, id="tried again five times"),
        pytest.param([LOST] * (MOST_LOST + 1), run(Phase.FAILED), False, id="and no more"),
    ],
)
def test_another_allocation(allocations: list[Allocation], one: Run, another: bool) -> None:
    assert needs_another(tuple(allocations), (one,), MOST_LOST) is another


@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_allocation_is_named_by_resource_and_number(before: int) -> None:
    opened = open_allocation(situation(seconds=1.75), (LOST,) * before)
    assert (opened.id, opened.name) == (before, f"sr-{CLUSTER}-{UID}-{before}")
    assert (opened.state, opened.claimed, opened.job_id) == (SUBMITTING, at(1), None)


@pytest.mark.parametrize(
    ("allocations", "changes", "metadata", "submitted"),
    [
        pytest.param([allocation(SUBMITTING)], {}, {}, [0], id="named in status, outcome unknown"),
        pytest.param([allocation(QUEUED)], {}, {}, [], id="accepted"),
        pytest.param([allocation(ENDED)], {}, {}, [], id="ended"),
        pytest.param([LOST, allocation(SUBMITTING, None, 1)], {}, {}, [1], id="the second"),
        pytest.param([allocation(SUBMITTING)], {}, {"protected": False}, [], id="no finalizer yet"),
        pytest.param([allocation(SUBMITTING)], {}, {"deleting": True}, [], id="being deleted"),
        pytest.param([allocation(SUBMITTING)], {"waiting": Waiting("X", "")}, {}, [], id="nothing can be submitted"),
    ],
)
def test_what_is_submitted(
    allocations: list[Allocation], changes: dict[str, Any], metadata: dict[str, Any], submitted: list[int]
) -> None:
    found = to_submit(situation(resource(**metadata), **changes), tuple(allocations))
    assert [each.allocation for each in found] == submitted


@pytest.mark.parametrize("outcome", [Accepted("17", None), Unknown("SubmissionUnknown", "")], ids=repr)
def test_an_answer_just_heard_is_not_asked_for_again(outcome: Outcome) -> None:
    assert to_submit(situation(outcomes={0: outcome}), (allocation(SUBMITTING),)) == ()


@pytest.mark.parametrize(
    ("seen", "submitted"), [(unseen(0), 1), (unseen(900), 1), (queued(), 0), (ended(log_complete=False), 0)], ids=repr
)
def test_a_job_that_a_witness_knows_is_not_submitted_again(seen: Observed, submitted: int) -> None:
    assert len(to_submit(situation(observed={0: seen}), (allocation(SUBMITTING),))) == submitted
