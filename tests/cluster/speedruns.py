"""Speedruns as the cluster tests make and watch them: what a user would apply, and what a user would see."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from testbed.kubectl import Kubectl

POLL = 0.2


def speedrun(
    name: str, recipe: str = "replay", parameters: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "speedrun.dev/v1alpha1",
        "kind": "Speedrun",
        "metadata": {"name": name},
        "spec": {"recipe": {"name": recipe, "parameters": parameters or {}}, **spec},
    }


def quick(name: str, **parameters: Any) -> dict[str, Any]:
    """A replay of ten steps that lasts about a second."""
    return speedrun(name, parameters={"steps": 10, "intervalMilliseconds": 50, **parameters})


def slow(name: str, seconds: int = 60, **parameters: Any) -> dict[str, Any]:
    """A replay that trains for `seconds`, a step a second."""
    return speedrun(name, parameters={"steps": seconds, "intervalMilliseconds": 1000, **parameters})


class Speedruns:
    """The Speedruns of one namespace."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl = kubectl
        self.namespace = namespace

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-n", self.namespace, "-f", "-", stdin=json.dumps({
            "apiVersion": "v1", "kind": "List", "items": list(objects),
        }))  # fmt: skip

    def get(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", "speedrun", name, "-n", self.namespace, "-o", "json")))

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.get(name).get("status", {}))

    def names(self) -> list[str]:
        return self.kubectl("get", "speedruns", "-n", self.namespace, "-o", "name").split()

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """(type, reason, message) of each event on the Speedrun."""
        found = json.loads(self.kubectl("get", "events", "-n", self.namespace, "-o", "json"))["items"]
        return [
            (each["type"], each["reason"], each.get("message", ""))
            for each in found
            if each["involvedObject"]["name"] == name
        ]

    def wait_event(self, name: str, holds: Callable[[tuple[str, str, str]], bool], timeout: float = 20) -> None:
        """Until `holds` of one of `events`: each comes after the status that it is about. Fails showing them."""
        deadline = time.monotonic() + timeout
        while not any(map(holds, events := self.events(name))):
            assert time.monotonic() < deadline, f"{name}: no such event within {timeout:g} s: {events}"
            time.sleep(POLL)

    def wait(
        self, name: str, what: str, condition: Callable[[dict[str, Any]], bool], timeout: float = 60
    ) -> dict[str, Any]:
        """The status once `condition` holds of it; fails showing the last one."""
        deadline = time.monotonic() + timeout
        while True:
            status = self.status(name)
            if condition(status):
                return status
            if time.monotonic() > deadline:
                raise AssertionError(f"{name}: not {what} within {timeout:g} s: {json.dumps(status, indent=1)}")
            time.sleep(POLL)

    def wait_phase(self, name: str, *phases: str, timeout: float = 60) -> dict[str, Any]:
        return self.wait(name, f"in {phases}", lambda status: status.get("phase") in phases, timeout)

    def wait_finished(self, name: str, timeout: float = 60) -> dict[str, Any]:
        return self.wait(name, "finished", finished, timeout)

    def wait_gone(self, name: str, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while f"speedrun.speedrun.dev/{name}" in self.names():
            assert time.monotonic() < deadline, f"{name} was not deleted: {self.get(name)}"
            time.sleep(POLL)


def condition(status: dict[str, Any], type_: str) -> dict[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == type_), {})


def finished(status: dict[str, Any]) -> bool:
    return condition(status, "Finished").get("status") == "True"
