"""On a real cluster: text that would like to run, GPU jobs where there are such GPUs or not, and a trouble's remedy."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.speedruns import Speedruns, condition, quick, speedrun
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.part import Place
from testbed.slurm import Slurm


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place) -> Iterator[Operator]:
    operator = Operator(place, bed, {"SPEEDRUN_POLICY__ALLOWED_RECIPES": "replay,modded-nanogpt"})
    operator.install()
    operator.start()
    yield operator
    operator.stop()


@pytest.fixture
def runs(operator: Operator, kubectl: Kubectl, namespace: str) -> Speedruns:
    return Speedruns(kubectl, namespace)


@pytest.fixture
def slurm(place: Place) -> Slurm:
    return Slurm(place)


def test_nothing_runs_that_stands_in_a_variable(runs: Speedruns) -> None:
    """BR-105, BR-106: in the API server, the status, the remote command, sbatch and the job's bash as they are."""
    mark = Path(f"/tmp/speedrun-hostile-{uuid.uuid4().hex[:12]}")
    texts = [
        f"x'; touch {mark}; echo '",
        f"$(touch {mark})",
        f"`touch {mark}`",
        f'"; touch {mark}; "',
        f"x\ntouch {mark}\n",
        f"hi\n#SBATCH --reservation=admin\ntouch {mark}",
        f"SPEEDRUN_STEP\ntouch {mark}\n",
        f"--wrap=touch {mark}",
        "%j%x%u",
        "é☃\u2028\u202e",
        "'" * 4000,
    ]
    each = quick("hostile")
    each["spec"]["env"] = [{"name": f"TEXT_{number}", "value": text} for number, text in enumerate(texts)]
    runs.apply(each)
    status = runs.wait_finished("hostile")
    assert (status["phase"], status["reason"]) == ("Succeeded", "TargetReached")
    assert not mark.exists()


def test_a_value_that_a_recipe_does_not_take_is_refused_by_its_name(runs: Speedruns, slurm: Slurm) -> None:
    mark = Path(f"/tmp/speedrun-hostile-{uuid.uuid4().hex[:12]}")
    runs.apply(quick("value", valLoss=f"3.27$(touch {mark})"))
    status = runs.wait_finished("value")
    assert (status["phase"], status["reason"]) == ("Failed", "InvalidParameter")
    assert condition(status, "Admitted")["message"].startswith("spec.recipe.parameters.valLoss: must match")
    assert not mark.exists()


def test_what_the_site_forbids_waits_with_the_setting_that_allows_it(runs: Speedruns) -> None:
    runs.apply(speedrun("small", recipe="smoke"))
    status = runs.wait("small", "forbidden", lambda status: status.get("reason") == "NotAllowed")
    assert status["phase"] == "Pending"
    assert condition(status, "Admitted")["message"].endswith("smoke in policy.allowed_recipes allows it")


def test_nodes_that_are_down_are_waited_for(runs: Speedruns, slurm: Slurm) -> None:
    gpus = quick("gpus", steps=3)
    gpus["spec"]["gpus"] = {"count": 8, "type": "H100"}
    slurm.command("scontrol", "update", "NodeName=slurm-h100-[0-1]", "State=DRAIN", "Reason=test")
    try:
        runs.apply(gpus)
        status = runs.wait("gpus", "waiting", lambda status: status.get("reason") == "NodesUnavailable", 90)
        assert status["phase"] == "Pending"
        assert "no H100 node can run jobs now" in condition(status, "Admitted")["message"]
    finally:
        slurm.command("scontrol", "update", "NodeName=slurm-h100-[0-1]", "State=RESUME")
    status = runs.wait_finished("gpus", 120)
    assert (status["phase"], status["plan"]["partition"]) == ("Succeeded", "compute-h100")


def test_gpus_that_the_cluster_does_not_have_are_refused_with_what_it_has(runs: Speedruns) -> None:
    h200 = quick("h200")
    h200["spec"]["gpus"] = {"count": 8, "type": "H200"}
    runs.apply(h200)
    status = runs.wait_finished("h200")
    assert (status["phase"], status["reason"]) == ("Failed", "UnsupportedHardware")
    said = condition(status, "Admitted")["message"]
    assert said.startswith(
        "spec.gpus: no node has 8 GPUs of H200 on one node; the cluster has compute-h100: 2 nodes of 8"
    )
    assert "job" not in status


def test_a_trouble_in_a_real_log_says_its_remedy(runs: Speedruns, bed: Facts, tmp_path: Path) -> None:
    log = Path(f"/tmp/speedrun-trouble-{uuid.uuid4().hex[:12]}")
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nChildFailedError\n")
    try:
        log.chmod(0o644)
        runs.apply(quick("trouble", log=str(log), exitCode=1))
        status = runs.wait_finished("trouble")
    finally:
        log.unlink()
    assert (status["phase"], status["reason"]) == ("Failed", "CudaOOM")
    said = condition(status, "Finished")["message"]
    assert "use GPUs with more memory" in said
    runs.wait_event("trouble", lambda each: each == ("Warning", "CudaOOM", said))
