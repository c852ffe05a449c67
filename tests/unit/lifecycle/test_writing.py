"""Which changes are written at once: all but the numbers that move with every step."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.phases import ConditionType, Phase
from speedrun_operator.api.status import Clock, Condition, Hardware, Run, StageSummary, Status
from speedrun_operator.lifecycle.writing import is_urgent
from unit.builders import NOON

RUN = Run(index=0, arm="A", phase=Phase.TRAINING, val_loss=4.0, train_time="1.000s", train_time_ms=1000)
OLD = Status(phase=Phase.TRAINING, val_loss=4.0, train_time="1.000s", train_time_ms=1000, step=5, runs=(RUN,))
SILENT = Condition(type=ConditionType.BACKEND_REACHABLE, status="False", reason="Silence", last_transition_time=NOON)
CODE = StageSummary(name="code", seconds=1.5, exit_code=0)
LATER = {"train_time": "2.000s", "train_time_ms": 2000}


@pytest.mark.parametrize(
    ("changes", "urgent"),
    [
        ({}, False),
        ({"step": 6, "total_steps": 20, "progress_percentage": 30, "estimated_remaining_seconds": 9}, False),
        ({"step_avg": 50.1}, False),
        ({**LATER, "runs": (RUN.model_copy(update=LATER),)}, False),
        ({"runs": (RUN.model_copy(update={"hardware": Hardware(node="a"), "stages": (CODE,)}),)}, False),
        ({"clock": Clock(train_milliseconds=2000)}, False),
        ({"val_loss": 3.9}, True),
        ({"phase": Phase.SUCCEEDED}, True),
        ({"reason": "Silence"}, True),
        ({"conditions": (SILENT,)}, True),
        ({"runs": (RUN.model_copy(update={"val_loss": 3.9}),)}, True),
        ({"runs": ()}, True),
        ({"node": "node-b"}, True),
        ({"observed_generation": 2}, True),
    ],
    ids=lambda each: ",".join(each) if isinstance(each, dict) else None,
)
def test_what_is_written_at_once(changes: dict[str, Any], urgent: bool) -> None:
    assert is_urgent(OLD, OLD.model_copy(update=changes)) is urgent
