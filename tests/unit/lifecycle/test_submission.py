"""When allocations are opened and for which runs; when one is submitted: never twice, never without the finalizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.observation import Accepted, Observed, Outcome, Unknown
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.lifecycle.submission import open_allocations, to_submit
from unit.builders import CLUSTER, NOON, REPLAY, UID, at, ended, queued, resource, situation, unseen

SUBMITTING, QUEUED, ENDED = AllocationState.SUBMITTING, AllocationState.QUEUED, AllocationState.ENDED
RUNNING = AllocationState.RUNNING


def allocation(state: AllocationState, reason: str | None = None, number: int = 0, **fields: Any) -> Allocation:
    made = {"id": number, "name": f"sr-{number}", "state": state, "claimed": NOON, "reason": reason, **fields}
    return Allocation(**made)


LOST = allocation(ENDED, "JobLost")

# Runs in one letter each: what they wait for, or what they are.
KINDS = {
    ".": Run(index=0, arm="A", phase=Phase.PENDING),
    "p": Run(index=0, arm="A", phase=Phase.PENDING, allocation=0),
    "t": Run(index=0, arm="A", phase=Phase.TRAINING, allocation=0),
    "s": Run(index=0, arm="A", phase=Phase.SUCCEEDED, allocation=0, counted=True),
    "m": Run(index=0, arm="A", phase=Phase.MISSED, allocation=0, counted=True),
    "f": Run(index=0, arm="A", phase=Phase.FAILED, allocation=0),
    "d": Run(index=0, arm="A", phase=Phase.FAILED),
}


def runs_of(letters: str) -> tuple[Run, ...]:
    return tuple(KINDS[letter].model_copy(update={"index": index}) for index, letter in enumerate(letters))


def opened_for(letters: str, states: Sequence[AllocationState] = (), **spec: int) -> list[tuple[int, ...]]:
    """The runs of each allocation that is opened."""
    before = tuple(allocation(state, number=number) for number, state in enumerate(states))
    wanted = Spec.model_validate({**REPLAY, **spec})
    allocations, runs = open_allocations(situation(seconds=1.75), before, runs_of(letters), wanted)
    assert allocations[: len(before)] == before
    new = allocations[len(before) :]
    for number, each in enumerate(new, start=len(before)):
        assert (each.id, each.name) == (number, f"sr-{CLUSTER}-{UID}-{number}")
        assert (each.state, each.claimed, each.job_id, each.ending) == (SUBMITTING, at(1), None, None)
    taken = {index: each.id for each in new for index in each.runs}
    for run, was in zip(runs, runs_of(letters), strict=True):
        given = Run(index=run.index, arm="A", phase=Phase.PENDING, allocation=taken.get(run.index))
        assert run == (given if run.index in taken else was)
    return [each.runs for each in new]


@pytest.mark.parametrize(
    ("letters", "states", "spec", "opened"),
    [
        pytest.param(".", [], {}, [(0,)], id="the first"),
        pytest.param("p", [SUBMITTING], {}, [], id="one whose outcome is unknown"),
        pytest.param("p", [QUEUED], {}, [], id="one that waits"),
        pytest.param("s", [ENDED], {}, [], id="a result"),
        pytest.param("m", [ENDED], {}, [], id="a result that missed"),
        pytest.param("f", [ENDED], {}, [], id="a failure for good"),
        pytest.param("d", [], {}, [], id="one that failed without a job"),
        pytest.param(".", [ENDED], {}, [(0,)], id="one that was given back"),
        pytest.param(".", [ENDED] * 9, {}, [(0,)], id="after many"),
        pytest.param("...", [], {}, [(0,)], id="one after the other"),
        pytest.param("...", [], {"parallelism": 2}, [(0,), (1,)], id="two at once"),
        pytest.param("...", [], {"parallelism": 64}, [(0,), (1,), (2,)], id="no more than there are"),
        pytest.param("...", [], {"runsPerAllocation": 2}, [(0, 1)], id="two in one"),
        pytest.param("...", [], {"runsPerAllocation": 2, "parallelism": 2}, [(0, 1), (2,)], id="the rest in a smaller"),
        pytest.param("...", [], {"runsPerAllocation": 64}, [(0, 1, 2)], id="all in one"),
        pytest.param("t..", [RUNNING], {"parallelism": 2}, [(1,)], id="beside one at work"),
        pytest.param("t..", [RUNNING], {}, [], id="none beside one at work"),
        pytest.param("s..", [ENDED], {}, [(1,)], id="the next"),
        pytest.param("s..", [RUNNING], {}, [], id="the job of a result is not over yet"),
        pytest.param(
            "..s.", [ENDED], {"runsPerAllocation": 2}, [(0, 1)], id="runs that were given back come first, by index"
        ),
        pytest.param("s.m.f.", [ENDED], {"runsPerAllocation": 3}, [(1, 3, 5)], id="whatever lies between"),
        pytest.param("tt..", [RUNNING] * 3, {"parallelism": 2}, [], id="more at work than it says now"),
        pytest.param("tt..", [RUNNING, ENDED, RUNNING], {"parallelism": 3}, [(2,)], id="ended ones are not at work"),
    ],
)
def test_what_is_opened(
    letters: str, states: list[AllocationState], spec: dict[str, int], opened: list[tuple[int, ...]]
) -> None:
    assert opened_for(letters, states, **spec) == opened


@pytest.mark.parametrize(
    ("reason", "spec", "avoids"),
    [
        ("NodeLost", {"backend": "Pods"}, ("node-a.lab",)),
        ("PodRefused", {"backend": "Pods"}, ("node-a.lab",)),
        ("GpuFault", {"backend": "Pods"}, ("node-a.lab",)),
        ("GpuFault", {"backend": "Pods", "slurm": {"nodeList": ["node-a.lab"]}}, ("node-a.lab",)),
        ("Drained", {"backend": "Pods"}, None),
        ("JobFailed", {"backend": "Pods"}, None),
        ("GpuFault", {"backend": "Slurm"}, None),  # nobody knows whether Slurm has another
    ],
)
def test_the_next_pod_keeps_off_a_node_that_was_at_fault(
    reason: str, spec: dict[str, Any], avoids: tuple[str, ...] | None
) -> None:
    broken = allocation(ENDED, reason, runs=(0,), node="node-a.lab")
    whole = {**REPLAY, "pods": {"image": "registry.local/trainer:1"}, **spec}
    (_, opened), _ = open_allocations(situation(resource(whole)), (broken,), runs_of("."), Spec.model_validate(whole))
    assert opened.avoids == avoids


@settings(deadline=None, max_examples=50)
@given(
    st.text("." + "ptsmfd", max_size=12),
    st.lists(st.sampled_from(list(AllocationState)), max_size=6),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_bounds_of_what_is_opened(
    letters: str, states: list[AllocationState], parallelism: int, runs_per_allocation: int
) -> None:
    opened = opened_for(letters, states, parallelism=parallelism, runsPerAllocation=runs_per_allocation)
    live = sum(each is not ENDED for each in states)
    waiting = [index for index, letter in enumerate(letters) if letter == "."]
    taken = [index for each in opened for index in each]
    assert taken == waiting[: len(taken)], "each once, lowest first"
    assert all(1 <= len(each) <= runs_per_allocation for each in opened)
    assert all(len(each) == runs_per_allocation for each in opened[:-1])
    assert live + len(opened) <= max(live, parallelism)
    assert taken == waiting or live + len(opened) >= parallelism, "what can be opened is opened"


@pytest.mark.parametrize(
    ("allocations", "changes", "metadata", "submitted"),
    [
        pytest.param([allocation(SUBMITTING)], {}, {}, [0], id="named in status, outcome unknown"),
        pytest.param([allocation(QUEUED)], {}, {}, [], id="accepted"),
        pytest.param([allocation(ENDED)], {}, {}, [], id="ended"),
        pytest.param([LOST, allocation(SUBMITTING, None, 1)], {}, {}, [1], id="the second"),
        pytest.param([allocation(SUBMITTING, None, n) for n in range(3)], {}, {}, [0, 1, 2], id="three at once"),
        pytest.param([allocation(SUBMITTING, ending="Suspended")], {}, {}, [], id="one that is to end"),
        pytest.param([allocation(SUBMITTING)], {}, {"protected": False}, [], id="no finalizer yet"),
        pytest.param([allocation(SUBMITTING)], {}, {"deleting": True}, [], id="being deleted"),
        pytest.param([allocation(SUBMITTING)], {"waiting": Waiting("X", "")}, {}, [], id="nothing can be submitted"),
    ],
)
def test_what_is_submitted(
    allocations: list[Allocation], changes: dict[str, Any], metadata: dict[str, Any], submitted: list[int]
) -> None:
    found = to_submit(situation(resource(**metadata), **changes), tuple(allocations))
    assert [each.allocation for each in found] == submitted


@pytest.mark.parametrize("outcome", [Accepted("17", None), Unknown("SubmissionUnknown", "")], ids=repr)
def test_an_answer_just_heard_is_not_asked_for_again(outcome: Outcome) -> None:
    assert to_submit(situation(outcomes={0: outcome}), (allocation(SUBMITTING),)) == ()


@pytest.mark.parametrize(
    ("seen", "submitted"), [(unseen(0), 1), (unseen(900), 1), (queued(), 0), (ended(log_complete=False), 0)], ids=repr
)
def test_a_job_that_a_witness_knows_is_not_submitted_again(seen: Observed, submitted: int) -> None:
    assert len(to_submit(situation(observed={0: seen}), (allocation(SUBMITTING),))) == submitted
