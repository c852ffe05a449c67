"""A Speedrun living through what is seen of it: each step decides, and writes as the API server would keep it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from speedrun_operator.api.resource import Resource
from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.api.status import Status
from speedrun_operator.kube.client import merge_patch
from speedrun_operator.lifecycle.decide import decide
from speedrun_operator.lifecycle.observation import Observed, Outcome, Unknown
from speedrun_operator.lifecycle.situation import Decision, Waiting
from unit.builders import REPLAY, patched, raw, situation
from unit.structural import faults

STATUS_SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]

Step = Callable[[Status], Mapping[str, Any]]
"""What is new: the status before → fields of Situation; of metadata under `metadata`, of the spec under `spec`."""


def woken(**changes: Any) -> Step:
    """Nothing new was seen; an event of the watch, or a retry."""
    return lambda status: changes


def edited(**fields: Any) -> Step:
    """Somebody changed these fields of the spec; None takes one away."""
    return lambda status: {"spec": fields}


def saw(observed: Mapping[int, Observed], **changes: Any) -> Step:
    """A poll saw these allocations."""
    return woken(observed=observed, **changes)


def heard(outcome: Outcome) -> Step:
    """The outcome of submitting the newest allocation."""
    return lambda status: {"outcomes": {len(status.allocations) - 1: outcome}}


def seen(observed: Observed) -> Step:
    """A poll saw the newest allocation."""
    return lambda status: {"observed": {len(status.allocations) - 1: observed}}


SILENCE: Step = woken(unanswered=Unknown("LoginUnreachable", "the login does not answer", reachable=False))
NO_LOGIN: Step = woken(waiting=Waiting("LoginNotConfigured", "set login.host"))


class Life:
    """One Speedrun. `seconds` is its age; every step takes ten of them unless it says otherwise."""

    def __init__(self, spec: Mapping[str, Any] | None = REPLAY, status: Status | None = None) -> None:
        self.spec = dict(spec) if spec is not None else None
        self.stored: dict[str, Any] = status.dump() if status else {}
        self.metadata: dict[str, Any] = {}
        self.seconds = 0.0

    @property
    def resource(self) -> Resource:
        return Resource.parse(raw(self.spec, self.stored, **self.metadata))

    @property
    def status(self) -> Status:
        return self.resource.status

    def decide(self, step: Step) -> Decision:
        """What follows from `step` now, without writing it."""
        changes = dict(step(self.status))
        self.metadata |= changes.pop("metadata", {})
        if edit := changes.pop("spec", {}):
            changed = {**(self.spec or {}), **edit}
            self.spec = {name: value for name, value in changed.items() if value is not None}
        return decide(situation(self.resource, seconds=self.seconds, **changes))

    def live(self, step: Step, seconds: float = 10) -> Decision:
        """`step`, `seconds` later; its status is written. Raises AssertionError where the server would refuse it."""
        self.seconds += seconds
        decision = self.decide(step)
        self.write(decision.status)
        return decision

    def write(self, status: Status) -> None:
        dumped = json.loads(json.dumps(status.dump(), allow_nan=False))
        assert list(faults(STATUS_SCHEMA, dumped, "status")) == []
        self.stored = patched(self.stored, merge_patch(self.stored, dumped))
        assert self.status == status, "what is read again is what was decided"
