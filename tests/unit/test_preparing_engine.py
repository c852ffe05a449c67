"""Jobs that prepare under the real engine: what it asks of the cluster around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speedrun_operator.api.phases import Phase
from speedrun_operator.backends.base import AllocationRef, PrepareRef, Snapshot
from speedrun_operator.backends.memory import Cluster, MemoryBackend
from speedrun_operator.facts import ClusterFacts, Gpus, Nodes, Partition
from speedrun_operator.lifecycle.observation import Prepared, PrepareOutcome, Underway
from speedrun_operator.lifecycle.situation import Ask
from speedrun_operator.planning import RunPlan
from unit.builders import JobLog, at, ended
from unit.engine_world import running_engine

SPEC = {"recipe": {"name": "modded-nanogpt"}, "backoffLimit": 0}
H100 = Partition("compute-h100", (Nodes(2, "idle", (Gpus("h100", 8),)),))


class Killing(MemoryBackend):
    """Every job that prepares was killed, as it would be with its node."""

    async def prepare(self, ask: Ask, plan: RunPlan) -> PrepareOutcome:
        return Underway(ask.after + 1, "17", at(0))

    async def observe(self, refs: Sequence[AllocationRef], preparing: Sequence[PrepareRef] = ()) -> Snapshot:
        job = ended(JobLog().job().mark("stage=code begin").closed(143), "JobFailed")
        return replace(await super().observe(refs), prepared={each.key: Prepared(job) for each in preparing})


async def test_a_restart_of_the_nodes_is_asked_about_when_a_job_that_prepares_was_killed() -> None:
    cluster = Cluster(facts=ClusterFacts((H100,), controller_started=at(50)))
    async with running_engine(cluster, SPEC, backend=Killing) as world:
        status = await world.until("told", lambda status: any(each.failures for each in status.preparing))
        assert status.phase is not Phase.FAILED
        assert status.reason == "NodesRestarted"
        assert any(reason == "NodesRestarted" and "tried again from" in said for _, reason, said in world.told())
