"""What goes wrong with a job that prepares: its reason in words, with a remedy; tried again or not, and from when."""

from __future__ import annotations

from datetime import datetime

import pytest

from speedrun_operator.api.phases import Phase, PreparationState
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.observation import Observed, Prepared
from speedrun_operator.lifecycle.situation import Decision
from unit.builders import JobLog, at, ended, unseen
from unit.lifecycle.test_preparing import SPEC, asked, code_is_made, decided, key, making

ONCE = {**SPEC, "backoffLimit": 0}
LOG = JobLog().job().mark("stage=code begin")
RESTARTED = at(50)
GONE = "srun: error: Expired or invalid job 17"


def after(job: Observed, restarted: datetime | None = None, spec: dict[str, object] | None = None) -> Decision:
    """The job that makes the code was seen so."""
    made = code_is_made()
    return decided(made.status, spec=spec, prepared={key(made, "code"): Prepared(job)}, controller_started=restarted)


@pytest.mark.parametrize(
    ("reason", "code", "restarted", "said"),
    [
        pytest.param("NodeFailure", None, RESTARTED, "NodesRestarted", id="the node went"),
        pytest.param("JobFailed", 143, RESTARTED, "NodesRestarted", id="the job got SIGTERM"),
        pytest.param("JobFailed", 137, RESTARTED, "NodesRestarted", id="or was killed"),
        pytest.param("NodeFailure", None, at(0), "NodeFailure", id="the controller restarted before"),
        pytest.param("NodeFailure", None, None, "NodeFailure", id="nobody knows"),
        pytest.param("JobFailed", 143, None, "PrepareFailed", id="killed by itself"),
        pytest.param("JobFailed", 1, RESTARTED, "PrepareFailed", id="a program that failed by itself"),
    ],
)
def test_nodes_that_restarted_under_a_job(reason: str, code: int | None, restarted: datetime | None, said: str) -> None:
    log = LOG.closed(code) if code is not None else LOG
    seen = after(ended(log, reason), restarted, ONCE)
    record = seen.status.preparing[0]
    assert record.reason == said
    if said == "NodesRestarted":
        assert (record.state, record.not_before) == (PreparationState.WAITING, at(180))
        words = next(each.message for each in seen.notices if each.reason == "NodesRestarted")
        assert "when somebody gains or loses SSH access" in words
        assert "run again once they are back" in words
        assert "tried again from" in words


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        pytest.param(ended(LOG, "NodeFailure"), "NodesRestarted", id="restarts"),
        pytest.param(ended(LOG.line(GONE), "JobFailed"), "NodesRestarted", id="restarts that the log shows"),
        pytest.param(unseen(300), "JobLost", id="lost"),
    ],
)
def test_what_is_not_counted_against_retries_is_bounded(job: Observed, reason: str) -> None:
    made = code_is_made()
    code = key(made, "code")
    for attempt in range(1, 6):
        made = decided(made.status, spec=ONCE, prepared={code: Prepared(job)}, controller_started=RESTARTED)
        record = made.status.preparing[0]
        assert (record.state, record.reason, record.failures) == (PreparationState.WAITING, reason, attempt)
        made = decided(made.status, seconds=4000 * attempt, spec=ONCE)
        assert asked(made) == [("code", attempt - 1)]
        made = decided(made.status, seconds=4000 * attempt, spec=ONCE, ensured={code: making(attempt)})
    last = decided(made.status, spec=ONCE, prepared={code: Prepared(job)}, controller_started=RESTARTED)
    assert (last.status.phase, last.status.reason) == (Phase.FAILED, reason)


def test_restarts_leave_the_retries_that_a_failed_node_has() -> None:
    made = code_is_made()
    code = key(made, "code")
    for attempt, restarted in enumerate([RESTARTED, RESTARTED, None, None], start=1):
        made = decided(made.status, prepared={code: Prepared(ended(LOG, "NodeFailure"))}, controller_started=restarted)
        assert not is_finished(made.status)
        made = decided(made.status, seconds=4000 * attempt, ensured={code: making(attempt)})
    made = decided(made.status, prepared={code: Prepared(ended(LOG, "NodeFailure"))})
    assert (made.status.phase, made.status.reason) == (Phase.FAILED, "NodeFailure")
