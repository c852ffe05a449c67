"""Events: each transition is told once, in words, as a warning where somebody should look."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase
from speedrun_operator.api.status import Allocation, Condition, Status
from speedrun_operator.lifecycle.notices import between
from unit.builders import NOON


def status(phase: Phase | None = None, *conditions: Condition, **fields: Any) -> Status:
    return Status(phase=phase, conditions=conditions, **fields)


def condition(type_: str, status_: str, reason: str = "Reason", message: str = "words") -> Condition:
    return Condition(
        type=ConditionType(type_), status=status_, reason=reason, message=message, last_transition_time=NOON
    )


def allocation(number: int, reason: str | None = None, message: str | None = None) -> Allocation:
    state = AllocationState.ENDED if reason else AllocationState.SUBMITTING
    return Allocation(id=number, name=f"sr-{number}", state=state, claimed=NOON, reason=reason, message=message)


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
            status(None, condition("Submitted", "False")),
            status(None, condition("Submitted", "True", "Submitted", "job 17")),
            [(False, "Submitted", "job 17")],
            id="submitted",
        ),
        pytest.param(
            status(None, condition("Submitted", "True", "Submitted", "job 17")),
            status(None, condition("Submitted", "True", "Submitted", "job 18")),
            [],
            id="other words for the same",
        ),
        pytest.param(
            status(None, condition("Started", "True")), status(None, condition("Started", "False")), [], id="requeued"
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
            status(None, condition("BackendReachable", "False", "HostKeyChanged")),
            [],
            id="still out of reach",
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
            status(None, allocations=(allocation(0),)),
            status(None, allocations=(allocation(0, "JobLost", "nobody knows job 17"), allocation(1))),
            [(True, "JobLost", "nobody knows job 17; another job follows")],
            id="lost, and tried again",
        ),
        pytest.param(status(), status(None, allocations=(allocation(0),)), [], id="the first allocation"),
    ],
)
def test_between(old: Status, new: Status, told: list[tuple[bool, str, str]]) -> None:
    assert [(each.warning, each.reason, each.message) for each in between(old, new)] == told
    assert between(new, new) == ()
