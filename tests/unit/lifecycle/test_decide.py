"""What only the whole decision shows: words of conditions, what a status remembers, what goes on without the spec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.api.phases import ConditionType
from speedrun_operator.api.status import Status
from speedrun_operator.lifecycle.decide import decide, is_finished
from speedrun_operator.lifecycle.observation import Accepted, Unknown
from unit.builders import (
    REPLAY,
    STARTED,
    TRAINING,
    UID,
    JobLog,
    at,
    ended,
    finished_log,
    queued,
    resource,
    running,
    situation,
)
from unit.lifecycle.lives import NO_LOGIN, SILENCE, Life, Step, edited, heard, saw, seen, woken

JOB = "sr-c1c1c1c1-" + UID + "-0"
ACCEPTED = heard(Accepted("17", at(1)))


def lived(*steps: Step, spec: dict[str, Any] | None = None) -> Life:
    life = Life(spec) if spec else Life()
    for step in steps:
        life.live(step)
    return life


@pytest.mark.parametrize(
    ("steps", "type_", "reason", "message"),
    [
        ([woken()], "Admitted", "Admitted", "the plan is in status.plan"),
        ([woken()], "Submitted", "Submitting", ""),
        (
            [woken(), heard(Unknown("SubmissionUnknown", "sbatch did not say"))],
            "Submitted",
            "SubmissionUnknown",
            "sbatch did not say",
        ),
        ([woken(), ACCEPTED], "Submitted", "Submitted", f"job 17, named {JOB}"),
        ([woken(), ACCEPTED], "Started", "NotStarted", ""),
        (
            [woken(), ACCEPTED, seen(queued("Priority"))],
            "Started",
            "Priority",
            "job 17 waits: jobs of higher priority go first",
        ),
        (
            [woken(), ACCEPTED, seen(queued("ReqNodeNotAvail, UnavailableNodes:node[1-2]"))],
            "Started",
            "ReqNodeNotAvail",
            "job 17 waits: nodes that it needs are down, drained or reserved; it starts when they are back (node[1-2])",
        ),
        ([woken(), ACCEPTED, seen(running())], "Started", "Started", "job 17 runs on node-a"),
        ([woken(), ACCEPTED, seen(running(node=None, started=None))], "Started", "Started", "job 17 runs"),
        ([woken(), ACCEPTED, seen(ended(finished_log("3.2")))], "Started", "Started", "job 17 ran on node-a"),
        (
            [woken(), ACCEPTED, seen(queued("Priority")), seen(ended(None, "Cancelled", started=None))],
            "Started",
            "Cancelled",
            "job 17 ended before it started",
        ),
        ([woken(), ACCEPTED, SILENCE], "BackendReachable", "LoginUnreachable", "the login does not answer"),
        (
            [woken(), ACCEPTED, seen(ended(finished_log("3.2")))],
            "Finished",
            "TargetReached",
            "val_loss 3.2: target 3.28 reached",
        ),
    ],
)
def test_words_of_a_condition(steps: list[Step], type_: str, reason: str, message: str) -> None:
    condition = lived(*steps).status.condition(ConditionType(type_))
    assert condition is not None
    assert (condition.reason, condition.message) == (reason, message)


def test_before_the_backend_was_asked_nothing_is_said_of_it() -> None:
    assert lived(woken()).status.condition(ConditionType.BACKEND_REACHABLE) is None


@pytest.mark.parametrize("step", [woken(), NO_LOGIN], ids=["admitted", "waiting"])
def test_the_plan_is_shown_from_the_first(step: Step) -> None:
    plan = lived(step, spec={"recipe": {"name": "modded-nanogpt"}, "gpus": {"type": "h200"}}).status.plan
    assert plan is not None
    assert (plan.recipe, plan.gpu_type, plan.gpu_count, plan.target) == ("modded-nanogpt", "H200", 8, 3.28)
    assert (plan.partition, plan.parameters) == (None, {"trainingShards": "9"}), "it has no place yet"


def test_the_generation_that_was_looked_at_is_said() -> None:
    life = lived(woken())
    life.metadata = {"generation": 4}
    status = life.live(ACCEPTED).status
    assert status.observed_generation == 4
    assert {each.observed_generation for each in status.conditions} == {4, 1}  # what was not said again stays


def test_a_running_job_goes_on_when_its_spec_can_no_longer_be_planned() -> None:
    life = lived(woken(), ACCEPTED)
    life.spec = {"recipe": {"name": "gone-with-an-upgrade"}}
    assert life.live(seen(running(TRAINING))).status.phase == "Training"
    assert life.live(seen(ended(finished_log("3.27")))).status.phase == "Succeeded"


def test_a_running_job_goes_on_when_the_login_is_no_longer_configured() -> None:
    life = lived(woken(), ACCEPTED, seen(running(TRAINING)))
    assert life.live(NO_LOGIN).status.phase == "Training"


def test_a_plan_that_was_taken_out_of_status_is_made_again() -> None:
    life = lived(woken(), ACCEPTED, seen(running(TRAINING)))
    del life.stored["plan"]
    status = life.live(seen(ended(finished_log("3.27")))).status
    assert (status.phase, status.plan and status.plan.target) == ("Succeeded", 3.28)


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="absent"),
        pytest.param({"phase": "Sleeping"}, id="a phase that is none"),
        pytest.param({"phase": "Training", "val_loss": "low"}, id="a loss that is no number"),
        pytest.param({"allocations": [{"id": 0}]}, id="half an allocation"),
    ],
)
def test_a_status_that_cannot_be_read_is_worked_out_again(status: dict[str, Any]) -> None:
    decision = decide(situation(resource(status=status)))
    assert [each.name for each in decision.status.allocations] == [JOB]
    assert [each.allocation for each in decision.submit] == [0]


def test_observations_of_other_allocations_change_nothing() -> None:
    life = lived(woken(), ACCEPTED)
    before = life.status
    after = life.decide(woken(observed={7: ended(finished_log("3.1"))}, outcomes={3: Accepted("9", None)})).status
    assert (after.allocations, after.runs, after.phase) == (before.allocations, before.runs, before.phase)


def test_is_finished() -> None:
    assert not is_finished(Status())
    assert not is_finished(lived(woken()).status)
    assert is_finished(lived(woken(), ACCEPTED, seen(ended(finished_log("3.2")))).status)


FAILED_NODE = seen(ended(STARTED, "NodeFailure"))
DEADLINE = {**REPLAY, "activeDeadlineSeconds": 1000}


@pytest.mark.parametrize(
    ("spec", "steps", "seconds"),
    [
        pytest.param(REPLAY, [woken()], None, id="nothing to wait for"),
        pytest.param(DEADLINE, [woken()], 1010, id="the deadline"),
        pytest.param(REPLAY, [woken(), ACCEPTED, FAILED_NODE], 40, id="the next attempt"),
        pytest.param(DEADLINE, [woken(), ACCEPTED, FAILED_NODE], 40, id="whichever comes first"),
        pytest.param(
            {**REPLAY, "activeDeadlineSeconds": 25}, [woken(), ACCEPTED, FAILED_NODE], 35, id="be it the deadline"
        ),
        pytest.param(DEADLINE, [woken(), ACCEPTED, edited(suspend=True), woken()], None, id="suspended"),
        pytest.param(
            DEADLINE, [woken(), edited(suspend=True), woken(), edited(suspend=False)], 1030, id="later when resumed"
        ),
        pytest.param(DEADLINE, [woken(), ACCEPTED, seen(ended(finished_log("3.27")))], None, id="finished"),
        pytest.param(DEADLINE, [NO_LOGIN], None, id="not admitted"),
        pytest.param({**REPLAY, "activeDeadlineSeconds": 5}, [woken(), ACCEPTED], None, id="past it already"),
    ],
)
def test_when_to_look_again(spec: dict[str, Any], steps: list[Step], seconds: float | None) -> None:
    life = Life(spec)
    decisions = [life.live(step) for step in steps]
    assert decisions[-1].wake_at == (None if seconds is None else at(seconds))


@pytest.mark.parametrize("ended_at", [-100_000, 0, 29, 100_000])
def test_the_wait_before_a_retry_is_by_our_own_clock(ended_at: float) -> None:
    """The cluster's may be apart."""
    life = lived(woken(), ACCEPTED, seen(ended(STARTED, "NodeFailure", ended=at(ended_at), asked=at(ended_at))))
    assert life.status.next_attempt_time == at(40)
    assert life.live(woken(), 9).submit == ()
    assert [each.allocation for each in life.live(woken(), 1).submit] == [1]


def test_a_retry_says_when() -> None:
    life = lived(woken(), ACCEPTED)
    told = life.live(seen(ended(STARTED, "NodeFailure", message="the node failed"))).notices
    words = "the node failed: if the same node fails again, name it in spec.slurm.exclude"
    assert told[-1].message == f"{words}; tried again from 2026-07-01T12:00:40Z"
    submitted = life.status.condition(ConditionType.SUBMITTED)
    assert submitted and (submitted.status, submitted.reason) == ("False", "NodeFailure")
    assert submitted.message == told[-1].message


def test_while_nothing_can_be_submitted_the_deadline_still_counts() -> None:
    life = lived(woken(), ACCEPTED, spec=DEADLINE)
    decision = life.live(NO_LOGIN, 1000)
    assert (decision.cancel, life.status.allocations[0].ending) == ((0,), "DeadlineExceeded")


def test_a_refused_spec_is_finished_at_its_time() -> None:
    life = Life({"recipe": {"name": "nobody-has-it"}})
    assert life.live(woken()).status.completion_time == at(10)
    assert life.live(woken()).status.completion_time == at(10)


def test_times_of_one_run_are_not_shown_as_those_of_another() -> None:
    life = Life({**REPLAY, "runs": 2, "parallelism": 2})
    life.live(woken())
    life.live(woken(outcomes={0: Accepted("17", at(1)), 1: Accepted("18", at(1))}))
    other = JobLog().job(18).trains(1)
    prepared = STARTED.begin("data", 5).end("data", 15).begin("train", 15).step(19).validation("3.2", time=10_000)
    life.live(saw({0: running(prepared.end("train", 75)), 1: running(other)}))
    clock = life.status.clock
    assert clock is not None
    assert (clock.data_milliseconds, clock.compile_milliseconds) == (10_000, 50_000)
    life.live(saw({0: ended(prepared.end("train", 75).finish()), 1: running(other)}))
    clock = life.status.clock
    assert clock is not None
    assert (clock.data_milliseconds, clock.compile_milliseconds, clock.train_milliseconds) == (None, None, 250)


HOSTILE = {
    "steps and times without end": "step:1/999999999 train_time:999999999999999ms step_avg:999999999999999s",
    "a loss of many digits": "step:20/20 val_loss:3.123456789012345678901234 train_time:1ms step_avg:1ms",
    "a huge loss": "step:20/20 val_loss:999999999999999999999999e99 train_time:1ms step_avg:1ms",
    "a loss below zero": "step:20/20 val_loss:-1e-99 train_time:1ms step_avg:1ms",
    "a stage named by a novel": "SPEEDRUN run=0 stage=" + "x" * 4000 + " begin",
    "a stage named with line ends": "SPEEDRUN run=0 stage=a%0Ab%00c begin",
    "a stage that took for ever": "\n".join(
        ["SPEEDRUN run=0 stage=data begin time=0", "SPEEDRUN run=0 stage=data end exit=0 time=999999999999"]
    ),
    "an exit code of many digits": "SPEEDRUN run=0 stage=train begin\nSPEEDRUN run=0 end exit=999999999999999999",
    "another run": "SPEEDRUN run=255 begin\nstep:20/20 val_loss:1.0 train_time:1ms step_avg:1ms",
}


@pytest.mark.parametrize("lines", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("reason", ["Completed", "JobFailed", "TimeLimit"])
def test_no_log_makes_a_status_that_the_server_refuses(lines: str, reason: str) -> None:
    log = TRAINING.line(*lines.split("\n"))
    lived(woken(), ACCEPTED, seen(running(log)), seen(ended(log, reason)))  # each status is held to the CRD's schema


WORDS = [
    *("step:", "20/20 ", "1/20 ", "val_loss:", "3.2 ", "nan ", "train_time:", "7ms ", "step_avg:", "Resetting Model"),
    *("SPEEDRUN ", "run=0 ", "stage=", "train ", "begin ", "end ", "exit=", "attempt ", "time=", "9" * 18, "1e9 ", "-"),
]


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS) | st.text(max_size=9), max_size=8).map("".join), max_size=12))
def test_whatever_a_job_prints_its_status_can_be_written(lines: list[str]) -> None:
    log = STARTED.begin("train").line(*lines)
    life = lived(woken(), ACCEPTED, seen(running(log)), seen(ended(log)))
    assert life.status.phase in ("Succeeded", "Missed", "Failed")


def test_a_result_of_another_run_in_the_log_is_not_ours() -> None:
    log = TRAINING.line("SPEEDRUN run=1 begin").validation("1.0")
    assert lived(woken(), ACCEPTED, seen(ended(JobLog(log.lines)))).status.reason == "NoResult"


@pytest.mark.parametrize("taken", ["runs", "allocations", "conditions", "phase", "plan"])
def test_what_somebody_took_out_of_the_status_comes_back_with_the_result(taken: str) -> None:
    """Whoever may write status may also spoil it; nothing then waits for ever, and no other job is made."""
    life = lived(woken(), ACCEPTED, seen(running(STARTED)))
    del life.stored[taken]
    if taken == "allocations":
        assert [each.allocation for each in life.live(woken()).submit] == [0], "the same name is looked up"
        life.live(ACCEPTED)
    life.live(seen(running(TRAINING)))
    assert (life.status.phase, life.status.val_loss) == ("Training", 10.8258)
    life.live(seen(ended(finished_log("3.2"))))
    assert (life.status.phase, life.status.val_loss, life.status.runs_summary) == ("Succeeded", 3.2, "1/1")
    assert [each.name for each in life.status.allocations] == [JOB]
