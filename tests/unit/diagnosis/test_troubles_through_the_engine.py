"""Each trouble as a user meets it: a job's log goes in; status, conditions and events say what it was and what to do.

The engine, the parser and the state machine are the operator's own; jobs and objects are in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase, Reason
from speedrun_operator.api.status import Status
from speedrun_operator.backends.memory import Cluster, Job, Step
from speedrun_operator.planning import RunPlan
from unit.builders import REPLAY, JobLog
from unit.diagnosis.signs import SIGNS
from unit.diagnosis.troubles import GUIDE, SIGNATURES, TORCHRUN, Trouble
from unit.engine_world import running_engine

TROUBLES = {**GUIDE, **SIGNATURES, **SIGNS}
DONE = JobLog().attempt().ran(0, "3.27").closed()


class Jobs:
    """What the jobs of a cluster do, one after the other: a log, and the backend's word for the end."""

    def __init__(self, *lives: tuple[JobLog, str]) -> None:
        self.lives = list(lives)
        self.plans: list[RunPlan] = []

    def __call__(self, plan: RunPlan) -> Iterable[Step]:
        log, ended = self.lives[min(len(self.plans), len(self.lives) - 1)]
        self.plans.append(plan)
        return (Job.start, lambda job: job.write(log.text), lambda job: job.end(Reason(ended)))


def first_ended(status: Status) -> bool:
    return bool(status.allocations) and status.allocations[0].state is AllocationState.ENDED


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
async def test_a_trouble(trouble: Trouble) -> None:
    jobs = Jobs((trouble.log, trouble.ended), (DONE, "Completed"))
    async with running_engine(Cluster(script=jobs)) as world:
        status = await world.until("ended", first_ended)
        first = status.allocations[0]
        kind, _, words = next(each for each in world.told() if each[1] == trouble.reason)
        assert kind == "Warning"
        assert trouble.remedy in words
        if trouble.wait is None:
            status = await world.until("finished", lambda status: status.phase is Phase.FAILED)
            finished = status.condition(ConditionType.FINISHED)
            assert finished and (finished.status, finished.reason) == ("True", trouble.reason)
            assert trouble.remedy in finished.message
            assert (status.reason, len(status.allocations)) == (trouble.reason, 1)
            return
        assert first.reason == trouble.reason
        assert trouble.remedy in (first.message or "")
        assert "tried again" in words
        if trouble.wait == 0:
            status = await world.until("finished", lambda status: status.phase is Phase.SUCCEEDED)
            assert len(status.allocations) == 2
            return
        assert status.phase is Phase.PENDING
        assert status.reason == trouble.reason
        submitted = status.condition(ConditionType.SUBMITTED)
        assert submitted and (submitted.status, submitted.reason) == ("False", trouble.reason)
        assert "tried again from" in submitted.message
        assert status.next_attempt_time
        waits = status.next_attempt_time - submitted.last_transition_time
        assert abs(waits - timedelta(seconds=trouble.wait)) <= timedelta(seconds=5)
        assert len(status.allocations) == 1


async def test_a_first_run_at_the_recipes_time_limit_gets_twice_the_time_once() -> None:
    limit = GUIDE["the job ends at the time limit"]
    jobs = Jobs((limit.log, "TimeLimit"))
    async with running_engine(Cluster(script=jobs)) as world:
        status = await world.until("finished", lambda status: status.phase is Phase.FAILED)
        assert [plan.time_limit_minutes for plan in jobs.plans] == [11, 22]
        assert [each.time_limit_seconds for each in status.allocations] == [None, 1320]
        assert status.plan and status.plan.time_limit_seconds == 660
        assert status.reason == "TimeLimit"
        assert ("Normal", "MoreTime", "the next job gets 22 min, since the spec sets no time limit") in world.told()


async def test_a_time_limit_of_the_specs_own_stands() -> None:
    jobs = Jobs((GUIDE["the job ends at the time limit"].log, "TimeLimit"))
    async with running_engine(Cluster(script=jobs), {**REPLAY, "timeLimitSeconds": 600}) as world:
        await world.until("finished", lambda status: status.phase is Phase.FAILED)
        assert len(jobs.plans) == 1


async def test_a_run_with_its_last_validation_is_never_run_again() -> None:
    """Whatever the job came to afterwards."""
    log = JobLog().attempt().trains(0, 19).validation("3.27", time=58432).line("429 Client Error: Too Many Requests")
    jobs = Jobs((log.line("srun: error: Node failure on a"), "NodeFailure"))
    async with running_engine(Cluster(script=jobs)) as world:
        status = await world.until("finished", lambda status: status.phase is Phase.SUCCEEDED)
        assert (status.val_loss, status.train_time, len(jobs.plans)) == (3.27, "58.432s", 1)


@pytest.mark.parametrize(
    ("line", "again"),
    [
        pytest.param("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus", True, id="the infrastructure"),
        pytest.param("[rank3] Watchdog caught collective operation timeout: WorkNCCL", False, id="maybe the program"),
        pytest.param("RuntimeError: CUDA error: an illegal memory access was encountered", False, id="the program"),
    ],
)
async def test_a_run_that_reached_training_counts_unless_the_infrastructure_failed(line: str, again: bool) -> None:
    log = JobLog().attempt().trains(0).line(line, *TORCHRUN).end("train", code=1).finish(1)
    jobs = Jobs((log, "JobFailed"), (DONE, "Completed"))
    async with running_engine(Cluster(script=jobs)) as world:
        if again:
            status = await world.until("ended", first_ended)
            assert status.phase is Phase.PENDING
            assert status.next_attempt_time is not None
        else:
            status = await world.until("finished", lambda status: status.phase is Phase.FAILED)
            assert (status.runs_summary, len(jobs.plans)) == ("0/1", 1)


async def test_a_run_of_a_series_that_met_a_limit_is_run_again_after_the_series() -> None:
    refused = JobLog().attempt().begin("train", 5).line("429 Client Error: Too Many Requests").end("train", code=1)
    log = refused.over(0, 1).ran(1, "3.27").closed(1)
    spec = {**REPLAY, "runs": 2, "runsPerAllocation": 2}
    jobs = Jobs((log, "JobFailed"), (DONE, "Completed"))
    async with running_engine(Cluster(script=jobs), spec) as world:
        status = await world.until("ended", first_ended)
        assert (status.allocations[0].reason, status.runs_summary) == ("HFRateLimit", "1/2")
        assert [each.phase for each in status.runs] == [Phase.PENDING, Phase.SUCCEEDED]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("OSError: 401 Client Error for url: https://huggingface.co/x?token={}", "HFAuth"),
        ("RuntimeError: the trainer was started with {}", "JobFailed"),
        ("step:1/2 val_loss:{} train_time:1ms step_avg:1ms", "JobFailed"),
    ],
)
async def test_a_secret_in_a_log_is_in_no_status_and_no_event(said: str, reason: str) -> None:
    """BR-108: a trainer prints its environment, and ends with the token in its message."""
    secret = "hf_AbCdEf0123456789"
    lines = (f"HF_TOKEN={secret}", f"declare -x WANDB_API_KEY='{secret}'", said.format(secret))
    log = JobLog().attempt().begin("data", 5).line(*lines).end("data", code=1).finish(1)
    async with running_engine(Cluster(script=Jobs((log, "JobFailed")))) as world:
        status = await world.until("finished", lambda status: status.phase is Phase.FAILED)
        assert status.reason == reason
        assert secret not in str(status.dump()) + str(world.told())
