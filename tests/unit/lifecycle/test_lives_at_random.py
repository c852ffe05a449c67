"""Lives in which anything may be seen at any time: what must hold whatever comes, and that it ends once all is well.

Polls, answers, silence, restarts, requeues, lost jobs, late answers, cancellations that are answered or not, and edits
come in any order and are repeated. The status is written and read again after each step, and held to the CRD's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from speedrun_operator.api.phases import AllocationState
from speedrun_operator.api.status import Allocation, Status
from speedrun_operator.diagnosis.pending import NEVER
from speedrun_operator.lifecycle.decide import is_finished
from speedrun_operator.lifecycle.observation import Accepted, Busy, Observed, Outcome, Rejected, Unknown
from speedrun_operator.lifecycle.situation import Decision, Waiting
from speedrun_operator.progress.allocation import AllocationProgress
from unit.builders import REPLAY, JobLog, at, ended, queued, running, unseen
from unit.lifecycle.invariants import Witness, live
from unit.lifecycle.lives import NO_LOGIN, SILENCE, Life, Step, woken

RUNS = 4
EXAMPLES = 150
MOST_STEPS = 40  # opened, taken, at work, over: ten jobs, one after the other

# --- what a log may hold: parts in any order -------------------------------------------------------------------------

LIMITED = "429 Client Error: Too Many Requests"
FAULTY = "NVRM: Xid (PCI:0000:18:00): 79"
PARTS = {
    "begun": lambda log, run: log.begun(run),
    "prepares": lambda log, run: log.begun(run).begin("data", 3, run=run),
    "trains": lambda log, run: log.trains(run),
    "half way": lambda log, run: log.trains(run).validation("4.0", 10),
    "diverging": lambda log, run: log.trains(run).validation("nan", 10),
    "reached": lambda log, run: log.ran(run, "3.27"),
    "just reached": lambda log, run: log.ran(run, "3.28"),
    "missed": lambda log, run: log.ran(run, "3.30"),
    "diverged": lambda log, run: log.ran(run, "nan"),
    "failed": lambda log, run: log.ran(run, None, code=1),
    "limited": lambda log, run: log.begun(run).begin("train", 3, run=run).line(LIMITED).over(run, 1),
    "faulty": lambda log, run: log.trains(run).line(FAULTY).over(run, 1),
    "restarted": lambda log, run: log.begun(run).line("srun: error: Expired or invalid job 17").over(run, 1),
    "too small": lambda log, run: log.trains(run).line("OutOfMemoryError: CUDA out of memory").over(run, 1),
    "killed": lambda log, run: log.trains(run).over(run, 143),
    "result, then failed": lambda log, run: log.ran(run, "3.27", code=1),
    "job": lambda log, run: log.job(17 + run),
    "limit": lambda log, run: log.mark("job limit"),
    "stopped": lambda log, run: log.mark("job stopped"),
    "closed": lambda log, run: log.closed(run),
}


@cache
def read(parts: tuple[tuple[str, int], ...]) -> AllocationProgress:
    log = JobLog().job()
    for part, run in parts:
        log = PARTS[part](log, run)
    return log.read()


parts = st.tuples(st.sampled_from(sorted(PARTS)), st.integers(0, RUNS - 1))
logs = st.none() | st.lists(parts, max_size=4).map(lambda each: read(tuple(each)))

# --- what may be seen and heard --------------------------------------------------------------------------------------

times = st.integers(-1000, 1000).map(at)
jobs = st.sampled_from(["17", "18", None])
nodes = st.sampled_from(["a", "b", None])
ENDS = ["JobFailed", "JobFailed", "Cancelled", "TimeLimit", "OutOfMemory", "NodeFailure", "Preempted", "LaunchFailed"]
ends = st.sampled_from(["Completed", *ENDS, "SubmissionRejected", "SomethingNew"])
waits = st.sampled_from([None, "Priority", "(a b)", *sorted(NEVER)[:2]])
spans = st.sampled_from([0, 59, 60, 299, 300, 900, 5000]).map(lambda seconds: timedelta(seconds=seconds))

observations: st.SearchStrategy[Observed] = st.builds(
    lambda seen, log: replace(seen, log=log),
    st.one_of(
        st.builds(queued, waits, job_id=jobs, waited_for=spans),
        st.builds(running, job_id=jobs, started=times | st.none(), node=nodes, quiet_for=spans),
        st.builds(ended, st.none(), ends, job_id=jobs, started=times | st.none(), log_complete=st.booleans()),
        st.builds(unseen, st.integers(0, 900), job_id=jobs, fenced=st.booleans()),
    ),
    logs,
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Accepted, st.sampled_from(["17", "18"]), times | st.none()),
    st.builds(Busy, st.just("SlurmBusy"), st.text(max_size=5), st.booleans()),
    st.builds(Unknown, st.just("SubmissionUnknown"), st.text(max_size=5), st.booleans()),
    st.builds(Rejected, st.sampled_from(["SubmissionRejected", "Cancelled", "Cancelled"]), st.just("words")),
)
ages = st.integers(1, 4)  # 1 is the newest allocation


def of(status: Status, by_age: Mapping[int, Any]) -> dict[int, Any]:
    number = len(status.allocations)
    return {number - age: what for age, what in by_age.items() if age <= number}


def said(field: str, by_age: Mapping[int, Any], **more: Any) -> Step:
    """Of some allocations something is said; nobody is asked about the others."""
    return lambda status: {**more, field: of(status, by_age)}


def gone(by_age: Mapping[int, Any]) -> Step:
    """A cancellation was answered: those that were to end have no job."""

    def step(status: Status) -> Mapping[str, Any]:
        return {"gone": frozenset(each for each in of(status, by_age) if status.allocations[each].ending is not None)}

    return step


# --- a sound cluster, and its troubles -------------------------------------------------------------------------------


def truth(one: Allocation) -> tuple[str, Any]:
    """What a sound cluster says of a live allocation: it is taken, runs, and all its runs have results."""
    job = one.job_id or str(17 + one.id)
    if one.ending is not None:
        over = ended(None, "Cancelled", job_id=job, started=None)
        return "observed", unseen(0, fenced=True) if one.state is AllocationState.SUBMITTING else over
    if one.state is AllocationState.SUBMITTING:
        return "outcomes", Accepted(job, at(1))
    log = JobLog().job(int(job))
    if one.state is AllocationState.QUEUED:
        return "observed", running(log.trains(one.runs[0]), job_id=job)
    for run in one.runs:
        log = log.ran(run, "3.27")
    return "observed", ended(log.closed(), job_id=job)


def all_is_well(status: Status) -> Mapping[str, Any]:
    told: dict[str, dict[int, Any]] = {"observed": {}, "outcomes": {}}
    for one in live(status):
        field, what = truth(one)
        told[field][one.id] = what
    return told


def trouble(which: int, reason: str, done: int, then: str) -> Step:
    """A live job ends for `reason` when so many of its runs had their results and the next one was as `then` says."""

    def step(status: Status) -> Mapping[str, Any]:
        if not (alive := live(status)):
            return {}
        one = alive[which % len(alive)]
        first, rest = one.runs[:done], one.runs[done:]
        log = read((*(("reached", run) for run in first), *((then, run) for run in rest[:1])))
        seen = unseen(300) if reason == "JobLost" else ended(None, reason, job_id=one.job_id or "17")
        return {"observed": {one.id: replace(seen, log=log)}}

    return step


troubles = st.builds(
    trouble,
    st.integers(0, 2),
    st.sampled_from(["JobLost", *ENDS]),
    st.integers(0, 2),
    st.sampled_from(
        ["begun", "trains", "failed", "killed", "diverging", "stopped", "limited", "faulty", "restarted", "too small"]
    ),
)


edits = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.booleans(),
        "parallelism": st.integers(1, 3),
        "runs": st.integers(1, RUNS),
        "backoffLimit": st.integers(0, 2),
        "activeDeadlineSeconds": st.sampled_from([None, None, 300, 5000]),
        "stallTimeoutSeconds": st.sampled_from([None, 60, 3600]),
    },
)


def edited(fields: Mapping[str, Any], generation: int) -> Step:
    return lambda status: {"spec": dict(fields), "metadata": {"generation": generation}}


def some(what: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[int, Any]]:
    return st.dictionaries(ages, what, min_size=1, max_size=3)


lies: st.SearchStrategy[Step] = st.one_of(
    st.builds(said, st.just("observed"), some(observations)),
    st.builds(said, st.just("observed"), some(observations), waiting=st.just(Waiting("LoginNotConfigured", ""))),
    st.builds(said, st.just("outcomes"), some(outcomes)),
    st.builds(gone, some(st.none())),
)
faults: st.SearchStrategy[Step] = st.sampled_from([woken(), SILENCE, NO_LOGIN]) | st.builds(
    lambda protected: woken(metadata={"protected": protected}), st.booleans()
)
changes_of_mind: st.SearchStrategy[Step] = st.builds(edited, edits, st.integers(1, 3))
# What goes its way is as likely as each kind of trouble: else no life would get far.
steps: st.SearchStrategy[Step] = st.one_of(st.just(all_is_well), troubles, troubles, lies, faults, changes_of_mind)
specs = st.builds(
    lambda first, edit, together: {**REPLAY, "backoffLimit": 1, **edit, "runs": first, "runsPerAllocation": together},
    st.integers(1, RUNS),
    edits,
    st.integers(1, 3),
).map(lambda spec: {name: value for name, value in spec.items() if value is not None})
scripts = st.lists(st.tuples(steps, st.sampled_from([0, 1, 10, 60, 600])), min_size=8, max_size=30)


def lived(life: Life, witness: Witness, step: Step, seconds: float) -> Decision:
    """One step, in which all must hold that always must."""
    before = life.status
    changes = dict(step(before))
    if "runs" in changes.get("spec", {}):  # the API server lets them only go up
        changes["spec"]["runs"] = max(changes["spec"]["runs"], (life.spec or {})["runs"])
    note(f"after {seconds} s: {changes}")
    decision = life.live(woken(**changes), seconds)
    spec = life.resource.spec
    assert spec is not None
    witness.holds(before, decision, changes, spec, at(life.seconds), protected=life.resource.protected)
    known = {name: value for name, value in changes.items() if name not in ("metadata", "spec")}
    again = life.decide(woken(**known))
    assert again.status == decision.status, "the same again changes something"
    assert again.notices == (), "the same again is told again"
    assert life.decide(woken()).notices == () or "waiting" in changes, "news without anything new"
    return decision


def healed(status: Status) -> Mapping[str, Any]:
    return {"spec": {"suspend": False}, "metadata": {"protected": True}}


@settings(max_examples=EXAMPLES, deadline=None)
@given(specs, scripts)
def test_whatever_comes_it_holds_and_once_all_is_well_it_ends(
    spec: dict[str, Any], script: list[tuple[Step, int]]
) -> None:
    life, witness = Life(spec), Witness()
    for step, seconds in script:
        lived(life, witness, step, seconds)
    decision = lived(life, witness, healed, 1)
    for _ in range(MOST_STEPS):
        if is_finished(life.status):
            break
        wait = (decision.wake_at - at(life.seconds)).total_seconds() if decision.wake_at else 10
        decision = lived(life, witness, all_is_well, wait)
    assert is_finished(life.status), "it does not end"
