"""Which runs are run again after their allocation ended, how often, and when: only what the infrastructure did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.retry import Retries
from speedrun_operator.lifecycle.situation import Policy
from unit.builders import NOON, at

POLICY = Policy()
INFRASTRUCTURE = {"NodeFailure", "Preempted", "LaunchFailed"}
ALWAYS = {"JobLost", "Suspended"}  # lost jobs up to a bound of their own


def allocation(number: int, reason: str | None, runs: tuple[int, ...] = (0,)) -> Allocation:
    """One that ended with `reason`; None: one that is live."""
    state = AllocationState.ENDED if reason else AllocationState.RUNNING
    return Allocation(id=number, name=f"sr-{number}", state=state, claimed=NOON, reason=reason, runs=runs)


def chain(reasons: Sequence[str | None], runs: tuple[int, ...] = (0,)) -> tuple[Allocation, ...]:
    return tuple(allocation(number, reason, runs) for number, reason in enumerate(reasons))


def failed(index: int = 0, allocation: int = 0) -> Run:
    return Run(index=index, arm="A", allocation=allocation, phase=Phase.FAILED, reason="Any", message="the node failed")


def retries(allocations: tuple[Allocation, ...], limit: int = 2, *, known: int = 0, policy: Policy = POLICY) -> Retries:
    """`known`: so many of the allocations had ended before."""
    spec = Spec.model_validate({"recipe": {"name": "replay"}, "backoffLimit": limit})
    before = [each.model_copy(update={"state": AllocationState.RUNNING}) for each in allocations[known:]]
    return Retries.after((*allocations[:known], *before), allocations, spec, policy)


def is_run_again(run: Run) -> bool:
    assert (run.phase is Phase.PENDING) != (run.phase is Phase.FAILED)
    if run.phase is Phase.PENDING:
        assert run == Run(index=run.index, arm=run.arm, phase=Phase.PENDING), "nothing of the failed attempt is left"
    return run.phase is Phase.PENDING


@pytest.mark.parametrize("reason", list(Reason))
def test_the_reasons_for_which_it_is_run_again(reason: Reason) -> None:
    after = retries(chain([reason.value])).given_back(failed(), allocation(0, reason.value))
    assert is_run_again(after) == (reason.value in INFRASTRUCTURE | ALWAYS)
    assert is_run_again(after) or after == failed(), "what is not tried again stays as it failed"


@pytest.mark.parametrize("reason", [None, "SomethingNew"])
def test_a_reason_that_nobody_knows_is_not_tried_again(reason: str | None) -> None:
    ended = allocation(0, "x").model_copy(update={"reason": reason})
    assert retries((ended,)).given_back(failed(), ended) == failed()


@pytest.mark.parametrize(
    ("reasons", "limit", "again"),
    [
        pytest.param(["NodeFailure"], 0, False, id="nothing is tried again"),
        pytest.param(["NodeFailure"], 1, True, id="once"),
        pytest.param(["NodeFailure", "NodeFailure"], 1, False, id="and no more"),
        pytest.param(["NodeFailure", "Preempted", "LaunchFailed"], 3, True, id="whatever it was"),
        pytest.param(["NodeFailure", "Preempted", "LaunchFailed"], 2, False, id="counted together"),
        pytest.param(["JobLost", "JobLost", "NodeFailure"], 1, True, id="lost jobs do not count"),
        pytest.param(["Suspended"] * 5 + ["NodeFailure"], 1, True, id="nor do suspensions"),
        pytest.param(["Completed", "JobFailed", "Cancelled", "Stalled", "Preempted"], 1, True, id="nor what is final"),
        pytest.param(["NodeFailure", "JobLost"], 0, True, id="a lost job after the limit"),
        pytest.param(["NodeFailure", "Suspended"], 0, True, id="a suspension after the limit"),
        pytest.param(["JobLost"] * 5, 0, True, id="lost five times"),
        pytest.param(["JobLost"] * 6, 0, False, id="lost six times"),
        pytest.param(["JobLost"] * 6, 20, False, id="which is no matter of the limit"),
        pytest.param(["JobLost"] * 5 + ["Suspended"] * 3 + ["JobLost"], 2, False, id="suspended between"),
    ],
)
def test_how_often(reasons: list[str], limit: int, again: bool) -> None:
    allocations = chain(reasons)
    last = allocations[-1]
    for known in (0, len(allocations) - 1):
        after = retries(allocations, limit, known=known).given_back(failed(allocation=last.id), last)
        assert is_run_again(after) is again


def test_lost_jobs_are_counted_for_each_run() -> None:
    others = [allocation(number, "JobLost", (1,)) for number in range(6)]
    allocations = (*others, allocation(6, "JobLost", (0, 1)))
    history = retries(allocations)
    assert is_run_again(history.given_back(failed(0, 6), allocations[-1]))
    assert not is_run_again(history.given_back(failed(1, 6), allocations[-1]))


def test_of_allocations_that_fail_at_once_as_many_are_tried_again_as_the_limit_lets() -> None:
    allocations = tuple(allocation(number, "NodeFailure", (number,)) for number in range(4))
    history = retries(allocations, 2)
    given = [history.given_back(failed(number, number), allocations[number]) for number in range(4)]
    assert [is_run_again(each) for each in given] == [True, True, False, False]


def test_of_one_that_failed_before_and_one_with_a_lower_number_now() -> None:
    """Only the second failure is news, so it is the second, though it has the lower number."""
    late, early = allocation(0, "NodeFailure", (0,)), allocation(1, "NodeFailure", (1,))
    running = late.model_copy(update={"state": AllocationState.RUNNING, "reason": None})
    spec = Spec.model_validate({"recipe": {"name": "replay"}, "backoffLimit": 1})
    history = Retries.after((running, early), (late, early), spec, POLICY)
    assert not is_run_again(history.given_back(failed(0, 0), late))


@pytest.mark.parametrize(
    ("reasons", "limit", "reason", "message"),
    [
        (
            ["NodeFailure"] * 3,
            2,
            "BackoffLimitExceeded",
            "3 allocations failed, and backoffLimit is 2; the last: the node failed",
        ),
        (
            ["NodeFailure"] * 4,
            1,
            "BackoffLimitExceeded",  # lowered meanwhile
            "4 allocations failed, and backoffLimit is 1; the last: the node failed",
        ),
        (["NodeFailure"], 0, "Any", "the node failed"),
        (["JobLost"] * 6, 2, "Any", "the node failed"),
        (["NodeFailure", "NodeFailure", "TimeLimit"], 1, "Any", "the node failed"),
    ],
)
def test_what_is_said_when_it_is_not_tried_again(reasons: list[str], limit: int, reason: str, message: str) -> None:
    allocations = chain(reasons)
    after = retries(allocations, limit).given_back(failed(), allocations[-1])
    assert (after.phase, after.reason, after.message) == (Phase.FAILED, reason, message)


WAITS = [10, 20, 40, 80, 160, 320, 600, 600]


@pytest.mark.parametrize(("failures", "seconds"), [*enumerate(WAITS, start=1)])
def test_the_wait_doubles_up_to_ten_minutes(failures: int, seconds: int) -> None:
    allocations = chain(["NodeFailure"] * failures)
    assert retries(allocations, known=failures - 1).not_before(None, at(1000)) == at(1000 + seconds)


def test_the_wait_of_a_thousandth_failure() -> None:
    assert retries(chain(["NodeFailure"] * 1000), known=999).not_before(None, at(0)) == at(600)


@pytest.mark.parametrize(
    ("reasons", "known", "before", "expected"),
    [
        pytest.param([None], 0, None, None, id="nothing has failed"),
        pytest.param(["NodeFailure"], 1, 70.0, 70.0, id="told before: that time stays"),
        pytest.param(["NodeFailure"], 1, None, None, id="over and gone"),
        pytest.param(["NodeFailure", "JobLost"], 1, None, None, id="a lost job waits for nothing"),
        pytest.param(["NodeFailure", "Suspended"], 1, 70.0, 70.0, id="nor does a suspension"),
        pytest.param(["NodeFailure", "JobFailed"], 1, None, None, id="what is final has no next time"),
        pytest.param(["NodeFailure", "JobLost", "Preempted"], 2, None, 520.0, id="the second failure of the kind"),
        pytest.param(["NodeFailure", "NodeFailure"], 0, None, 520.0, id="two at once"),
        pytest.param(["NodeFailure", "NodeFailure"], 1, 505.0, 520.0, id="a second one during the wait"),
    ],
)
def test_when_the_next_is_opened(
    reasons: list[str | None], known: int, before: float | None, expected: float | None
) -> None:
    found = retries(chain(reasons), known=known).not_before(None if before is None else at(before), at(500.75))
    assert found == (None if expected is None else at(expected))


def test_the_bounds_are_those_of_the_policy() -> None:
    policy = Policy(most_lost=1, retry_first=timedelta(seconds=3), retry_longest=timedelta(seconds=5))
    lost = chain(["JobLost"] * 2)
    assert is_run_again(retries(lost[:1], policy=policy).given_back(failed(), lost[0]))
    assert not is_run_again(retries(lost, policy=policy).given_back(failed(), lost[1]))
    allocations = chain(["Preempted"] * 2)
    assert retries(allocations[:1], policy=policy).not_before(None, at(0)) == at(3)
    assert retries(allocations, policy=policy).not_before(None, at(0)) == at(5)
