"""Whether a Speedrun may be submitted: yes, not yet (heals without an edit), or no (only another spec heals it)."""

from __future__ import annotations

from dataclasses import dataclass

from speedrun_operator.api.phases import ConditionType, Reason
from speedrun_operator.api.status import Preparation
from speedrun_operator.lifecycle.conditions import Say
from speedrun_operator.lifecycle.situation import Situation
from speedrun_operator.planning import Refusal


@dataclass(frozen=True, slots=True)
class Admission:
    """`refused` is for good."""

    admitted: bool
    refused: bool
    reason: str
    message: str

    def say(self) -> Say:
        return Say(ConditionType.ADMITTED, "True" if self.admitted else "False", self.reason, self.message)


def held(waits: Preparation) -> Admission:
    """The admission of what could be submitted but for an entry that cannot be prepared (now)."""
    return Admission(False, False, waits.reason or Reason.PREPARING.value, waits.message or "")


def admit(situation: Situation) -> Admission:
    """The admission of a Speedrun that has no allocation yet."""
    resource = situation.resource
    if resource.spec is None:
        return Admission(False, True, Reason.INVALID_SPEC.value, resource.spec_error or "spec is not valid")
    if isinstance(situation.plan, Refusal):
        return Admission(False, True, situation.plan.reason.value, situation.plan.message)
    if situation.waiting is not None:
        waiting = situation.waiting
        return Admission(False, waiting.permanent, waiting.reason, waiting.message)
    return Admission(True, False, Reason.ADMITTED.value, "the plan is in status.plan")
