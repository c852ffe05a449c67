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
