"""Speedruns of backend Pods as the tests make them, and their pods as kubectl shows them."""

from __future__ import annotations

import json
import shlex
from typing import Any

from cluster.speedruns import Speedruns, speedrun

SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}}


def on_pods(
    name: str, recipe: str = "replay", parameters: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A Speedrun whose pod asks for little; `pods` in `fields` are further options of it."""
    pods = {"resources": SMALL, **fields.pop("pods", {})}
    given = parameters if parameters is not None else {"steps": 5, "intervalMilliseconds": 20}
    return speedrun(name, recipe, given, backend="Pods", pods=pods, **fields)


def slow_pod(name: str, **fields: Any) -> dict[str, Any]:
    """A replay that trains for two minutes, a step a second."""
    return on_pods(name, parameters={"steps": 120, "intervalMilliseconds": 1000}, **fields)


def pods_of(runs: Speedruns, name: str) -> list[dict[str, Any]]:
    labels = f"speedrun.dev/name={name}"
    found = json.loads(runs.kubectl("get", "pods", "-n", runs.namespace, "-l", labels, "-o", "json"))
    return sorted(found["items"], key=lambda each: str(each["metadata"]["name"]))


def log_of(runs: Speedruns, status: dict[str, Any]) -> str:
    """The log that the command in status shows; what stands behind it is a comment."""
    return runs.kubectl(*shlex.split(status["logPath"], comments=True)[1:])


def trains(status: dict[str, Any]) -> bool:
    return status.get("phase") == "Training" and (status.get("step") or 0) > 0
