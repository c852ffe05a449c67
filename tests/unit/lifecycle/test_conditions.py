"""Conditions: the time of the last transition is that of the status, not of the words."""

from __future__ import annotations

import pytest

from speedrun_operator.api.phases import ConditionType
from speedrun_operator.api.status import Condition
from speedrun_operator.lifecycle.conditions import Say, update, word
from unit.builders import at

STARTED, FINISHED = ConditionType.STARTED, ConditionType.FINISHED


def condition(type_: ConditionType, status: str, reason: str, message: str, generation: int, moved: float) -> Condition:
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=at(moved),
    )


OLD = condition(STARTED, "False", "Priority", "waits", 1, 10)


@pytest.mark.parametrize(
    ("say", "expected"),
    [
        pytest.param(
            Say(STARTED, "False", "Priority", "waits"), condition(STARTED, "False", "Priority", "waits", 2, 10)
        ),
        pytest.param(Say(STARTED, "False", "Resources", ""), condition(STARTED, "False", "Resources", "", 2, 10)),
        pytest.param(Say(STARTED, "True", "Started", "runs"), condition(STARTED, "True", "Started", "runs", 2, 99)),
    ],
    ids=["the same", "other words", "another status"],
)
def test_said_again(say: Say, expected: Condition) -> None:
    assert update((OLD,), [say], generation=2, now=at(99.7)) == (expected,)


def test_what_is_not_said_stays_and_the_order_is_that_of_a_life() -> None:
    said = update(
        (OLD,),
        [Say(FINISHED, "False", "InProgress"), Say(ConditionType.ADMITTED, "True", "Admitted")],
        generation=7,
        now=at(1),
    )
    assert [each.type for each in said] == ["Admitted", "Started", "Finished"]
    assert said[1] == OLD


def test_long_messages_are_cut() -> None:
    (said,) = update((), [Say(STARTED, "True", "Started", "x" * 5000)], generation=1, now=at(0))
    assert said.message == "x" * 1024


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Priority", "Priority"),
        ("(Resources)", "Resources"),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-9]", "ReqNodeNotAvail"),
        ("AssocGrpGRES", "AssocGrpGRES"),
        ("QOSMaxJobsPerUserLimit\nreally", "QOSMaxJobsPerUserLimit"),
        ("launch failed requeued held", "launch"),
        ("x" * 500, "x" * 128),
        ("", "Unknown"),
        ("42%", "Unknown"),
        ("é", "Unknown"),
    ],
)
def test_a_reason_is_one_word(text: str, expected: str) -> None:
    assert word(text) == expected
    (said,) = update((), [Say(STARTED, "False", text)], generation=1, now=at(0))
    assert said.reason == expected
