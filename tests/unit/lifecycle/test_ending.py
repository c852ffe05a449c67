"""Which live allocations the operator ends, why, and when the deadline is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, ConditionType
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Allocation, Condition, Status
from speedrun_operator.lifecycle import ending
from speedrun_operator.lifecycle.observation import Observed
from speedrun_operator.lifecycle.situation import Policy
from unit.builders import NOON, REPLAY, at, ended, queued, running, situation, unseen

SUBMITTING, QUEUED, RUNNING, ENDED = AllocationState
LATE = "not finished within activeDeadlineSeconds (600 s)"


def spec(**fields: Any) -> Spec:
    return Spec.model_validate({**REPLAY, **fields})


def allocation(state: AllocationState = RUNNING, **fields: Any) -> Allocation:
    made = {"id": 0, "name": "sr-0", "state": state, "claimed": NOON, "job_id": "17", "reason": "Priority", **fields}
    return Allocation(**made)


def quiet(seconds: float) -> Observed:
    return running(quiet_for=timedelta(seconds=seconds))


def waits(reason: str | None, seconds: float) -> Observed:
    return queued(reason, waited_for=timedelta(seconds=seconds))


SUSPEND, STALL = {"suspend": True}, {"stallTimeoutSeconds": 300}
WORDS = "no node has what spec.slurm.constraint and spec.gpus ask for"
NEVER = f"Slurm will never run this job (BadConstraints): {WORDS}"
QUIET = "no new line in the log for 301 s (stallTimeoutSeconds)"


@pytest.mark.parametrize(
    ("fields", "late", "seen", "reason", "message"),
    [
        pytest.param({}, None, running(), None, None, id="all is well"),
        pytest.param(SUSPEND, None, None, "Suspended", "suspended by spec.suspend", id="suspended, nothing seen"),
        pytest.param(SUSPEND, None, running(), "Suspended", "suspended by spec.suspend", id="suspended"),
        pytest.param({}, LATE, None, "DeadlineExceeded", LATE, id="past the deadline"),
        pytest.param({}, None, quiet(9999), None, None, id="quiet, and no limit to that"),
        pytest.param(STALL, None, quiet(299), None, None, id="quiet for a while"),
        pytest.param(STALL, None, quiet(301.9), "Stalled", QUIET, id="quiet for too long"),
        pytest.param(STALL, None, quiet(300), "Stalled", QUIET.replace("301", "300"), id="to the second"),
        pytest.param(STALL, None, None, None, None, id="not looked at"),
        pytest.param(STALL, None, unseen(9999), None, None, id="not seen is not quiet"),
        pytest.param(STALL, None, waits("Priority", 9999), None, None, id="waiting is not quiet"),
        pytest.param(STALL, None, queued(quiet_for=timedelta(hours=9)), None, None, id="only what runs can stall"),
        pytest.param(
            {},
            None,
            running(reason="BadConstraints", waited_for=timedelta(hours=9)),
            None,
            None,
            id="what runs does not wait",
        ),
        pytest.param({}, None, waits("BadConstraints", 59), None, None, id="a bad reason for a while"),
        pytest.param({}, None, waits("BadConstraints", 60), "NeverRuns", NEVER, id="a bad reason for too long"),
        pytest.param({}, None, waits("Priority", 9999), None, None, id="an ordinary reason for long"),
        pytest.param({}, None, waits("JobHeldUser", 9999), None, None, id="held by somebody"),
        pytest.param({}, None, waits("ReqNodeNotAvail, Reserved", 9999), None, None, id="a reason with words"),
        pytest.param({}, None, waits(None, 9999), None, None, id="no reason at all"),
        pytest.param(SUSPEND, LATE, None, "DeadlineExceeded", LATE, id="the deadline before a suspension"),
        pytest.param(
            {**SUSPEND, **STALL}, None, quiet(999), "Suspended", "suspended by spec.suspend", id="before a stall"
        ),
        pytest.param(STALL, LATE, quiet(999), "DeadlineExceeded", LATE, id="the deadline before a stall"),
        pytest.param(SUSPEND, None, waits("BadConstraints", 99), "Suspended", "suspended by spec.suspend", id="never"),
    ],
)
@pytest.mark.parametrize("state", [SUBMITTING, QUEUED, RUNNING])
def test_what_is_marked(
    fields: dict[str, Any],
    late: str | None,
    seen: Observed | None,
    reason: str | None,
    message: str | None,
    state: AllocationState,
) -> None:
    looked = situation(observed={0: seen} if seen else {})
    (after,) = ending.marked((allocation(state),), looked, spec(**fields), late)
    expected = {"ending": reason, "message": message} if reason else {}
    assert after == allocation(state).model_copy(update=expected)


@pytest.mark.parametrize("reason", sorted(ending.NEVER))
def test_reasons_with_which_a_job_never_runs(reason: str) -> None:
    looked = situation(observed={0: waits(reason, 60)})
    (after,) = ending.marked((allocation(QUEUED),), looked, spec(), None)
    assert after.ending == "NeverRuns"
    assert reason in (after.message or "")


@pytest.mark.parametrize("first", ["Suspended", "Stalled", "NeverRuns", "DeadlineExceeded"])
def test_the_first_reason_stays(first: str) -> None:
    before = allocation(ending=first, message="the first words")
    for fields, late in ((SUSPEND, None), ({}, LATE), (STALL, None)):
        assert ending.marked((before,), situation(observed={0: quiet(999)}), spec(**fields), late) == (before,)


def test_what_has_ended_is_not_marked() -> None:
    over = allocation(ENDED, reason="Completed")
    assert ending.marked((over,), situation(observed={0: ended()}), spec(**SUSPEND), LATE) == (over,)


def test_each_is_looked_at_for_itself() -> None:
    both = (allocation(), allocation(id=1, name="sr-1"))
    looked = situation(observed={0: quiet(1), 1: quiet(999)})
    assert [each.ending for each in ending.marked(both, looked, spec(**STALL), None)] == [None, "Stalled"]


def test_the_time_after_which_a_job_never_runs_is_the_policys() -> None:
    looked = situation(observed={0: waits("BadConstraints", 60)}, policy=Policy(never_after=timedelta(seconds=61)))
    (after,) = ending.marked((allocation(QUEUED),), looked, spec(), None)
    assert after.ending is None


@pytest.mark.parametrize(
    ("one", "gone", "cancelled"),
    [
        (allocation(ending="Suspended"), [], True),
        (allocation(SUBMITTING, ending="Suspended"), [], True),
        (allocation(QUEUED, ending="NeverRuns"), [7], True),
        (allocation(ending="Suspended"), [0], False),
        (allocation(ENDED, ending="Suspended"), [], False),
        (allocation(), [], False),
    ],
    ids=["runs", "being submitted", "waits", "known to be gone", "has ended", "not marked"],
)
def test_what_is_cancelled(one: Allocation, gone: list[int], cancelled: bool) -> None:
    found = ending.to_cancel((one,), situation(gone=frozenset(gone)))
    assert found == ((0,) if cancelled else ())


def admitted(start: float | None = 100, suspended: str | None = None, spent: int | None = None) -> Status:
    conditions = ()
    if suspended is not None:
        said = Condition(
            type=ConditionType.SUSPENDED, status=suspended, reason="Suspended", last_transition_time=at(150)
        )
        conditions = (said,)
    return Status(start_time=None if start is None else at(start), conditions=conditions, suspended_seconds=spent)


@pytest.mark.parametrize(
    ("status", "fields", "deadline"),
    [
        pytest.param(admitted(), {}, None, id="none"),
        pytest.param(admitted(None), {"activeDeadlineSeconds": 600}, None, id="not admitted yet"),
        pytest.param(admitted(), {"activeDeadlineSeconds": 600}, 700, id="from admission"),
        pytest.param(admitted(spent=50), {"activeDeadlineSeconds": 600}, 750, id="suspended time is left out"),
        pytest.param(
            admitted(suspended="True"), {"activeDeadlineSeconds": 600, "suspend": True}, None, id="while suspended"
        ),
        pytest.param(
            admitted(), {"activeDeadlineSeconds": 600, "suspend": True}, 700, id="it may be over as it is suspended"
        ),
        pytest.param(
            admitted(suspended="True", spent=50), {"activeDeadlineSeconds": 600}, 750, id="it counts from resumption on"
        ),
        pytest.param(admitted(suspended="False", spent=50), {"activeDeadlineSeconds": 600}, 750, id="resumed before"),
    ],
)
def test_the_deadline(status: Status, fields: dict[str, Any], deadline: float | None) -> None:
    assert ending.deadline(status, spec(**fields)) == (None if deadline is None else at(deadline))
    if deadline is None:
        assert ending.overdue(status, spec(**fields), at(99999)) is None
    else:
        assert ending.overdue(status, spec(**fields), at(deadline - 0.001)) is None
        assert ending.overdue(status, spec(**fields), at(deadline)) == LATE
