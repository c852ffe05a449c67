"""The lists of the resync, where one namespace cannot be listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.backends.base import MarkedJob, PrepareJob
from speedrun_operator.backends.memory import Cluster, MemoryBackend
from speedrun_operator.entries import Setup
from speedrun_operator.kube.client import Refused
from speedrun_operator.lifecycle.situation import Policy
from speedrun_operator.reconcile import Engine
from speedrun_operator.resync import Resync
from unit.builders import SITE
from unit.engine_world import ApiServer


class Backend(MemoryBackend):
    """A login with jobs of Speedruns that are gone, and one that prepares what nobody waits for."""

    def __init__(self) -> None:
        super().__init__(Cluster(lambda plan: ()))
        self.ended: list[str] = []

    async def jobs(self) -> Sequence[MarkedJob | PrepareJob]:
        gone = [
            MarkedJob(
                id=str(number),
                name=Identity(namespace, "x", f"u-{number}").job_name("c", 0),
                uid=f"u-{number}",
                namespace=namespace,
            )
            for number, namespace in enumerate(("a", "b", "elsewhere"))
        ]
        return [*gone, PrepareJob(id="9", name="sp-c-key-0", key="key", scope="all")]

    async def cancel_jobs(self, jobs: Sequence[MarkedJob | PrepareJob]) -> None:
        self.ended += [job.id for job in jobs]


class Lists(ApiServer):
    def __init__(self, *forbidden: str) -> None:
        super().__init__()
        self.forbidden = forbidden
        self.asked: list[str | None] = []

    async def each_speedrun(self, namespace: str | None, **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(namespace)
        if namespace in self.forbidden:
            raise Refused(403, "speedruns is forbidden")
        for each in ():
            yield each


def resync(api: Lists, backend: Backend) -> Resync:
    setup = Setup(cluster="c", recipes={}, site=SITE, policy=Policy(), poll_seconds=1, release_seconds=1)
    engine = Engine(kube=api, backends={Kind.SLURM: backend}, setup=setup)
    return Resync(api, engine, lambda: [backend], ["a", "b"])


async def test_orphans_end_once_two_lists_in_a_row_have_none_of_theirs() -> None:
    backend = Backend()
    one = resync(Lists(), backend)
    await one.once()
    assert backend.ended == []
    await one.once()
    assert sorted(backend.ended) == ["0", "1", "9"], "another operator's namespace is not ours to judge"


async def test_a_namespace_that_cannot_be_listed_keeps_the_others_from_nothing() -> None:
    """Nothing is ended of that namespace, nor what one of its Speedruns may wait for."""
    api, backend = Lists("a"), Backend()
    one = resync(api, backend)
    for _ in range(3):
        with pytest.raises(Refused):
            await one.once()
    assert "b" in api.asked
    assert set(backend.ended) == {"1"}
