"""Which runs are run again after their allocation ended, how often, and when: only what the infrastructure did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.retry import Retries
from speedrun_operator.lifecycle.situation import Policy
from speedrun_operator.planning import RunPlan
from unit.builders import NOON, at, plan_of, resource

POLICY = Policy()
INFRASTRUCTURE = {"NodeFailure", "Preempted", "LaunchFailed", "SourceUnreachable"}
INFRASTRUCTURE |= {
    "Evicted",
    "NodeLost",
    "Drained",
    "PodPreempted",
    "PodRefused",
    "PodGone",
    "ContainerNotStarted",
}  # of pods
# Up to bounds of their own: lost jobs, restarts of the nodes, once the recipe's own time limit, and a missing entry.
ALWAYS = {"JobLost", "NodesRestarted", "Suspended", "TimeLimit", "CacheMissing"}


def allocation(number: int, reason: str | None, runs: tuple[int, ...] = (0,)) -> Allocation:
    """One that ended with `reason`; None: one that is live."""
    state = AllocationState.ENDED if reason else AllocationState.RUNNING
    return Allocation(id=number, name=f"sr-{number}", state=state, claimed=NOON, reason=reason, runs=runs)


def chain(reasons: Sequence[str | None], runs: tuple[int, ...] = (0,)) -> tuple[Allocation, ...]:
    return tuple(allocation(number, reason, runs) for number, reason in enumerate(reasons))


def failed(index: int = 0, allocation: int = 0, reason: str = "NodeFailure") -> Run:
    words = "the node failed"
    return Run(index=index, arm="A", allocation=allocation, phase=Phase.FAILED, reason=reason, message=words)


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
    before = failed(reason=reason.value)
    after = retries(chain([reason.value])).given_back(before, allocation(0, reason.value))
    assert is_run_again(after) == (reason.value in INFRASTRUCTURE | ALWAYS)
    assert is_run_again(after) or after == before, "what is not tried again stays as it failed"


@pytest.mark.parametrize("reason", [None, "SomethingNew"])
def test_a_reason_that_nobody_knows_is_not_tried_again(reason: str | None) -> None:
    ended = allocation(0, "x").model_copy(update={"reason": reason})
    before = failed().model_copy(update={"reason": reason})
    assert retries((ended,)).given_back(before, ended) == before


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
        pytest.param(["NodesRestarted"] * 5, 0, True, id="the nodes restarted five times"),
        pytest.param(["NodesRestarted"] * 6, 20, False, id="six times"),
        pytest.param(["NodesRestarted"] * 5 + ["HFRateLimit"], 1, True, id="which do not count"),
        pytest.param(["HFRateLimit", "RegistryRateLimit"], 1, False, id="limits of others count"),
        pytest.param(["TimeLimit"], 0, True, id="more time, once"),
    ],
)
def test_how_often(reasons: list[str], limit: int, again: bool) -> None:
    allocations = chain(reasons)
    last = allocations[-1]
    for known in (0, len(allocations) - 1):
        after = retries(allocations, limit, known=known).given_back(failed(0, last.id, last.reason or ""), last)
        assert is_run_again(after) is again


def test_more_time_is_given_once_and_only_where_the_spec_sets_no_limit() -> None:
    run = failed(reason="TimeLimit")
    first = allocation(0, "TimeLimit")
    longer = allocation(1, "TimeLimit").model_copy(update={"time_limit_seconds": 7200})
    assert is_run_again(retries((first,)).given_back(run, first))
    assert not is_run_again(retries((first, longer)).given_back(run, longer))
    assert not is_run_again(retries((first,)).given_back(run, first, trained=True))
    spec = Spec.model_validate({"recipe": {"name": "replay"}, "timeLimitSeconds": 3600})
    assert not is_run_again(Retries((first,), frozenset({0}), spec, POLICY).given_back(run, first))


@pytest.mark.parametrize(
    ("most", "again"),
    [
        pytest.param(None, True, id="the partition has no limit"),
        pytest.param(22, True, id="it allows twice the time"),
        pytest.param(12, True, id="or some more"),
        pytest.param(11, False, id="it allows no more"),
    ],
)
def test_more_time_is_given_where_the_partition_has_it(most: int | None, again: bool) -> None:
    each = resource()
    plan = plan_of(each)
    assert isinstance(plan, RunPlan) and each.spec and plan.time_limit_minutes == 11
    first, run = allocation(0, "TimeLimit"), failed(reason="TimeLimit")
    after = Retries((first,), frozenset({0}), each.spec, POLICY, replace(plan, most_minutes=most)).given_back(
        run, first
    )
    assert is_run_again(after) is again
    if not again:
        assert after.reason == "TimeLimit"
        assert "its partition allows no more than 11 min: see spec.slurm.partition" in (after.message or "")


@pytest.mark.parametrize(
    ("reason", "trained", "again"),
    [
        pytest.param("NodeFailure", True, True, id="the infrastructure, whenever"),
        pytest.param("NCCLTimeout", False, True, id="what may be the program, before Training"),
        pytest.param("NCCLTimeout", True, False, id="and after: the run counts as failed"),
        pytest.param("CudaOOM", False, False, id="the same would fail again"),
    ],
)
def test_a_run_that_reached_training_is_run_again_for_the_infrastructure_only(
    reason: str, trained: bool, again: bool
) -> None:
    one = allocation(0, reason)
    assert is_run_again(retries((one,)).given_back(failed(reason=reason), one, trained=trained)) is again


def test_lost_jobs_are_counted_for_each_run() -> None:
    others = [allocation(number, "JobLost", (1,)) for number in range(6)]
    allocations = (*others, allocation(6, "JobLost", (0, 1)))
    history = retries(allocations)
    assert is_run_again(history.given_back(failed(0, 6, "JobLost"), allocations[-1]))
    assert not is_run_again(history.given_back(failed(1, 6, "JobLost"), allocations[-1]))


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
        (["NodeFailure"], 0, "NodeFailure", "the node failed"),
        (["JobLost"] * 6, 2, "JobLost", "the node failed"),
        (["NodeFailure", "NodeFailure", "JobFailed"], 1, "JobFailed", "the node failed"),
    ],
)
def test_what_is_said_when_it_is_not_tried_again(reasons: list[str], limit: int, reason: str, message: str) -> None:
    allocations = chain(reasons)
    last = allocations[-1]
    after = retries(allocations, limit).given_back(failed(reason=last.reason or ""), last)
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
        pytest.param(["RegistryRateLimit"], 0, None, 4100.0, id="a registry's limit: an hour"),
        pytest.param(["HFRateLimit"], 0, None, 1100.0, id="Hugging Face's: ten minutes"),
        pytest.param(["NodesRestarted"], 0, None, 680.0, id="until the nodes are back"),
        pytest.param(["NodeFailure", "NodesRestarted"], 1, 505.0, 680.0, id="which is no failure that doubles it"),
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
    assert is_run_again(retries(lost[:1], policy=policy).given_back(failed(reason="JobLost"), lost[0]))
    assert not is_run_again(retries(lost, policy=policy).given_back(failed(reason="JobLost"), lost[1]))
    allocations = chain(["Preempted"] * 2)
    assert retries(allocations[:1], policy=policy).not_before(None, at(0)) == at(3)
    assert retries(allocations, policy=policy).not_before(None, at(0)) == at(5)
