"""Where a GPU job goes on clusters of all kinds, and what is said where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import PlanSummary
from speedrun_operator.backends.slurm.facts import parse_sinfo
from speedrun_operator.facts import ClusterFacts
from speedrun_operator.placement import place
from speedrun_operator.planning import Later, Refusal, RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped

SUNK_H100 = """\
compute-h100|up|infinite|2|idle|gpu:nvidia_h100:8|compute-h100,gpu,cu128
all*|up|infinite|2|idle|gpu:nvidia_h100:8|compute-h100,gpu,cu128
"""
SUNK_H200 = SUNK_H100.replace("h100", "h200")
BOTH = """\
compute-h100|up|infinite|2|{h100}|gpu:nvidia_h100:8|compute-h100,gpu,cu128
compute-h200|up|infinite|2|{h200}|gpu:nvidia_h200:8|compute-h200,gpu,cu128
all*|up|infinite|2|{h100}|gpu:nvidia_h100:8|compute-h100,gpu,cu128
all*|up|infinite|2|{h200}|gpu:nvidia_h200:8|compute-h200,gpu,cu128
"""


def placed(
    sinfo: str | None, site: Site | None = None, drivers: dict[str, tuple[str, ...]] | None = None, **spec: Any
) -> RunPlan | Refusal | Later:
    made = plan(Spec.model_validate({"recipe": {"name": "modded-nanogpt"}, **spec}), shipped(), site or Site())
    assert isinstance(made, RunPlan), made
    return place(made, None if sinfo is None else ClusterFacts(parse_sinfo(sinfo), drivers=drivers or {}))


@pytest.mark.parametrize(
    ("sinfo", "spec", "partition", "gpu_type"),
    [
        pytest.param(SUNK_H100, {}, "compute-h100", "H100", id="SUNK with H100"),
        pytest.param(SUNK_H200, {}, "compute-h200", "H200", id="SUNK with H200, which the recipe allows"),
        pytest.param(BOTH.format(h100="idle", h200="idle"), {}, "compute-h100", "H100", id="the recipe's first"),
        pytest.param(
            BOTH.format(h100="idle", h200="idle"), {"gpus": {"type": "h200"}}, "compute-h200", "H200", id="asked for"
        ),
        pytest.param(BOTH.format(h100="down*", h200="mix"), {}, "compute-h200", "H200", id="the one that works"),
        pytest.param(BOTH.format(h100="idle*", h200="alloc"), {}, "compute-h200", "H200", id="idle* does not"),
        pytest.param(BOTH.format(h100="alloc", h200="idle"), {}, "compute-h100", "H100", id="busy is not down"),
        pytest.param(
            "gpu|up|infinite|4|idle|gpu:h100:8(S:0-1)|(null)\ncpu*|up|infinite|9|idle|(null)|(null)\n",
            {},
            "gpu",
            "H100",
            id="a Slurm that is no SUNK",
        ),
        pytest.param(
            "main*|up|infinite|4|idle|gpu:8|h100,ib\n", {}, "main", "H100", id="the type in a feature, one partition"
        ),
        pytest.param("main*|up|infinite|4|idle|gpu:8|(null)\n", {}, "main", "H100", id="a type that nobody says"),
        pytest.param(
            "big|up|infinite|99|idle|gpu:h100:8|x\nsmall|up|infinite|2|idle|gpu:h100:8|x\n",
            {},
            "small",
            "H100",
            id="rather a small one",
        ),
        pytest.param(
            "short|up|30:00|2|idle|gpu:h100:8|x\nlong*|up|infinite|2|idle|gpu:h100:8|x\n",
            {},
            "long",
            "H100",
            id="one that gives the time",
        ),
        pytest.param(
            "closed|down|infinite|2|idle|gpu:h100:8|x\nopen*|up|infinite|2|idle|gpu:h100:8|x\n",
            {},
            "open",
            "H100",
            id="one that is up",
        ),
        pytest.param(
            "half|up|infinite|2|idle|gpu:h100:4|x\nwhole|up|infinite|2|idle|gpu:h100:8|x\n",
            {},
            "whole",
            "H100",
            id="nodes with enough GPUs",
        ),
        pytest.param(
            "half|up|infinite|2|idle|gpu:h100:4|x\nwhole|up|infinite|9|idle|gpu:h100:8|x\n",
            {"gpus": {"count": 4}},
            "half",
            "H100",
            id="fewer GPUs fit there",
        ),
        pytest.param(SUNK_H100, {"slurm": {"partition": "all"}}, "all", "H100", id="as it was asked for"),
        pytest.param(SUNK_H100, {"slurm": {"partition": "hidden"}}, "hidden", "H100", id="one that sinfo hides"),
        pytest.param(None, {"slurm": {"partition": "mine"}}, "mine", "H100", id="named, and no facts"),
    ],
)
def test_a_place(sinfo: str | None, spec: dict[str, Any], partition: str, gpu_type: str) -> None:
    made = placed(sinfo, **spec)
    assert isinstance(made, RunPlan), made
    assert (made.partition, made.gpu_type) == (partition, gpu_type)
    assert made.summary().partition == partition


@pytest.mark.parametrize(
    ("sinfo", "spec", "message"),
    [
        pytest.param(
            "compute-a100|up|infinite|2|idle|gpu:nvidia_a100:8|compute-a100\n",
            {},
            "spec.gpus: no node has 8 GPUs of H100 or H200 on one node; the cluster has compute-a100: 2 nodes of 8 "
            "nvidia_a100 (2 idle)",
            id="another GPU",
        ),
        pytest.param(
            SUNK_H200,
            {"gpus": {"type": "H100"}},
            "spec.gpus: no node has 8 GPUs of H100 on one node; the cluster has compute-h200: 2 nodes of 8 nvidia_h200 "
            "(2 idle); all, the default: 2 nodes of 8 nvidia_h200 (2 idle)",
            id="the guide's row: the GPUs are not H100s",
        ),
        pytest.param(
            "p*|up|infinite|2|idle|gpu:h100:4|x\n",
            {},
            "spec.gpus: no node has 8 GPUs of H100 or H200 on one node; the cluster has p, the default: 2 nodes of 4 "
            "h100 (2 idle)",
            id="too few on a node",
        ),
        pytest.param(
            "p*|up|infinite|2|idle|(null)|x\n",
            {},
            "spec.gpus: no node has 8 GPUs of H100 or H200 on one node; the cluster has p, the default: 2 nodes "
            "without GPUs (2 idle)",
            id="GRES (null)",
        ),
        pytest.param(
            "p*|up|infinite|2|idle|gpu:8|compute-a100\n",
            {},
            "spec.gpus: no node has 8 GPUs of H100 or H200 on one node; the cluster has p, the default: 2 nodes of 8 "
            "GPUs (2 idle)",
            id="untyped, and a feature names another",
        ),
        pytest.param(
            SUNK_H100 + "cpu|up|infinite|2|idle|(null)|x\n",
            {"slurm": {"partition": "cpu"}},
            "spec.slurm.partition: partition cpu has no node with 8 GPUs of H100 or H200 on one node; the cluster has ",
            id="a partition without them",
        ),
        pytest.param(
            "p*|up|30:00|2|idle|gpu:h100:8|x\n",
            {},
            "spec.timeLimitSeconds: partition p allows 30 min, and the job would ask for 60 min; set at most 1800, or "
            "name another spec.slurm.partition",
            id="too long",
        ),
    ],
)
def test_what_the_cluster_cannot_run_is_refused_with_what_it_has(
    sinfo: str, spec: dict[str, Any], message: str
) -> None:
    made = placed(sinfo, **spec)
    assert isinstance(made, Refusal), made
    assert made.reason == "UnsupportedHardware"
    assert made.message.startswith(message)


@pytest.mark.parametrize(
    ("sinfo", "reason", "message"),
    [
        pytest.param(None, "ClusterUnknown", "what GPUs the cluster has is not known yet", id="nobody has said"),
        pytest.param("", "NodesUnavailable", "no nodes are there yet; the cluster has no partition", id="no partition"),
        pytest.param(
            "p|up|infinite|0|n/a|(null)|(null)\n", "NodesUnavailable", "no nodes are there yet", id="no nodes"
        ),
        pytest.param(
            SUNK_H100.replace("idle", "idle*"),
            "NodesUnavailable",
            "no H100 node can run jobs now; the cluster has compute-h100: 2 nodes of 8 nvidia_h100 (2 idle*)",
            id="not responding",
        ),
        pytest.param(SUNK_H100.replace("idle", "drain"), "NodesUnavailable", "no H100 node can run", id="drained"),
        pytest.param(SUNK_H100.replace("|up|", "|down|"), "NodesUnavailable", "no H100 node can run", id="closed"),
    ],
)
def test_what_may_heal_waits(sinfo: str | None, reason: str, message: str) -> None:
    made = placed(sinfo)
    assert isinstance(made, Later), made
    assert made.reason == reason
    assert made.message.startswith(message)


@pytest.mark.parametrize(
    ("drivers", "late"),
    [
        ({}, False),
        ({"NVIDIA H100 80GB HBM3": ("580.95.05",)}, False),
        ({"NVIDIA H100 80GB HBM3": ("550.54.15", "580.95.05")}, False),
        ({"NVIDIA H100 80GB HBM3": ("550.54.15",)}, True),
        ({"NVIDIA H200": ("550.54.15",)}, False),
    ],
)
def test_a_driver_that_jobs_found_too_old(drivers: dict[str, tuple[str, ...]], late: bool) -> None:
    made = placed(SUNK_H100, drivers=drivers)
    assert isinstance(made, Later) is late
    if isinstance(made, Later):
        assert made.reason == "DriverTooOld"
        assert "needs NVIDIA driver 580 or later, and jobs on H100 found 550.54.15" in made.message


def test_what_needs_no_gpu_needs_no_facts() -> None:
    made = plan(Spec.model_validate({"recipe": {"name": "replay"}}), shipped(), Site(partition="cpu"))
    assert isinstance(made, RunPlan)
    assert place(made, None) == made


def test_a_later_allocation_runs_where_the_first_one_did() -> None:
    """Whatever the cluster has by then: results of different GPUs are not to be mixed."""
    made = plan(Spec.model_validate({"recipe": {"name": "modded-nanogpt"}}), shipped(), Site())
    assert isinstance(made, RunPlan)
    settled = PlanSummary(recipe="modded-nanogpt", partition="compute-h200", gpu_type="H200", gpu_count=8)
    again = place(made, ClusterFacts(parse_sinfo(SUNK_H100)), settled)
    assert isinstance(again, RunPlan)
    assert (again.partition, again.gpu_type) == ("compute-h200", "H200")


def test_any_gpu_will_do_for_a_recipe_that_names_none() -> None:
    made = plan(Spec.model_validate({"recipe": {"name": "replay"}, "gpus": {"count": 8}}), shipped(), Site())
    assert isinstance(made, RunPlan)
    found = place(
        made, ClusterFacts(parse_sinfo("cpu*|up|infinite|2|idle|(null)|x\ngpu|up|infinite|2|mix|gpu:a100:8|x\n"))
    )
    assert isinstance(found, RunPlan)
    assert (found.partition, found.gpu_type) == ("gpu", None)


@pytest.mark.parametrize(("limit", "most"), [("infinite", None), ("4:00:00", 240)])
def test_the_longest_time_of_the_partition_is_known(limit: str, most: int | None) -> None:
    sinfo = f"h100|up|{limit}|2|idle|gpu:h100:8|x\n"
    first = placed(sinfo)
    assert isinstance(first, RunPlan)
    later = place(first, ClusterFacts(parse_sinfo(sinfo)), first.summary())
    unknown = place(first, None, first.summary())
    assert isinstance(later, RunPlan) and isinstance(unknown, RunPlan)
    assert (first.most_minutes, later.most_minutes, unknown.most_minutes) == (most, most, None)
