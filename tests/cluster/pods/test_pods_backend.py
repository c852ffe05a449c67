"""The backend Pods by itself on a real node: containers that are killed, several GPUs, what else runs in a pod."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import shlex
import time
from dataclasses import replace
from typing import Any

import pytest

from contract.pods_world import PodsWorld
from contract.steps import accepted, ended, replay, run_of, runs, submitted, trains, until
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.backends.pods import tidy
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.recipes.recipe import Stage, Step
from testbed.image import IMAGE
from testbed.kubectl import Kubectl
from testbed.node import CLAIM, Node


def doing(world: PodsWorld, script: str, **changes: Any) -> Any:
    """The plan of a run that does `script` for its training."""
    step = Step(name="train", stage=Stage.TRAIN, run=script)
    return replace(replay(world.somewhere()), steps=(step,), **changes)


async def test_a_container_that_uses_too_much_memory_is_told_so(world: PodsWorld) -> None:
    ref = await world.ref("greedy")
    limits = {"requests": {"memory": "32Mi", "cpu": "10m"}, "limits": {"memory": "48Mi"}}
    where = {"backend": "Pods", "pods": {"image": IMAGE, "resources": limits}}
    step = Step(name="train", stage=Stage.TRAIN, run="python3 -c 'x = bytearray(1 << 30); x[::4096] = x[::4096]'")
    accepted(await world.backend.submit(ref, replace(replay(where), steps=(step,))))
    last = await until(world, ref, ended)
    # Whom the kernel kills, the shell or its child, is its own choice; either way the kubelet's word is OOMKilled.
    assert (last.reason, last.message) == ("OOMKilled", "container train used more memory than its limit")


async def test_a_killed_container_is_a_failure_with_its_signal(world: PodsWorld, node: Node) -> None:
    ref = await world.ref("killed")
    uid = await submitted(world, ref, steps=1000, intervalMilliseconds=100)
    await until(world, ref, trains)
    label = 'labels."io.kubernetes.{}"=={}'
    asked = ",".join((label.format("pod.uid", uid), label.format("container.name", "train")))
    listed = await asyncio.to_thread(node.containers, "containers", "list", "--quiet", asked)
    (container,) = listed.split()
    await asyncio.to_thread(node.containers, "tasks", "kill", "--signal", "SIGKILL", container)
    last = await until(world, ref, ended)
    assert (last.reason, last.message) == ("JobFailed", "container train ended with exit code 137, killed by signal 9")
    assert last.log and last.log.exit_code is None


SUM = """
import os, torch.distributed as dist, torch
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
if dist.get_rank() == 0:
    print(f"step:{int(one)}/{dist.get_world_size()} train_time:1ms step_avg:1.00ms", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.full
async def test_torchrun_starts_a_process_for_each_gpu(world: PodsWorld, node: Node) -> None:
    await asyncio.to_thread(node.claim, world.namespace)
    site = PodSite(python="/cache/python/bin/python", cache_claim=CLAIM, grace_seconds=2)
    backend, ref = world.another(site=site), await world.ref("two")
    run = f"""
        cat >sum.py <<'PY'\n{SUM}\nPY
        exec "$SPEEDRUN_PYTHON" -m torch.distributed.run --standalone --local-addr=127.0.0.1 \
          --nproc_per_node="$SPEEDRUN_GPUS" sum.py
    """.replace("\n        ", "\n")
    accepted(await backend.submit(ref, doing(world, run, gpu_count=2, gpu_type="H100")))
    last = await until(world, ref, ended, backend, limit=240)
    assert last.reason == "Completed", last
    assert (run_of(last).progress.step, run_of(last).progress.total_steps) == (2, 2)


async def test_a_sidecar_that_runs_on_neither_hides_the_end_nor_keeps_the_gpus(
    world: PodsWorld, monkeypatch: Any
) -> None:
    ref = await world.ref("sidecar")
    create = world.backend._pods.create

    async def with_sidecar(body: dict[str, Any]) -> dict[str, Any]:
        main = body["spec"]["containers"][0]
        body["spec"]["containers"].append({**main, "name": "sidecar", "command": ["sleep", "1000"]})
        return await create(body)

    monkeypatch.setattr(world.backend._pods, "create", with_sidecar)
    monkeypatch.setattr(tidy, "TIDY_SECONDS", 1.0)
    await submitted(world, ref)
    last = await until(world, ref, ended)
    assert (last.state, last.reason) == ("Ended", "Completed")
    assert run_of(last).progress.final
    for _ in range(300):
        await world.backend.observe([ref])
        if not await asyncio.to_thread(world.pods, ref):
            break
        await world.passes()
    assert await asyncio.to_thread(world.pods, ref) == []
    again = await until(world, ref, ended)
    assert again.reason == "Completed"


ELSEWHERE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "elsewhere"},
    "status": {"allocatable": (room := {"cpu": "64", "memory": "64Gi", "pods": "9"}), "capacity": room},
}


async def test_a_pod_keeps_off_a_node_where_there_is_another(world: PodsWorld, node: Node, kubectl: Kubectl) -> None:
    own = node.layout.name
    pods = {**world.somewhere()["pods"], "tolerations": [{"operator": "Exists"}]}  # nobody says that ELSEWHERE is ready
    plan = replay({"backend": "Pods", "pods": pods})
    refs = {name: await world.ref(name) for name in ("off-own", "off-other", "alone")}
    await asyncio.to_thread(kubectl, "create", "-f", "-", stdin=json.dumps(ELSEWHERE))
    try:
        for name, avoided in (("off-own", own), ("off-other", "elsewhere")):
            accepted(await world.backend.submit(refs[name], plan.for_runs([(0, "A")], avoid=[avoided])))
        hosts = [await host(world, refs[name]) for name in ("off-own", "off-other")]
        assert hosts == ["elsewhere", own]
    finally:
        gone = (world.backend.name_of(refs["off-own"]), "-n", world.namespace, "--ignore-not-found")
        await asyncio.to_thread(kubectl, "delete", "pod", *gone, "--force", "--grace-period=0")
        await asyncio.to_thread(kubectl, "delete", "node", "elsewhere")
    accepted(await world.backend.submit(refs["alone"], plan.for_runs([(0, "A")], avoid=[own])))
    last = await until(world, refs["alone"], ended)
    assert (last.reason, last.node) == ("Completed", own)


async def host(world: PodsWorld, ref: AllocationRef) -> str:
    """The node that its pod was given."""
    deadline = time.monotonic() + 20
    while not (name := (await asyncio.to_thread(world.pods, ref))[0]["spec"].get("nodeName")):
        assert time.monotonic() < deadline, "it was given none"
        await world.passes()
    return str(name)


async def test_news_of_a_pod_comes_without_a_poll(world: PodsWorld) -> None:
    ref = await world.ref("news")
    await world.backend.observe([ref])
    await submitted(world, ref)
    names = await world.backend.changed(20)
    assert names is not None
    await until(world, ref, runs)


async def test_a_log_of_very_long_and_unfinished_lines_arrives_whole_and_is_kept(
    world: PodsWorld, kubectl: Kubectl
) -> None:
    ref = await world.ref("long-lines")
    script = "printf 'x%.0s' {1..40000}; echo; echo 'step:1/1 val_loss:3.1 train_time:5ms'; printf 'no end'"
    accepted(await world.backend.submit(ref, doing(world, script)))
    small = world.another(log_bytes=200)
    last = await until(world, ref, ended, small)
    final = run_of(last).progress.final
    assert final and final.text == "3.1"
    assert last.log and last.log.exit_code == 0
    shown = shlex.split(small.log_path(ref).partition(" | ")[0])[1:]  # no volume keeps it
    kept = gzip.decompress(base64.b64decode(await asyncio.to_thread(kubectl, *shown))).decode()
    assert "x" * 40_000 in kept and "val_loss:3.1" in kept
