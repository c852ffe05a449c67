"""Runs that wait and will never get a job have failed: past the deadline, without a plan, after a refusal of Slurm."""

from __future__ import annotations

import pytest

from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.admission import Admission
from speedrun_operator.lifecycle.giving_up import given_up
from unit.builders import NOON

ADMITTED = Admission(True, False, "Admitted", "the plan is in status.plan")
WAITS = Admission(False, False, "LoginNotConfigured", "set login.host")
REFUSED = Admission(False, True, "InvalidParameter", "spec.recipe.parameters.seed: must be from 0 to 9")
RUNS = (
    Run(index=0, arm="A", phase=Phase.SUCCEEDED, allocation=0, counted=True, val_loss=3.2),
    Run(index=1, arm="A", phase=Phase.FAILED, allocation=0, reason="JobFailed"),
    Run(index=2, arm="A", phase=Phase.TRAINING, allocation=1),
    Run(index=3, arm="A", phase=Phase.PENDING, allocation=1),
    Run(index=4, arm="A", phase=Phase.PENDING),
    Run(index=5, arm="A", phase=Phase.PENDING),
)


def allocation(state: AllocationState, reason: str, message: str | None = None) -> Allocation:
    return Allocation(id=0, name="sr-0", state=state, claimed=NOON, reason=reason, message=message)


ENDED = AllocationState.ENDED
DONE = allocation(ENDED, "Completed")
REJECTED = allocation(ENDED, "SubmissionRejected", "sbatch refused the job")


@pytest.mark.parametrize(
    ("allocations", "late", "verdict", "why"),
    [
        pytest.param([DONE], None, ADMITTED, None, id="they go on"),
        pytest.param([DONE], None, WAITS, None, id="they wait for a login"),
        pytest.param([DONE], "too late", ADMITTED, ("DeadlineExceeded", "too late"), id="past the deadline"),
        pytest.param([DONE], "too late", WAITS, ("DeadlineExceeded", "too late"), id="which waits for nothing"),
        pytest.param([DONE], None, REFUSED, ("InvalidParameter", REFUSED.message), id="no plan"),
        pytest.param(
            [DONE, REJECTED], None, ADMITTED, ("SubmissionRejected", "sbatch refused the job"), id="refused by Slurm"
        ),
        pytest.param(
            [DONE, allocation(ENDED, "NeverRuns", "no such account")],
            None,
            ADMITTED,
            ("NeverRuns", "no such account"),
            id="never run by Slurm",
        ),
        pytest.param(
            [allocation(AllocationState.SUBMITTING, "SubmissionRejected")], None, ADMITTED, None, id="not for certain"
        ),
        *(
            pytest.param([allocation(ENDED, reason)], None, ADMITTED, None, id=f"after {reason}")
            for reason in ("JobFailed", "NodeFailure", "TimeLimit", "Cancelled", "JobLost", "Stalled", "Suspended")
        ),
    ],
)
def test_given_up(
    allocations: list[Allocation], late: str | None, verdict: Admission, why: tuple[str, str] | None
) -> None:
    after = given_up(RUNS, tuple(allocations), late, verdict)
    assert after[:4] == RUNS[:4], "what has a job keeps it, and what is finished stays"
    if why is None:
        assert after == RUNS
        return
    for run in after[4:]:
        assert (run.phase, run.reason, run.message, run.counted, run.allocation) == (Phase.FAILED, *why, False, None)
