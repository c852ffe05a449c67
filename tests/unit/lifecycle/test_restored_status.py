"""A status that another object wrote, as `kubectl apply` of a back-up and its status gives to a new object."""

from __future__ import annotations

from speedrun_operator.api.names import Identity
from speedrun_operator.api.phases import AllocationState, ConditionType, Phase
from speedrun_operator.api.status import Allocation, Condition, Status
from speedrun_operator.lifecycle.decide import decide
from unit.builders import CLUSTER, NOON, UID, resource, situation

OTHER = Identity("lab", "mine", UID.replace("0f0e", "9999")).job_name(CLUSTER, 0)


def restored(**fields: object) -> Status:
    """A status with one running allocation of an object with another uid."""
    running = Allocation(id=0, name=OTHER, state=AllocationState.RUNNING, claimed=NOON, job_id="7", runs=(0,))
    return Status(phase=Phase.TRAINING, allocations=(running,), val_loss=5.0, job="7", **fields)  # type: ignore[arg-type]


def test_a_live_one_counts_for_nothing() -> None:
    decision = decide(situation(resource(status=restored())))
    assert [each.name for each in decision.status.allocations] == [OTHER.replace("9999", "0f0e")]
    assert (decision.status.phase, decision.status.val_loss, decision.status.job) == (Phase.PENDING, None, None)
    assert [each.allocation for each in decision.submit] == [0]


def test_a_finished_one_stays() -> None:
    done = Condition(
        type=ConditionType.FINISHED, status="True", reason="TargetReached", last_transition_time=NOON, message=""
    )
    status = restored(conditions=(done,))
    assert decide(situation(resource(status=status))).status == status
