"""Which volume of a pod an event is about: its status tells nothing of those that cannot be mounted. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from speedrun_operator.backends.pods.fields import Pod

REASONS = ("FailedAttachVolume", "FailedMount")


def named(pod: Pod, said: str) -> str:
    """The volumes that a message is about, and what they are of; empty: none is known."""
    volumes = pod["spec"].get("volumes") or []
    meant = [each for each in volumes if _is_meant(each, said)]
    # What is quoted may be the persistent volume behind a claim.
    return "; ".join(map(_named, meant or [each for each in volumes if "persistentVolumeClaim" in each]))


def _is_meant(volume: Mapping[str, Any], said: str) -> bool:
    """Whether a message is about this volume. It names volumes in quotation marks or in a list, or what they are of."""
    words = {volume["name"], _source(volume)[1]}
    return not words.isdisjoint(re.split(r'["\[\], ]', said))


def _named(volume: Mapping[str, Any]) -> str:
    kind, name = _source(volume)
    if kind == "PersistentVolumeClaim":
        return f"volume {volume['name']} is the claim {name} (kubectl describe pvc {name})"
    return f"volume {volume['name']} is the {kind} {name}"


def _source(volume: Mapping[str, Any]) -> tuple[str, str]:
    """What a volume is made of, and its name."""
    if claim := volume.get("persistentVolumeClaim"):
        return "PersistentVolumeClaim", str(claim.get("claimName"))
    if made := volume.get("configMap"):
        return "ConfigMap", str(made.get("name"))
    return "directory", str(volume.get("name"))
