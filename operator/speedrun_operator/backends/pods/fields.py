"""What a pod is made of, looked up in the API server's description of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from speedrun_operator.backends.pods.places import TRAIN

Pod = Mapping[str, Any]


def has_ended(pod: Pod) -> bool:
    """Whether nothing of it runs any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_over(pod: Pod) -> bool:
    """Whether its training has ended while something else in it may still run."""
    return terminated(pod, TRAIN) is not None


def condition(pod: Pod, type_: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == type_), {})


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC) if text else None
    except ValueError:
        return None


def grace(pod: Pod) -> timedelta:
    """How long it may take to end once it is deleted."""
    return timedelta(seconds=pod["metadata"].get("deletionGracePeriodSeconds") or 0)


def deletion_asked(pod: Pod) -> datetime | None:
    """When somebody asked for its deletion, by the API server's clock: what it calls the time is the last moment."""
    last = moment(pod["metadata"].get("deletionTimestamp"))
    return None if last is None else last - grace(pod)


def statuses(pod: Pod) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def listed(pod: Pod, field: str) -> list[Mapping[str, Any]]:
    return list((pod.get("spec") or {}).get(field) or [])


def steps_before(pod: Pod) -> frozenset[str]:
    """Names of the init containers that end before training begins; others run beside it."""
    return frozenset(each["name"] for each in listed(pod, "initContainers") if not each.get("restartPolicy"))


def state(pod: Pod, container: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((each for each in statuses(pod) if each.get("name") == container), {})
    return found.get("state") or {}


def terminated(pod: Pod, container: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = state(pod, container).get("terminated")
    return found


def ended_at(pod: Pod) -> datetime | None:
    times = [moment(((each.get("state") or {}).get("terminated") or {}).get("finishedAt")) for each in statuses(pod)]
    return max((each for each in times if each is not None), default=None)
