"""Lives in which anything may be seen at any time: what must hold whatever comes.

Polls, answers, silence, restarts, requeues, lost jobs, late answers and edits come in any order and are repeated. The
status is written and read again after each step, and held to the CRD's schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.api.phases import FINISHED, AllocationState, Phase
from speedrun_operator.api.status import Status
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.observation import Accepted, Busy, Observed, Outcome, Rejected, Unknown
from speedrun_operator.lifecycle.situation import Decision, Waiting
from unit.builders import COMPILING, STARTED, TRAINING, JobLog, at, ended, finished_log, queued, running, unseen
from unit.lifecycle.lives import NO_LOGIN, SILENCE, Life, Step, woken

TARGET = Decimal("3.28")
MOST_ALLOCATIONS = 6
EXAMPLES = 300

LOGS: list[JobLog | None] = [
    None,
    JobLog(),
    STARTED,
    COMPILING,
    TRAINING,
    TRAINING.validation("4.0", 10),
    TRAINING.validation("nan", 10),
    TRAINING.step(20),
    TRAINING.attempt(18),
    finished_log("3.27"),
    finished_log("3.28"),
    finished_log("3.30"),
    finished_log("nan"),
    finished_log("3.27", code=1),
    JobLog((*finished_log("3.27").lines, *TRAINING.lines)),
]
logs = st.sampled_from(LOGS)
reads = logs.map(lambda log: log.read() if log else None)
times = st.integers(-1000, 1000).map(at)
jobs = st.sampled_from(["17", "18", None])
reasons = st.sampled_from(["Completed", "JobFailed", "Cancelled", "TimeLimit", "NodeFailure", "Preempted"])

observations: st.SearchStrategy[Observed] = st.one_of(
    st.builds(queued, st.sampled_from([None, "Priority", "(a b)"]), job_id=jobs, log=reads),
    st.builds(running, logs, job_id=jobs, started=times | st.none(), node=st.sampled_from(["a", "b", None])),
    st.builds(ended, logs, reasons, job_id=jobs, started=times | st.none(), log_complete=st.booleans()),
    st.builds(unseen, st.integers(0, 900), log=reads),
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Accepted, st.sampled_from(["17", "18"]), times | st.none()),
    st.builds(Busy, st.just("SlurmBusy"), st.text(max_size=5), st.booleans()),
    st.builds(Unknown, st.just("SubmissionUnknown"), st.text(max_size=5), st.booleans()),
    st.just(Rejected("SubmissionRejected", "no such partition")),
)
ages = st.sampled_from([1, 1, 1, 2, 3])


def of(field: str, what: object, age: int, **more: Any) -> Step:
    """`what` is said of the newest allocation (age 1) or an older one; nobody is asked about any other."""
    return lambda status: {
        **more,
        field: {len(status.allocations) - age: what} if age <= len(status.allocations) else {},
    }


steps: st.SearchStrategy[Step] = st.one_of(
    st.just(woken()),
    st.just(SILENCE),
    st.just(NO_LOGIN),
    st.builds(of, st.just("observed"), observations, ages),
    st.builds(of, st.just("observed"), observations, ages, waiting=st.just(Waiting("LoginNotConfigured", ""))),
    st.builds(of, st.just("outcomes"), outcomes, ages),
    st.builds(lambda protected: woken(metadata={"protected": protected}), st.booleans()),
    st.builds(lambda generation: woken(metadata={"generation": generation}), st.integers(1, 3)),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.tuples(steps, st.integers(0, 400)), max_size=25))
def test_whatever_comes(script: list[tuple[Step, int]]) -> None:
    life = Life()
    for step, seconds in script:
        before = life.status
        changes = step(before)
        decision = life.live(step, seconds)
        holds(before, decision, changes, protected=life.resource.protected)
        again = life.decide(step_on_the_same(changes))
        assert again.status == decision.status, "the same again changes something"
        assert again.notices == (), "the same again is told again"
        assert life.decide(woken()).notices == () or "waiting" in changes, "news without anything new"


def step_on_the_same(changes: Mapping[str, Any]) -> Step:
    return woken(**{name: value for name, value in changes.items() if name != "metadata"})


def holds(before: Status, decision: Decision, changes: Mapping[str, Any], *, protected: bool) -> None:
    after = decision.status
    names = [each.name for each in after.allocations]
    assert len(set(names)) == len(names) <= MOST_ALLOCATIONS
    assert names[: len(before.allocations)] == [each.name for each in before.allocations]
    assert sum(each.state is not AllocationState.ENDED for each in after.allocations) <= 1
    for old, new in zip(before.allocations, after.allocations, strict=False):
        assert old == new or old.state is not AllocationState.ENDED, "Ended is final"
    may_submit = protected and "waiting" not in changes and not is_finished(after)
    assert not decision.submit or may_submit
    for each in decision.submit:
        assert after.allocations[each.allocation].state is AllocationState.SUBMITTING
    if is_finished(before):
        assert after == before
    assert is_finished(after) == (after.phase in FINISHED)
    assert after.val_loss is None or math.isfinite(after.val_loss)
    moved_conditions(before, after)
    if is_finished(after) and not is_finished(before):
        result_is_in_the_log(after, changes)


def moved_conditions(before: Status, after: Status) -> None:
    old = {each.type: each for each in before.conditions}
    for condition in after.conditions:
        was = old.pop(condition.type, None)
        if was is not None and was.status == condition.status:
            assert condition.last_transition_time == was.last_transition_time
    assert not old, "a condition that was said is never taken back"


def result_is_in_the_log(after: Status, changes: Mapping[str, Any]) -> None:
    """A result is what the log of the newest allocation says at its last step, just now."""
    seen: Observed | None = changes.get("observed", {}).get(len(after.allocations) - 1)
    record = seen.log.run(0) if seen and seen.log else None
    final = record.progress.final if record else None
    reached = final is not None and final.val_loss is not None and final.val_loss <= TARGET
    assert (after.phase is Phase.SUCCEEDED) == reached
    if final is not None and final.val_loss is not None:
        assert after.val_loss == float(final.val_loss)
        assert after.train_time_ms == final.train_time_ms
    else:
        assert after.val_loss is None
        assert after.phase in (Phase.MISSED, Phase.FAILED)
