"""Suspending and resuming: the condition, and the count of suspended time that the deadline leaves out."""

from __future__ import annotations

from datetime import datetime

from speedrun_operator.api.phases import ConditionType, Reason
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Status
from speedrun_operator.lifecycle.conditions import Say


def suspension(status: Status, spec: Spec, now: datetime) -> tuple[Status, list[Say]]:
    """The status with the suspended time counted up, and what the condition shall say."""
    before = status.condition(ConditionType.SUSPENDED)
    was = before is not None and before.status == "True"
    if spec.suspend:
        return status, [Say(ConditionType.SUSPENDED, "True", Reason.SUSPENDED.value, "by spec.suspend")]
    if not was or before is None:
        return status, []
    spent = max(0, round((now - before.last_transition_time).total_seconds()))
    status = status.model_copy(update={"suspended_seconds": (status.suspended_seconds or 0) + spent})
    return status, [Say(ConditionType.SUSPENDED, "False", Reason.RESUMED.value)]
