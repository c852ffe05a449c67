"""StorageLow: said on live resources while the shared storage is nearly full, and taken back."""

from __future__ import annotations

from speedrun_operator.api.phases import ConditionType
from speedrun_operator.api.status import Condition, Status
from speedrun_operator.lifecycle.decide import decide
from speedrun_operator.lifecycle.observation import Accepted
from speedrun_operator.lifecycle.situation import Decision
from speedrun_operator.preparation.storage import GIB, Storage
from unit.builders import at, resource, running, situation


def live() -> Status:
    first = decide(situation())
    return decide(situation(resource(status=first.status), outcomes={0: Accepted("17", at(1))})).status


def looked(status: Status, used: int) -> Decision:
    storage = Storage(100 * GIB, used * GIB, (100 - used) * GIB)
    return decide(situation(resource(status=status), observed={0: running()}, storage=storage))


def low(decision: Decision) -> Condition | None:
    return decision.status.condition(ConditionType.STORAGE_LOW)


def test_from_85_percent_on_it_is_said_once_with_numbers() -> None:
    assert low(looked(live(), 84)) is None
    said = looked(live(), 85)
    condition = low(said)
    assert condition is not None and (condition.status, condition.reason) == ("True", "StorageLow")
    assert condition.message.startswith("85% of 100.0 GiB below slurm.root are used")
    assert [notice.warning for notice in said.notices if notice.reason == "StorageLow"] == [True]
    again = looked(said.status, 85)
    assert again.status.conditions == said.status.conditions
    assert not any(notice.reason == "StorageLow" for notice in again.notices)


def test_it_is_taken_back_when_there_is_room_again() -> None:
    condition = low(looked(looked(live(), 90).status, 50))
    assert condition is not None and (condition.status, condition.reason) == ("False", "StorageSuffices")


def test_a_storage_that_nobody_looked_at_changes_nothing() -> None:
    said = looked(live(), 90)
    after = decide(situation(resource(status=said.status), observed={0: running()}))
    assert low(after) == low(said)
