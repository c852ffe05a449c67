"""Events: each transition is told once, in words, as a warning where somebody should look."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase
from speedrun_operator.api.status import Allocation, Condition, Run, Status
from speedrun_operator.lifecycle.notices import NEEDS_A_PERSON, between
from speedrun_operator.login.errors import Reason
from unit.builders import NOON, at


def status(phase: Phase | None = None, *conditions: Condition, **fields: Any) -> Status:
    return Status(phase=phase, conditions=conditions, **fields)


def condition(type_: str, status_: str, reason: str = "Reason", message: str = "words") -> Condition:
    return Condition(
        type=ConditionType(type_), status=status_, reason=reason, message=message, last_transition_time=NOON
    )


def allocation(number: int, reason: str | None = None, message: str | None = None, **fields: Any) -> Allocation:
    """One that is being submitted, or, with a reason, has ended."""
    state = AllocationState.ENDED if reason else AllocationState.SUBMITTING
    made = {"id": number, "name": f"sr-{number}", "state": state, "claimed": NOON, "runs": (number,)}
    return Allocation(**{**made, "reason": reason, "message": message, **fields})


def job(number: int, state: AllocationState = AllocationState.QUEUED, **fields: Any) -> Allocation:
    return allocation(number, state=state, job_id=str(17 + number), **fields)


def run(index: int, phase: Phase = Phase.PENDING, allocation: int | None = None) -> Run:
    return Run(index=index, arm="A", phase=phase, allocation=allocation)


RUNNING = AllocationState.RUNNING
FAILED_NODE = job(0, AllocationState.ENDED, reason="NodeFailure", message="the node failed")


FINISHED = condition("Finished", "True", "TheReason", "the words")
REFUSED = condition("Admitted", "False", "UnknownRecipe", "there are others")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        pytest.param(status(), status(Phase.PENDING, condition("Admitted", "True")), [], id="all is well"),
        pytest.param(status(), status(None, REFUSED), [(True, "UnknownRecipe", "there are others")], id="not admitted"),
        pytest.param(
            status(None, condition("Admitted", "False", "LoginNotConfigured")),
            status(None, REFUSED),
            [(True, "UnknownRecipe", "there are others")],
            id="not admitted for another reason",
        ),
        pytest.param(
            status(allocations=(allocation(0),)),
            status(allocations=(job(0),)),
            [(False, "Submitted", "job 17, named sr-0")],
            id="submitted",
        ),
        pytest.param(
            status(allocations=(job(0),)), status(allocations=(job(0, reason="Priority"),)), [], id="waits, told before"
        ),
        pytest.param(
            status(allocations=(allocation(0), allocation(1))),
            status(allocations=(job(0), job(1))),
            [(False, "Submitted", "job 17, named sr-0"), (False, "Submitted", "job 18, named sr-1")],
            id="two submitted at once",
        ),
        pytest.param(
            status(allocations=(job(0), job(1))),
            status(allocations=(job(0, RUNNING, node="node-a"), job(1))),
            [(False, "Started", "job 17 runs on node-a")],
            id="an older one started",
        ),
        pytest.param(
            status(allocations=(job(0, RUNNING, node="node-a"),)),
            status(allocations=(job(0, requeues=1),)),
            [(True, "Requeued", "job 17 was requeued, not by the operator: it starts again from nothing")],
            id="requeued",
        ),
        pytest.param(
            status(allocations=(job(0, requeues=1),)),
            status(allocations=(job(0, RUNNING, node="node-a", requeues=1),)),
            [(False, "Started", "job 17 runs on node-a, requeued 1 time")],
            id="requeued, and started again",
        ),
        pytest.param(
            status(allocations=(job(0, RUNNING, node="node-a", requeues=2),)),
            status(allocations=(job(0, RUNNING, node="node-a", requeues=2),)),
            [],
            id="requeued before",
        ),
        pytest.param(
            status(allocations=(allocation(0),)),
            status(allocations=(job(0, AllocationState.ENDED, started=NOON, reason="Completed"),)),
            [(False, "Submitted", "job 17, named sr-0"), (False, "Started", "job 17 ran")],
            id="a whole job between two looks",
        ),
        pytest.param(
            status(), status(None, condition("BackendReachable", "True")), [], id="reachable from the first is no news"
        ),
        pytest.param(
            status(None, condition("BackendReachable", "True")),
            status(None, condition("BackendReachable", "False", "Silence")),
            [(True, "Silence", "words")],
            id="out of reach",
        ),
        pytest.param(
            status(None, condition("BackendReachable", "False", "Silence")),
            status(None, condition("BackendReachable", "False", "ConnectionLost")),
            [],
            id="still out of reach",
        ),
        pytest.param(
            status(None, condition("BackendReachable", "False", "ConnectionLost")),
            status(None, condition("BackendReachable", "False", "HostKeyMismatch")),
            [(True, "HostKeyMismatch", "words")],
            id="still out of reach, and now somebody must look",
        ),
        pytest.param(
            status(None, condition("BackendReachable", "False", "HostKeyMismatch")),
            status(None, condition("BackendReachable", "False", "LoginUnreachable")),
            [],
            id="out of reach in yet another way",
        ),
        pytest.param(
            status(None, condition("BackendReachable", "False")),
            status(None, condition("BackendReachable", "True", "Reachable")),
            [(False, "Reachable", "words")],
            id="in reach again",
        ),
        pytest.param(
            status(Phase.QUEUED, job="17"),
            status(Phase.TRAINING, job="17"),
            [(False, "Training", "job 17 is training")],
            id="trains",
        ),
        pytest.param(
            status(Phase.QUEUED, job="18", allocations=(job(0), job(1))),
            status(
                Phase.COMPILING,
                job="18",
                allocations=(job(0), job(1)),
                runs=(run(0, Phase.COMPILING, 0), run(1, Phase.QUEUED, 1)),
            ),
            [(False, "Compiling", "run 0 (job 17) is compiling")],
            id="one of several compiles",
        ),
        pytest.param(status(Phase.QUEUED), status(Phase.PREPARING), [], id="prepares"),
        pytest.param(
            status(Phase.TRAINING),
            status(Phase.SUCCEEDED, FINISHED),
            [(False, "TheReason", "the words")],
            id="succeeded",
        ),
        pytest.param(
            status(Phase.TRAINING), status(Phase.MISSED, FINISHED), [(True, "TheReason", "the words")], id="missed"
        ),
        pytest.param(
            status(Phase.TRAINING), status(Phase.FAILED, FINISHED), [(True, "TheReason", "the words")], id="failed"
        ),
        pytest.param(
            status(),
            status(Phase.FAILED, REFUSED, FINISHED),
            [(True, "UnknownRecipe", "there are others")],
            id="refused, told once",
        ),
        pytest.param(
            status(Phase.FAILED, REFUSED),
            status(Phase.FAILED, REFUSED, FINISHED),
            [],
            id="nothing without a change of phase",
        ),
        pytest.param(
            status(Phase.TRAINING, REFUSED),
            status(Phase.FAILED, REFUSED, FINISHED),
            [(True, "TheReason", "the words")],
            id="refused while jobs ran, and over later",
        ),
        pytest.param(
            status(None, allocations=(allocation(0),)),
            status(None, allocations=(allocation(0, "JobLost", "nobody knows job 17"), allocation(1)), runs=(run(0),)),
            [(True, "JobLost", "nobody knows job 17; tried again")],
            id="lost, and tried again at once",
        ),
        pytest.param(
            status(allocations=(job(0),)),
            status(allocations=(FAILED_NODE,), runs=(run(0),), next_attempt_time=at(75.9)),
            [(True, "NodeFailure", "the node failed; tried again from 2026-07-01T12:01:15Z")],
            id="tried again later",
        ),
        pytest.param(
            status(allocations=(job(0),)),
            status(allocations=(FAILED_NODE,), runs=(run(0, Phase.FAILED, 0), run(1))),
            [(True, "NodeFailure", "the node failed")],
            id="not tried again, while others go on",
        ),
        pytest.param(
            status(allocations=(FAILED_NODE,)), status(allocations=(FAILED_NODE,), runs=(run(0),)), [], id="told before"
        ),
        pytest.param(
            status(Phase.TRAINING, allocations=(job(0),)),
            status(Phase.FAILED, FINISHED, allocations=(FAILED_NODE,), runs=(run(0, Phase.FAILED, 0),)),
            [(True, "TheReason", "the words")],
            id="of the last one the end tells",
        ),
        *(
            pytest.param(
                status(allocations=(job(0),)),
                status(allocations=(job(0, AllocationState.ENDED, reason=reason),), runs=(run(0, Phase.FAILED, 0),)),
                [],
                id=f"{reason} is told elsewhere",
            )
            for reason in ("Completed", "JobFailed", "Suspended")
        ),
        pytest.param(
            status(),
            status(None, condition("Suspended", "True", "Suspended", "by spec.suspend")),
            [(False, "Suspended", "by spec.suspend")],
            id="suspended",
        ),
        pytest.param(
            status(None, condition("Suspended", "True")),
            status(None, condition("Suspended", "False", "Resumed", "")),
            [(False, "Resumed", "Resumed")],
            id="resumed",
        ),
        pytest.param(
            status(None, condition("Suspended", "False")), status(None, condition("Suspended", "False")), [], id="not"
        ),
        pytest.param(
            status(),
            status(None, condition("Stalled", "True", "Stalled", "no new line in the log for 900 s")),
            [(True, "Stalled", "no new line in the log for 900 s")],
            id="stalled",
        ),
        pytest.param(
            status(None, condition("Stalled", "True", "Stalled", "no new line in the log for 900 s")),
            status(None, condition("Stalled", "True", "Stalled", "no new line in the log for 960 s")),
            [],
            id="still stalled",
        ),
        pytest.param(
            status(None, condition("Stalled", "True")),
            status(None, condition("Stalled", "False", "Progressing", "")),
            [(False, "Progressing", "Progressing")],
            id="goes on",
        ),
        pytest.param(
            status(None, condition("Stalled", "True")),
            status(None, condition("Stalled", "False", "NotRunning", "")),
            [],
            id="over with its job, which is no progress",
        ),
        pytest.param(status(), status(None, allocations=(allocation(0),)), [], id="the first allocation"),
    ],
)
def test_between(old: Status, new: Status, told: list[tuple[bool, str, str]]) -> None:
    assert [(each.warning, each.reason, each.message) for each in between(old, new)] == told
    assert between(new, new) == ()


def test_what_needs_a_person_is_a_reason_of_the_login() -> None:
    assert set(Reason) >= NEEDS_A_PERSON
