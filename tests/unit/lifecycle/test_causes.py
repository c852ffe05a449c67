"""Restarts of the cluster's nodes, as somebody's first or last SSH key causes them in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.phases import Phase
from unit.builders import STARTED, TRAINING, JobLog, at, ended
from unit.lifecycle.lives import Life, seen, woken
from unit.lifecycle.rows import ACCEPTED, AT_WORK


@pytest.mark.parametrize(
    ("reason", "code", "controller", "said"),
    [
        pytest.param("NodeFailure", None, 50, "NodesRestarted", id="the controller restarted in mid-run"),
        pytest.param("NodeFailure", None, 2, "NodesRestarted", id="or as it waited; nodes come in turn"),
        pytest.param("NodeFailure", None, 0, "NodeFailure", id="before it was submitted: a node that failed"),
        pytest.param("NodeFailure", None, 200, "NodeFailure", id="only afterwards"),
        pytest.param("NodeFailure", None, None, "NodeFailure", id="nobody knows"),
        pytest.param("JobFailed", 143, 50, "NodesRestarted", id="the job got SIGTERM"),
        pytest.param("JobFailed", 137, 50, "NodesRestarted", id="or was killed"),
        pytest.param("JobFailed", 1, 50, "JobFailed", id="a program that failed by itself"),
        pytest.param("Cancelled", None, 50, "Cancelled", id="cancelled meanwhile"),
    ],
)
def test_nodes_that_restarted_under_a_job(reason: str, code: int | None, controller: int | None, said: str) -> None:
    log = TRAINING.finish(code) if code is not None else TRAINING
    life = Life()
    for row in AT_WORK:
        life.live(row.step)
    changes: dict[str, Any] = {} if controller is None else {"controller_started": at(controller)}
    step = seen(ended(log, reason))
    decision = life.live(lambda status: {**step(status), **changes})
    assert life.status.allocations[0].reason == said
    if said == "NodesRestarted":
        assert life.status.phase is Phase.PENDING
        words = next(each.message for each in decision.notices if each.reason == "NodesRestarted")
        assert "when somebody gains or loses SSH access" in words
        assert "tried again from" in words


OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=17.1. Some of the step tasks have been OOM Killed."
CANCELLED = "slurmstepd: error: *** STEP 17.1 ON slurm-h100-0 CANCELLED AT 2026-07-01T12:00:50 ***"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(OOM, "OutOfMemory", id="the node's memory"),
        pytest.param("torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB", "CudaOOM", id="a GPU's memory"),
        pytest.param("OSError: [Errno 28] No space left on device", "StorageFull", id="the disk"),
        pytest.param(CANCELLED, "NodesRestarted", id="its steps were cancelled, as a restart does"),
        pytest.param("c10::DistBackendError: ncclRemoteError", "NodesRestarted", id="what a dying program prints"),
        pytest.param("srun: error: n: task 0: Exited with exit code 137", "NodesRestarted", id="a wrapper"),
    ],
)
def test_a_job_with_a_cause_of_its_own_was_not_killed_by_a_restart(line: str, said: str) -> None:
    """Else what always dies would be run five times more, outside of backoffLimit."""
    life = Life()
    for row in AT_WORK:
        life.live(row.step)
    step = seen(ended(TRAINING.line(line).finish(137), "JobFailed"))
    life.live(lambda status: {**step(status), "controller_started": at(50)})
    assert life.status.allocations[0].reason == said


@pytest.mark.parametrize("end", [("NodeFailure", TRAINING), ("JobFailed", TRAINING.finish(137))])
@pytest.mark.parametrize(
    ("controller", "restarted"),
    [
        pytest.param(7300, True, id="while it ran"),
        pytest.param(7100, True, id="just before it started: nodes come in turn"),
        pytest.param(3600, False, id="long before, as it waited"),
        pytest.param(9001, False, id="after its end"),
    ],
)
def test_a_restart_is_one_within_the_jobs_life(controller: int, restarted: bool, end: tuple[str, JobLog]) -> None:
    life = Life()
    for row in AT_WORK:
        life.live(row.step)
    reason, log = end
    step = seen(ended(log, reason, started=at(7200), ended=at(9000), asked=at(9100)))
    life.live(lambda status: {**step(status), "controller_started": at(controller)}, 9100)
    assert life.status.allocations[0].reason == ("NodesRestarted" if restarted else reason)


def test_restarts_of_nodes_do_not_count_as_retries() -> None:
    life = Life({"recipe": {"name": "replay"}, "backoffLimit": 0})
    for number in range(5):
        life.live(woken(), 600)
        life.live(ACCEPTED.step)
        life.live(lambda status: {**seen(ended(STARTED, "NodeFailure"))(status), "controller_started": at(50)})
        assert (life.status.phase, len(life.status.allocations)) == (Phase.PENDING, number + 1)
    life.live(woken(), 600)
    life.live(ACCEPTED.step)
    life.live(lambda status: {**seen(ended(STARTED, "NodeFailure"))(status), "controller_started": at(50)})
    assert (life.status.phase, life.status.reason) == (Phase.FAILED, "NodesRestarted")


def test_a_job_whose_steps_went_with_the_node_before_any_run_began() -> None:
    life = Life()
    life.live(woken())
    life.live(ACCEPTED.step)
    life.live(seen(ended(JobLog().job().line("srun: error: Expired or invalid job 17"), "JobFailed")))
    assert (life.status.phase, life.status.reason) == (Phase.PENDING, "NodesRestarted")
