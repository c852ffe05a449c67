"""Where an allocation runs: the plan and what the cluster has → partition and GPU type, or why not. Pure.

What only another spec heals is a Refusal; what may heal by itself (nodes that are down, a cluster that has not answered
yet) is Later. Both say what the cluster has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.status import PlanSummary
from speedrun_operator.facts import ClusterFacts, Partition, drivers_of, fitting, has, major, usable_nodes, words
from speedrun_operator.planning import Later, Refusal, RunPlan

ANY = (None,)


@dataclass(frozen=True, slots=True)
class _Place:
    """A partition that has what is needed. `usable`: how many of its nodes can run it."""

    partition: Partition
    gpu_type: str | None
    usable: int


def place(plan: RunPlan, facts: ClusterFacts | None, settled: PlanSummary | None = None) -> RunPlan | Refusal | Later:
    """The plan with its partition and GPU type.

    `settled`: what an earlier allocation of the same Speedrun ran on, which its others run on, too: results of
    different GPUs are not to be mixed.
    """
    if settled is not None:
        known = facts.partition(settled.partition) if facts and settled.partition else None
        usable = usable_nodes(known, settled.gpu_type, plan.gpu_count) if known else None
        return replace(
            plan,
            partition=settled.partition or "",
            gpu_type=settled.gpu_type,
            usable_nodes=usable,
            most_minutes=known.most_minutes if known else None,
        )
    if plan.gpu_count == 0:
        known = facts.partition(plan.partition) if facts and plan.partition else None
        return replace(plan, most_minutes=known.most_minutes) if known else plan
    if facts is None:
        message = "what GPUs the cluster has is not known yet; it is asked with sinfo"
        return plan if plan.partition else Later(Reason.CLUSTER_UNKNOWN.value, message)
    named = facts.partition(plan.partition) if plan.partition else None
    if plan.partition and named is None:
        return plan  # sinfo does not show every partition to everybody: sbatch knows
    candidates = (named,) if named is not None else facts.partitions
    if not any(each.size for each in candidates):
        return Later(Reason.NODES_UNAVAILABLE.value, f"no nodes are there yet; the cluster has {has(facts)}")
    pairs = [(each, gpu_type) for each in candidates for gpu_type in plan.gpu_types or ANY]
    places = [found for each, gpu_type in pairs if (found := _place(each, gpu_type, plan))]
    if not places:
        return _unfit(plan, facts, named)
    in_time = [each for each in places if _fits_in_time(each.partition, plan)]
    if not in_time:
        return _too_long(plan, places)
    best = min(in_time, key=lambda each: _order(each, plan))
    if best.usable == 0:
        gpus = f"{best.gpu_type} node" if best.gpu_type else "node with GPUs"
        return Later(Reason.NODES_UNAVAILABLE.value, f"no {gpus} can run jobs now; the cluster has {has(facts)}")
    if too_old := _driver_too_old(best, plan, facts):
        return too_old
    gpu_type = best.gpu_type or plan.gpu_type
    return replace(
        plan,
        partition=best.partition.name,
        gpu_type=gpu_type,
        usable_nodes=best.usable,
        most_minutes=best.partition.most_minutes,
    )


def _place(partition: Partition, gpu_type: str | None, plan: RunPlan) -> _Place | None:
    if not fitting(partition.nodes, gpu_type, plan.gpu_count, partition.name):
        return None
    usable = usable_nodes(partition, gpu_type, plan.gpu_count) if partition.up else 0
    return _Place(partition, gpu_type, usable)


def _order(place: _Place, plan: RunPlan) -> tuple[object, ...]:
    """What is best comes first: usable nodes, the recipe's first type, SUNK's own partition of that type, and rather a
    partition that holds nothing else than the default one with every node."""
    types = [each.lower() for each in plan.gpu_types]
    rank = types.index(place.gpu_type.lower()) if place.gpu_type else 0
    own = place.gpu_type is not None and words(place.gpu_type) <= words(place.partition.name)
    return (place.usable == 0, rank, not own, place.partition.default, place.partition.size, place.partition.name)


def _unfit(plan: RunPlan, facts: ClusterFacts, named: Partition | None) -> Refusal:
    wanted = " or ".join(plan.gpu_types) or "any type"
    what = f"{plan.gpu_count} GPUs of {wanted} on one node"
    if named is not None:
        field = "spec.slurm.partition" if plan.slurm.partition else "the setting slurm.gpu_partition"
        where = f"{field}: partition {named.name} has no node with {what}"
    else:
        where = f"spec.gpus: no node has {what}"
    return Refusal(Reason.UNSUPPORTED_HARDWARE, f"{where}; the cluster has {has(facts)}")


def _fits_in_time(partition: Partition, plan: RunPlan) -> bool:
    return partition.most_minutes is None or plan.time_limit_minutes <= partition.most_minutes


def _too_long(plan: RunPlan, places: list[_Place]) -> Refusal:
    longest = max(places, key=lambda each: each.partition.most_minutes or 0).partition
    most = longest.most_minutes or 0
    message = (
        f"spec.timeLimitSeconds: partition {longest.name} allows {most} min, and the job would ask for "
        f"{plan.time_limit_minutes} min; set at most {60 * most}, or name another spec.slurm.partition"
    )
    return Refusal(Reason.UNSUPPORTED_HARDWARE, message)


def _driver_too_old(place: _Place, plan: RunPlan, facts: ClusterFacts) -> Later | None:
    """Only where every driver that jobs found lately is too old. A job on such a node says so by itself."""
    found = drivers_of(facts, place.gpu_type)
    if not plan.driver or not found or any(major(each) >= plan.driver for each in found):
        return None
    message = (
        f"recipe {plan.recipe} needs NVIDIA driver {plan.driver} or later, and jobs on {place.gpu_type} found "
        f"{', '.join(found)}; it is looked at again a day after the last such job"
    )
    return Later(Reason.DRIVER_TOO_OLD.value, message)
