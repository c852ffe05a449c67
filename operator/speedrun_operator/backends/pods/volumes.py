"""Why no container of a pod starts: volumes that cannot be mounted, which its events tell and its status does not."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from speedrun_operator.backends.pods.fields import Pod, moment
from speedrun_operator.backends.pods.memory import Memory
from speedrun_operator.backends.pods.observe import started_containers
from speedrun_operator.backends.pods.words import STUCK
from speedrun_operator.clock import Clock
from speedrun_operator.kube.client import ApiError
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.observation import JobState, Observed

logger = logging.getLogger(__name__)
LATE = timedelta(seconds=15)  # a pod whose volumes are mounted has a container by then, or waits for an image
AGAIN_SECONDS = 15.0
REASONS = ("FailedAttachVolume", "FailedMount")
MOUNTED = ("Pulling", "Pulled", "Created", "Started")  # comes after the volumes only


class Volumes:
    """See the module. Costs one request each AGAIN_SECONDS for a pod on a node without any container begun."""

    def __init__(self, pods: Pods, clock: Clock) -> None:
        self._pods = pods
        self._monotonic = clock.monotonic

    async def told(self, seen: Observed, pod: Pod, memory: Memory) -> Observed:
        """`seen` with what the events say of its volumes."""
        late = seen.started is not None and seen.asked - seen.started >= LATE
        if seen.state is not JobState.RUNNING or seen.reason or not late or started_containers(pod):
            return seen
        now = self._monotonic()
        if memory.events_at is None or now - memory.events_at >= AGAIN_SECONDS:
            memory.events_at = now
            try:
                events = await self._pods.events(pod["metadata"]["namespace"], pod["metadata"]["uid"])
            except ApiError as error:
                logger.debug("the events of pod %s cannot be read: %s", pod["metadata"]["name"], error)
                return seen
            memory.volumes = failed_mount(pod, events)
        if memory.volumes is None:
            return seen
        return replace(seen, reason=memory.volumes[0], message=memory.volumes[1])


def failed_mount(pod: Pod, events: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The newest word of volumes that cannot be mounted, with the remedy; None: there is none. Pure."""
    told = [each for each in events if each.get("reason") in REASONS and each.get("type") == "Warning"]
    last = max(told, key=_when, default=None)
    if last is None or any(each.get("reason") in MOUNTED and _when(each) >= _when(last) for each in events):
        return None
    said = str(last.get("message") or "")
    volumes = pod["spec"].get("volumes") or []
    meant = [each for each in volumes if _is_meant(each, said)]
    # What is quoted may be the persistent volume behind a claim.
    named = "; ".join(map(_named, meant or [each for each in volumes if "persistentVolumeClaim" in each]))
    remedy = f"{named}: {STUCK[last['reason']][0]}" if named else STUCK[last["reason"]][0]
    return last["reason"], f"{last['reason']}: {said} ({remedy})"


def _when(event: Mapping[str, Any]) -> datetime:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event.get("firstTimestamp"))
    return next((at for each in times if (at := moment(each)) is not None), datetime.min.replace(tzinfo=UTC))


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
