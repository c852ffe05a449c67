"""A namespace's pods as an API server has them, in memory: what the backend asks for and the watch that tells it.

Faults are set from outside: errors of the log endpoint, a watch that breaks, what happens meanwhile.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from speedrun_operator.api.names import Identity
from speedrun_operator.api.status import Status, rfc3339
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.backends.pods.backend import PodsBackend
from speedrun_operator.backends.pods.manifest import UID_LABEL
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.clock import Clock
from speedrun_operator.kube.client import ApiError, NotFound, Unavailable
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.decide import decide
from speedrun_operator.lifecycle.observation import JobState, Observed
from speedrun_operator.lifecycle.situation import Decision
from unit.builders import CLUSTER, REPLAY, UID, at, resource, situation

Json = dict[str, Any]
IDENTITY = Identity("lab", "mine", UID)
NAME = IDENTITY.job_name(CLUSTER, 0)
BROKEN: Json = {"type": "BROKEN"}


@dataclass
class Api:
    """Implements what is used of `kube.pods.Pods`."""

    scopes: list[str | None] = field(default_factory=lambda: [None])
    pods: dict[str, Json] = field(default_factory=dict)
    logs: dict[str, list[bytes]] = field(default_factory=dict)  # lines behind their times, by container
    log_error: ApiError | None = None
    keep_error: ApiError | None = None
    told: list[Json] = field(default_factory=list)  # events
    told_error: ApiError | None = None
    kept: list[Json] = field(default_factory=list)  # ConfigMaps
    deleted: list[str] = field(default_factory=list)
    whole_reads: int = 0  # how often a log was asked for from its beginning
    version: int = 1
    watches: list[asyncio.Queue[Json]] = field(default_factory=list)

    def put(self, pod: Json, *, heard: bool = True) -> None:
        """`heard`: the watch tells it."""
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.pods[pod["metadata"]["name"]] = pod
        self._say({"type": "MODIFIED", "object": copy.deepcopy(pod)}, heard)

    def remove(self, name: str = NAME, *, heard: bool = True) -> None:
        self.version += 1
        pod = self.pods.pop(name)
        pod["metadata"]["resourceVersion"] = str(self.version)
        self._say({"type": "DELETED", "object": pod}, heard)

    def break_off(self) -> None:
        """The watch ends with a fault; what it had not told is lost."""
        self._say(BROKEN, True)

    def _say(self, event: Json, heard: bool) -> None:
        for queue in self.watches if heard else ():
            queue.put_nowait(event)

    async def get(self, namespace: str, name: str) -> Json:
        if name not in self.pods:
            raise NotFound(404, f"pods {name} not found")
        return copy.deepcopy(self.pods[name])

    async def delete(self, namespace: str, name: str, uid: str | None = None) -> None:
        self.deleted.append(name)
        self.remove(name)

    async def listed(self, scope: str | None) -> tuple[list[Json], str]:
        return [copy.deepcopy(each) for each in self.pods.values()], str(self.version)

    async def watch(self, scope: str | None, version: str) -> AsyncIterator[Json]:
        queue: asyncio.Queue[Json] = asyncio.Queue()
        self.watches.append(queue)
        try:
            while (event := await queue.get()) is not BROKEN:
                yield event
            raise Unavailable(0, "the watch broke")
        finally:
            self.watches.remove(queue)

    async def log(
        self, namespace: str, name: str, container: str, *, since: str | None, most: int, **more: Any
    ) -> bytes:
        self.whole_reads += since is None
        if self.log_error is not None:
            raise self.log_error
        lines = self.logs.get(container, [])
        return b"".join(line for line in lines if since is None or line[:19] >= since[:19].encode())[:most]

    async def events(self, namespace: str, uid: str) -> list[Json]:
        if self.told_error is not None:
            raise self.told_error
        return self.told

    async def put_config_map(self, body: Json) -> None:
        if self.keep_error is not None:
            raise self.keep_error
        self.kept.append(body)


@dataclass
class Moving:
    """A clock that moves when it is told to; the API server's may differ from it by `skew` seconds."""

    seconds: float = 0.0
    skew: float = 0.0

    def now(self) -> datetime:
        return at(self.seconds + self.skew)

    @property
    def clock(self) -> Clock:
        return Clock(self.now, lambda: self.seconds)


class World:
    """A backend over an API server, and one allocation."""

    def __init__(self, **site: Any) -> None:
        self.api = Api()
        self.time = Moving()
        self.site = PodSite(**site)
        self.backend = self.started()
        self.ref = AllocationRef(IDENTITY, 0, at(0), "modded-nanogpt", "uid-0")

    def started(self) -> PodsBackend:
        """An operator that has just started."""
        return PodsBackend(cast(Pods, self.api), self.site, CLUSTER, clock=self.time.clock)

    async def restart(self) -> None:
        await self.backend.close()
        self.backend = self.started()

    async def look(self, seconds: float = 0.0) -> Observed:
        """One poll, `seconds` after the last one."""
        self.time.seconds += seconds
        for _ in range(20):
            await asyncio.sleep(0)  # the watch takes in what was said
        snapshot = await self.backend.observe([self.ref])
        assert snapshot.error is None, snapshot.error
        return snapshot.observed[NAME]


def pod(status: Json, *, deleted: float | None = None, node: str | None = "node-a", sidecar: bool = False) -> Json:
    metadata: Json = {
        "name": NAME,
        "namespace": "lab",
        "uid": "uid-0",
        "labels": {UID_LABEL: UID},
        "creationTimestamp": rfc3339(at(1)),
    }
    if deleted is not None:
        metadata |= {"deletionTimestamp": rfc3339(at(deleted)), "deletionGracePeriodSeconds": 20}
    containers = [{"name": "train"}, *([{"name": "agent"}] if sidecar else [])]
    spec = {"nodeName": node, "initContainers": [{"name": "code"}], "containers": containers}
    return {"metadata": metadata, "spec": spec, "status": status}


def status(phase: str, *containers: Json, **more: Any) -> Json:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(at(3))}
    code = {"name": "code", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    conditions = [scheduled, *more.pop("conditions", [])]
    return {
        "phase": phase,
        "conditions": conditions,
        "initContainerStatuses": [code],
        "containerStatuses": list(containers),
        **more,
    }


def container(name: str, **state: Any) -> Json:
    return {"name": name, "image": "registry.local/acme/trainer:nope", "state": state}


def ended(name: str = "train", code: int = 0, reason: str = "", **more: Any) -> Json:
    word = reason or ("Completed" if code == 0 else "Error")
    return container(name, terminated={"exitCode": code, "reason": word, "finishedAt": rfc3339(at(50)), **more})


RUNNING = container("train", running={})


def stamped(lines: list[str], begin: float = 4.0, apart: float = 1.0) -> list[bytes]:
    """Lines as the kubelet gives them, `apart` seconds from each other."""
    return [
        (at(0) + timedelta(seconds=begin + number * apart)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
        + b" "
        + line.encode()
        + b"\n"
        for number, line in enumerate(lines)
    ]


def whole_log(steps: int = 20, padding: int = 0) -> list[str]:
    """A run from its beginning to its result and the job's end. `padding`: bytes more on each step's line."""
    return [
        "SPEEDRUN attempt job=uid-0 node=node-a time=1",
        "SPEEDRUN run=0 begin time=1",
        "SPEEDRUN run=0 stage=train begin time=1",
        *(f"step:{step}/{steps} train_time:{50 * step}ms step_avg:50.00ms {'x' * padding}" for step in range(steps)),
        f"step:{steps}/{steps} val_loss:3.2769 train_time:{50 * steps}ms step_avg:50.00ms",
        "SPEEDRUN run=0 stage=train end exit=0 time=9",
        "SPEEDRUN run=0 end exit=0 time=9",
        "SPEEDRUN job end exit=0 time=9",
    ]


async def until_ended(world: World, seconds: float = 1.0, most: int = 4000) -> tuple[Observed, float]:
    """The end, once it is certain, and after how long."""
    began = world.time.seconds
    for _ in range(most):
        seen = await world.look(seconds)
        if seen.log_complete:
            return seen, world.time.seconds - began
    raise AssertionError("its end never becomes certain")


def refused(message: str = "dial tcp 10.0.0.9:10250: connect: connection refused") -> Unavailable:
    return Unavailable(500, message)


def result_of(seen: Observed) -> str | None:
    run = seen.log.run(0) if seen.log else None
    return run.progress.final.text if run and run.progress.final else None


def decided(world: World, seen: Observed, before: Status | None = None, **spec: object) -> Decision:
    """What becomes of a Speedrun of which this is seen."""
    given = {**REPLAY, "backend": "Pods", "pods": {"image": "registry.local/trainer"}, **spec}
    if before is None:
        before = decide(situation(resource(given), seconds=1)).status
    at_work = situation(resource(given, status=before), seconds=world.time.seconds + 2, observed={0: seen})
    return decide(at_work)


async def listed_again(world: World) -> Observed:
    """What is said of a pod that is gone, once the store has listed after its watch broke."""
    deadline = asyncio.get_running_loop().time() + 10
    while True:
        await asyncio.sleep(0.05)
        snapshot = await world.backend.observe([world.ref])
        seen = snapshot.observed.get(NAME)
        if snapshot.error is None and seen is not None and seen.state is JobState.ENDED:
            return seen
        assert asyncio.get_running_loop().time() < deadline, snapshot
