"""ttlSecondsAfterFinished: finished Speedruns that ask for it are deleted at their time. Their ledgers stay.

Finished Speedruns are out of the watch, so what is known of them comes from the moment they finish and from resync; a
change made later counts from the next resync on. Before it is deleted, an object is read again and deleted in that very
version only.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from speedrun_operator.api.names import Identity
from speedrun_operator.api.resource import Resource
from speedrun_operator.clock import SYSTEM, Clock
from speedrun_operator.kube.client import ApiError, Conflict, Kube, NotFound, speedrun_path
from speedrun_operator.lifecycle.decide import is_finished

logger = logging.getLogger(__name__)
PERIOD_SECONDS = 5.0
AGAIN_SECONDS = 30


def expires(resource: Resource) -> datetime | None:
    """When a Speedrun is to be deleted; None: not by us."""
    status = resource.status
    if resource.spec is None or resource.spec.ttl_seconds_after_finished is None or status.completion_time is None:
        return None
    if not is_finished(status) or resource.deleting:
        return None
    return status.completion_time + timedelta(seconds=resource.spec.ttl_seconds_after_finished)


class Expiry:
    """What is to be deleted, and when. For one event loop."""

    def __init__(self, kube: Kube, clock: Clock = SYSTEM) -> None:
        self._kube = kube
        self._clock = clock
        self._due: dict[Identity, datetime] = {}

    def note(self, resource: Resource) -> None:
        """A version of an object was seen."""
        at = expires(resource)
        if at is None:
            self._due.pop(resource.identity, None)
        else:
            self._due[resource.identity] = at

    async def run(self) -> None:
        """Delete what is due until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            now = self._clock.now()
            for identity in [each for each, at in self._due.items() if at <= now]:
                await self._delete(identity, now)

    async def _delete(self, identity: Identity, now: datetime) -> None:
        try:
            raw = await self._kube.get_speedrun(identity.namespace, identity.name)
            resource = Resource.parse(raw)
            if resource.identity != identity:
                raise NotFound(404, "another object has the name now")
            self.note(resource)
            if (at := expires(resource)) is None or at > now:
                return
            body = {"preconditions": {"uid": identity.uid, "resourceVersion": resource.resource_version}}
            await self._kube.request("DELETE", speedrun_path(identity.namespace, identity.name), body=body)
            logger.info("%s: deleted, ttlSecondsAfterFinished is over", identity)
            self._due.pop(identity, None)
        except NotFound:
            self._due.pop(identity, None)
        except Conflict:
            pass  # it changed just now: looked at again in a moment
        except ApiError as error:
            logger.warning("%s: not deleted at its time: %s", identity, error)
            self._due[identity] = now + timedelta(seconds=AGAIN_SECONDS)
