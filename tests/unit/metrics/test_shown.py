"""The projection of a Speedrun, of its status."""

from __future__ import annotations

from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import rfc3339
from speedrun_operator.shown import Shown
from unit.builders import at, raw

ALLOCATION = {"id": 0, "name": "sr-1", "claimed": rfc3339(at(0)), "submitted": rfc3339(at(2))}


def shown(status: dict[str, object]) -> Shown:
    return Shown.of(Resource.parse(raw(status=status)))


def test_a_new_one_is_pending() -> None:
    new = Shown.of(Resource.parse(raw()))
    assert (new.phase, new.recipe, new.backend) == ("Pending", "replay", "Slurm")
    assert (new.val_loss, new.progress, new.queued(at(9)), new.conditions) == (None, None, None, ())


def test_units_are_seconds_and_parts_of_one() -> None:
    one = shown(
        {"phase": "Training", "train_time_ms": 58432, "step_avg": 97.5, "progressPercentage": 40,
         "clock": {"queueMilliseconds": 1500}}
    )  # fmt: skip
    assert (one.train_seconds, one.step_seconds, one.progress, one.queued(at(0))) == (58.432, 0.0975, 0.4, 1.5)


def test_waiting_counts_from_the_submission() -> None:
    one = shown({"phase": "Queued", "allocations": [{**ALLOCATION, "state": "Queued"}]})
    assert one.queued(at(62)) == 60
    started = shown({"phase": "Training", "allocations": [{**ALLOCATION, "state": "Running"}]})
    assert started.queued(at(62)) is None


def test_conditions_that_are_unknown_are_left_out_and_finished_ones_have_none() -> None:
    moment = rfc3339(at(0))
    said = [
        {"type": type_, "status": status, "reason": "X", "lastTransitionTime": moment}
        for type_, status in (("Admitted", "True"), ("Stalled", "Unknown"), ("BackendReachable", "False"))
    ]
    assert shown({"phase": "Training", "conditions": said}).conditions == (
        ("Admitted", True),
        ("BackendReachable", False),
    )
    assert shown({"phase": "Failed", "conditions": said}).conditions == ()


def test_a_spec_that_does_not_validate_is_shown_too() -> None:
    odd = Shown.of(Resource.parse(raw({"recipe": {"name": 7}})))
    assert (odd.phase, odd.recipe, odd.backend) == ("Pending", "", "")
