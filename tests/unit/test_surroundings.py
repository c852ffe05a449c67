"""GPU jobs and the cluster's facts through the real engine: where they go, what they wait for, how often is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase, Reason
from speedrun_operator.api.status import Status
from speedrun_operator.backends.memory import Cluster, Job, Step
from speedrun_operator.backends.slurm.facts import parse_sinfo
from speedrun_operator.facts import ClusterFacts
from speedrun_operator.lifecycle.observation import Unknown
from speedrun_operator.lifecycle.situation import Policy
from speedrun_operator.planning import RunPlan
from unit.builders import NOON, TRAINING, JobLog
from unit.engine_world import running_engine

NANOGPT = {"recipe": {"name": "modded-nanogpt"}}
H100 = "compute-h100|up|infinite|2|idle|gpu:nvidia_h100:8|x\nall*|up|infinite|2|idle|gpu:nvidia_h100:8|x\n"
DONE = JobLog().attempt().ran(0, "3.27").closed()


class Jobs:
    def __init__(self) -> None:
        self.plans: list[RunPlan] = []

    def __call__(self, plan: RunPlan) -> Iterable[Step]:
        self.plans.append(plan)
        return (Job.start, lambda job: job.write(DONE.text), Job.end)


def cluster(sinfo: str, jobs: Jobs | None = None) -> Cluster:
    return Cluster(script=jobs or Jobs(), facts=ClusterFacts(parse_sinfo(sinfo)))


async def test_a_gpu_job_goes_where_its_gpus_are() -> None:
    jobs = Jobs()
    async with running_engine(cluster(H100.replace("h100", "h200"), jobs), NANOGPT) as world:
        status = await world.until("finished", lambda status: status.phase is Phase.SUCCEEDED)
        assert [(plan.partition, plan.gpu_type) for plan in jobs.plans] == [("compute-h200", "H200")]
        assert status.plan and (status.plan.partition, status.plan.gpu_type) == ("compute-h200", "H200")
        assert world.cluster.asked == 1


async def test_what_needs_no_gpu_asks_nothing() -> None:
    async with running_engine(cluster("")) as world:
        await world.until("finished", lambda status: status.phase is Phase.SUCCEEDED)
        assert world.cluster.asked == 0


async def test_what_the_cluster_cannot_run_is_refused_before_anything_is_submitted() -> None:
    async with running_engine(cluster(H100.replace("h100", "a100")), NANOGPT) as world:
        status = await world.until("finished", lambda status: status.phase is Phase.FAILED)
        assert (status.reason, status.allocations, world.cluster.submissions) == ("UnsupportedHardware", (), 0)
        admitted = status.condition(ConditionType.ADMITTED)
        assert admitted and admitted.status == "False"
        assert "the cluster has compute-a100: 2 nodes of 8 nvidia_a100 (2 idle)" in admitted.message
        assert [each for each in world.told() if each[1] == "UnsupportedHardware"]


async def test_nodes_that_are_down_are_waited_for() -> None:
    async with running_engine(cluster(H100.replace("idle", "idle*")), NANOGPT) as world:
        status = await world.until("waiting", lambda status: status.reason == "NodesUnavailable")
        admitted = status.condition(ConditionType.ADMITTED)
        assert admitted and (status.phase, admitted.status) == (Phase.PENDING, "False")
        assert "2 nodes of 8 nvidia_h100 (2 idle*)" in admitted.message
        assert world.cluster.submissions == 0
        world.cluster.facts = ClusterFacts(parse_sinfo(H100))
        await world.until("finished", lambda status: status.phase is Phase.SUCCEEDED)


async def test_a_cluster_that_does_not_answer_is_no_cluster_without_gpus() -> None:
    silent = replace(cluster(H100), silent=Unknown("LoginUnreachable", "nobody listens", reachable=False))
    async with running_engine(silent, NANOGPT) as world:
        status = await world.until("waiting", lambda status: status.reason == "LoginUnreachable")
        assert status.phase is Phase.PENDING
        admitted = status.condition(ConditionType.ADMITTED)
        assert admitted and "nobody listens" in admitted.message
        world.cluster.silent = None
        await world.until("finished", lambda status: status.phase is Phase.SUCCEEDED)


@pytest.mark.parametrize(("restarted", "reason"), [(True, "NodesRestarted"), (False, "NodeFailure")])
async def test_a_restart_of_the_nodes_in_mid_run_is_told_from_a_node_that_failed(restarted: bool, reason: str) -> None:
    place = Cluster(facts=ClusterFacts(controller_started=NOON - timedelta(days=300)))

    def broken(plan: RunPlan) -> Iterable[Step]:
        def restart(job: Job) -> None:
            if restarted:
                place.facts = ClusterFacts(controller_started=job.seen.asked)
            job.write(TRAINING.text)

        return (Job.start, restart, lambda job: job.end(Reason.NODE_FAILURE))

    place.script = broken
    async with running_engine(place) as world:
        status = await world.until("ended", ended)
        assert (status.phase, status.allocations[0].reason, status.reason) == (Phase.PENDING, reason, reason)
        assert world.cluster.asked == 1


def ended(status: Status) -> bool:
    return bool(status.allocations) and status.allocations[0].state is AllocationState.ENDED


FAULTY = JobLog().attempt().trains(0).line("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus").finish(1)


@pytest.mark.parametrize(
    ("nodes", "spec", "excluded"),
    [
        pytest.param(2, {}, ["node-0"], id="another node is there"),
        pytest.param(2, {"slurm": {"exclude": ["node-9"]}}, ["node-9", "node-0"], id="besides those of the spec"),
        pytest.param(1, {}, [], id="it is the only one"),
        pytest.param(2, {"slurm": {"nodeList": ["node-0"]}}, [], id="the spec names it"),
    ],
)
async def test_the_next_job_keeps_off_a_node_with_a_faulty_gpu(
    nodes: int, spec: dict[str, Any], excluded: list[str]
) -> None:
    plans: list[RunPlan] = []

    def first_faulty(plan: RunPlan) -> Iterable[Step]:
        plans.append(plan)
        log, end = (FAULTY, Reason.JOB_FAILED) if len(plans) == 1 else (DONE, Reason.COMPLETED)
        return (Job.start, lambda job: job.write(log.text), lambda job: job.end(end))

    place = cluster(H100.replace("|2|", f"|{nodes}|"))
    place.script = first_faulty
    soon = Policy(retry_first=timedelta(seconds=1))
    async with running_engine(place, {**NANOGPT, **spec}, policy=soon) as world:
        status = await world.until("finished", lambda status: status.phase is Phase.SUCCEEDED)
        assert [each.reason for each in status.allocations] == ["GpuFault", "Completed"]
        assert [plan.slurm.exclude for plan in plans] == [spec.get("slurm", {}).get("exclude", []), excluded]
        assert status.allocations[1].avoids == (("node-0",) if "node-0" in excluded else None)


@pytest.mark.parametrize(("most", "minutes"), [("infinite", [60, 120]), ("1:30:00", [60, 90]), ("1:00:00", [60])])
async def test_a_job_at_its_time_limit_gets_what_the_partition_allows(most: str, minutes: list[int]) -> None:
    plans: list[RunPlan] = []

    def too_long(plan: RunPlan) -> Iterable[Step]:
        plans.append(plan)
        return (Job.start, lambda job: job.end(Reason.TIME_LIMIT))

    place = cluster(H100.replace("infinite", most))
    place.script = too_long
    async with running_engine(place, NANOGPT) as world:
        status = await world.until("finished", lambda status: status.phase is Phase.FAILED)
        assert status.reason == "TimeLimit"
        assert [plan.time_limit_minutes for plan in plans] == minutes
