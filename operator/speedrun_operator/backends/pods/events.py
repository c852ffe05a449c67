"""Why a pod does not get on where its status says nothing: no scheduler has taken it, no container of it begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from speedrun_operator.backends.pods import volumes
from speedrun_operator.backends.pods.fields import Pod, moment
from speedrun_operator.backends.pods.memory import Memory
from speedrun_operator.backends.pods.observe import UNSCHEDULED, started_containers
from speedrun_operator.backends.pods.words import STUCK
from speedrun_operator.clock import Clock
from speedrun_operator.kube.client import ApiError
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.observation import JobState, Observed

logger = logging.getLogger(__name__)
LATE_SECONDS = 15.0  # a pod has a node by then, and on a node a container, or waits for an image
AGAIN_SECONDS = 15.0
SANDBOX = "FailedCreatePodSandBox"
_GOES_ON = ("Pulling", "Pulled", "Created", "Started")  # comes after the sandbox and the volumes only
_Told = tuple[str, str]
_Event = Mapping[str, Any]


class Events:
    """See the module. Costs one request each AGAIN_SECONDS for a pod of which nothing has been said for a while."""

    def __init__(self, pods: Pods, clock: Clock) -> None:
        self._pods = pods
        self._monotonic = clock.monotonic

    async def told(self, seen: Observed, pod: Pod, memory: Memory) -> Observed:
        """`seen` with what the events say."""
        unplaced = seen.state is JobState.QUEUED and seen.reason == UNSCHEDULED
        unbegun = seen.state is JobState.RUNNING and not seen.reason and not started_containers(pod)
        stands = UNSCHEDULED if unplaced else "Unbegun" if unbegun else None
        now = self._monotonic()
        if stands != memory.stands:
            memory.stands, memory.stands_since, memory.events_at, memory.told = stands, now, None, None
        if stands is None:
            return seen
        if now - memory.stands_since < LATE_SECONDS:
            return replace(seen, reason=None, message=None)  # as of every pod, for a moment
        events = await self._new(pod, memory, now)
        if events is not None:
            memory.told = (unscheduled(pod, events) or memory.told) if unplaced else not_begun(pod, events)
        told = memory.told or (no_scheduler(pod) if unplaced else None)
        return seen if told is None else replace(seen, reason=told[0], message=told[1])

    async def _new(self, pod: Pod, memory: Memory, now: float) -> Sequence[_Event] | None:
        """Its events, if it is time to ask again and there is an answer."""
        if memory.events_at is not None and now - memory.events_at < AGAIN_SECONDS:
            return None
        memory.events_at = now
        try:
            return await self._pods.events(pod["metadata"]["namespace"], pod["metadata"]["uid"])
        except ApiError as error:
            logger.debug("the events of pod %s cannot be read: %s", pod["metadata"]["name"], error)
            return None


def unscheduled(pod: Pod, events: Sequence[_Event]) -> _Told | None:
    """What a scheduler said last of a pod whose status it leaves alone; None: nothing. Pure."""
    last = _newest([each for each in events if each.get("type") == "Warning"])
    if last is None:
        return None
    return (
        UNSCHEDULED,
        f"the scheduler {_scheduler(pod)} does not place it: {last.get('reason')}: {last.get('message')}",
    )


def no_scheduler(pod: Pod) -> _Told:
    return UNSCHEDULED, (
        f"no scheduler has looked at it: see that one called {_scheduler(pod)} runs and watches this namespace "
        "(spec.pods.schedulerName, the setting pods.scheduler_name)"
    )


def not_begun(pod: Pod, events: Sequence[_Event]) -> _Told | None:
    """The newest word of why no container begins, with the remedy; None: there is none. Pure."""
    wanted = (*volumes.REASONS, SANDBOX)
    last = _newest([each for each in events if each.get("reason") in wanted and each.get("type") == "Warning"])
    if last is None or any(each.get("reason") in _GOES_ON and _when(each) >= _when(last) for each in events):
        return None
    said, remedy = str(last.get("message") or ""), STUCK[last["reason"]][0]
    if last["reason"] in volumes.REASONS and (named := volumes.named(pod, said)):
        remedy = f"{named}: {remedy}"
    return last["reason"], f"{last['reason']}: {said} ({remedy})"


def _scheduler(pod: Pod) -> str:
    return str(pod["spec"].get("schedulerName") or "default-scheduler")


def _newest(events: Sequence[_Event]) -> _Event | None:
    return max(events, key=_when, default=None)


def _when(event: _Event) -> datetime:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    found = (moment(each) for each in (*times, event.get("firstTimestamp")))
    return next((each for each in found if each is not None), datetime.min.replace(tzinfo=UTC))
