"""What goes wrong with a job that prepares: its reason in words, with a remedy; tried again or not, and from when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from speedrun_operator.api.phases import Phase, PreparationState
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.observation import Observed, Prepared, Rejected
from speedrun_operator.lifecycle.situation import Decision
from speedrun_operator.planning import RunPlan
from unit.builders import JobLog, at, ended, plan_of, queued, resource, unseen
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


@pytest.mark.parametrize(
    ("waits_for", "reason", "says"),
    [
        (None, None, None),
        ("Resources", "Resources", "job 17 waits: no node is free; it starts when one is"),
        ("Priority", "Priority", "job 17 waits: jobs of higher priority go first"),
        (
            "ReqNodeNotAvail, UnavailableNodes:slurm-h100-0",
            "ReqNodeNotAvail",
            "job 17 waits: nodes that it needs are down, drained or reserved; it starts when they are back "
            "(slurm-h100-0)",
        ),
        (
            "PartitionTimeLimit",
            "PartitionTimeLimit",
            "job 17 waits: its partition allows less time: lower the setting prepare.minutes",
        ),
    ],
)
def test_what_a_queued_job_waits_for_is_said_in_words(
    waits_for: str | None, reason: str | None, says: str | None
) -> None:
    seen = after(queued(waits_for))
    record = seen.status.preparing[0]
    assert (record.state, record.reason, record.message) == (PreparationState.QUEUED, reason, says)
    assert (seen.status.phase, seen.status.reason) == (Phase.PREPARING, reason)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("PartitionTimeLimit", "lower the setting prepare.minutes"),
        ("BadConstraints", "lower the settings prepare.cpus and prepare.memory_gib"),
        ("PartitionConfig", "lower the settings prepare.cpus and prepare.memory_gib"),
        ("InvalidAccount", "see spec.slurm.account"),
    ],
)
def test_a_job_that_slurm_will_never_start_is_given_up(reason: str, remedy: str) -> None:
    assert not is_finished(after(queued(reason, waited_for=timedelta(seconds=59))).status)
    assert not is_finished(after(queued("Resources", waited_for=timedelta(days=9))).status)
    seen = after(queued(reason, waited_for=timedelta(seconds=60)))
    assert is_finished(seen.status)
    assert (seen.status.phase, seen.status.reason) == (Phase.FAILED, "NeverRuns")
    assert seen.status.preparing[0].state is PreparationState.FAILED
    [told] = [each for each in seen.notices if each.reason == "NeverRuns"]
    assert told.warning
    assert f"Slurm will never run job 17, which prepares code ({reason}): " in told.message
    assert remedy in told.message


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("sbatch: error: Invalid partition name specified", "or as the setting prepare.partition"),
        ("Invalid account or account/partition combination specified", "correct spec.slurm.account"),
        ("Invalid qos specification", "correct spec.slurm.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "lower the setting prepare.minutes"),
        ("Requested node configuration is not available", "lower the settings prepare.cpus and prepare.memory_gib"),
        ("Requested reservation is invalid", "correct spec.slurm.reservation"),
        ("it will not have it", ""),
    ],
)
def test_what_sbatch_refuses_is_said_with_a_remedy(said: str, remedy: str) -> None:
    first = decided()
    seen = decided(
        first.status, ensured={key(first, "code"): Rejected("SubmissionRejected", f"sbatch refused: {said}")}
    )
    words = f"sbatch refused: {said}"
    assert (seen.status.phase, seen.status.reason) == (Phase.FAILED, "SubmissionRejected")
    conditions = {str(each.type): each for each in seen.status.conditions}
    for name, status in (("Admitted", "False"), ("Finished", "True")):
        found = conditions[name]
        assert (found.status, found.reason) == (status, "SubmissionRejected")
        assert found.message.startswith(words) and remedy in found.message
    [told] = [each for each in seen.notices if each.warning]
    assert (told.reason, told.message) == ("SubmissionRejected", conditions["Admitted"].message)
    assert "spec.timeLimitSeconds" not in told.message


PYXIS = ("pyxis: couldn't start container", "srun: error: node-a: task 0: Exited with exit code 1")


@pytest.mark.parametrize(
    ("usable", "line", "avoid"),
    [
        pytest.param(2, PYXIS[0], ("node-a",), id="a node without a working Pyxis"),
        pytest.param(2, "srun: error: Node failure on node-a", (), id="a node that failed, and will be back"),
        pytest.param(1, PYXIS[0], (), id="there is no other"),
        pytest.param(None, PYXIS[0], (), id="nobody knows whether there is another"),
    ],
)
def test_the_next_job_keeps_off_a_broken_node(usable: int | None, line: str, avoid: tuple[str, ...]) -> None:
    plan = plan_of(resource(SPEC))
    assert isinstance(plan, RunPlan)
    changes: dict[str, Any] = {"plan": replace(plan, usable_nodes=usable)}
    made = code_is_made()
    job = ended(LOG.line(line, PYXIS[1]), "JobFailed")
    made = decided(made.status, prepared={key(made, "code"): Prepared(job)}, **changes)
    [ask] = decided(made.status, seconds=60, **changes).prepare
    assert (ask.after, ask.avoid) == (0, avoid)
    # Nor does the one after that come back to it.
    made = decided(made.status, seconds=60, ensured={key(made, "code"): making(1)}, **changes)
    other = ended(LOG.line("srun: error: Node failure on node-b"), "JobFailed", node="node-b")
    made = decided(made.status, prepared={key(made, "code"): Prepared(other)}, **changes)
    [ask] = decided(made.status, seconds=600, **changes).prepare
    assert (ask.after, ask.avoid) == (1, avoid)
