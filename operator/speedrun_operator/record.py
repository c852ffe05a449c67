"""The engine's writes to one Speedrun: its status, on the version decided on, and the label of finished ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from speedrun_operator.api.names import FINISHED_LABEL
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import Status
from speedrun_operator.clock import Clock
from speedrun_operator.entries import Entry
from speedrun_operator.kube import events
from speedrun_operator.kube.client import Conflict, Kube, NotFound, merge_patch
from speedrun_operator.lifecycle.situation import Notice
from speedrun_operator.lifecycle.writing import is_urgent

logger = logging.getLogger(__name__)


class Record:
    """See the module. Methods raise ApiError."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._clock = clock
        self._kube = kube

    async def write(self, entry: Entry, new: Status, notices: Sequence[Notice], *, fresh: bool) -> None:
        """Write what differs, on the version decided on; then post events. `fresh`: read if nothing differs."""
        resource = entry.resource
        patch = merge_patch(resource.status.dump(), new.dump())
        if not patch:
            if fresh:
                await self.read(entry)
            return
        if not is_urgent(resource.status, new) and entry.quiet_polls < 2:
            return
        identity = resource.identity
        body = {"metadata": {"resourceVersion": resource.resource_version}, "status": patch}
        raw = await self._kube.patch_speedrun(identity.namespace, identity.name, body, subresource="status")
        entry.resource = Resource.parse(raw)
        entry.quiet_polls = 0
        for notice in notices:
            log = logger.warning if notice.warning else logger.info
            log("%s: %s: %s", identity, notice.reason, notice.message)
            await events.post(self._kube, identity, notice, self._clock.now())

    async def read(self, entry: Entry) -> None:
        """The newest version. NotFound also where another object has the name now."""
        identity = entry.resource.identity
        resource = Resource.parse(await self._kube.get_speedrun(identity.namespace, identity.name))
        if resource.identity.uid != identity.uid:
            raise NotFound(404, f"{identity} is another object now")
        entry.resource = resource

    async def label(self, entry: Entry) -> None:
        """Take a finished resource out of the watch that Kopf does not hold: else it does so as it lets go."""
        resource = entry.resource
        if resource.protected or resource.labelled_finished:
            return
        identity = resource.identity
        body = {
            "metadata": {"resourceVersion": resource.resource_version, "labels": {FINISHED_LABEL: "true"}},
        }
        try:
            entry.resource = Resource.parse(await self._kube.patch_speedrun(identity.namespace, identity.name, body))
        except Conflict:
            await self.read(entry)
            entry.again = True
