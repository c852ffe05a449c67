"""What a job writes down of itself: events.jsonl, gpu.csv, and the lines of its log that status is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.backends import cache_text
from speedrun_operator.preparation.needs import Kind
from speedrun_operator.progress import ParserState, feed
from speedrun_operator.progress.allocation import AllocationProgress, add
from unit.slurm.prepare_node import CONTAINER, DATA, NAMES, Node

# Two cards; in the loop, samples as long as the job lasts: one of them hot.
NVIDIA_SMI = """#!/bin/bash
case "$*" in
*driver_version*)
  printf '%s, %s, %s, 81559, 580.65.06\\n' 0 'NVIDIA H100 "80GB"' GPU-a 1 'NVIDIA H100 "80GB"' GPU-b ;;
*--loop=*)
  echo $$ >>"$HOME/samplers"
  while :; do
    echo "2026/07/01 12:00:00.000, 0, 97, 40000, 690.5, 71, 1700, 2619, 0x0000000000000024"
    echo "2026/07/01 12:00:00.000, 1, 3, 40000, 90.5, 40, 345, 2619, 0x0000000000000001"
    sleep 0.1
  done ;;
*clocks_event_reasons*) exit 2 ;;
esac
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(cache_text, "WATCH_SECONDS", 0.1)
    return Node(tmp_path)


def with_gpus(node: Node) -> None:
    path = node.home / "bin" / "nvidia-smi"
    path.write_text(NVIDIA_SMI)
    path.chmod(0o755)


def events(node: Node) -> list[dict[str, Any]]:
    ledger = node.run_directory().parent
    return [json.loads(line) for line in (ledger / "events.jsonl").read_text().splitlines()]


def of(node: Node, name: str) -> list[dict[str, Any]]:
    return [each for each in events(node) if each["event"] == name]


def read(log: str) -> AllocationProgress:
    _, records = feed(ParserState("modded-nanogpt"), log.encode())
    progress = AllocationProgress()
    for record in records:
        progress = add(progress, record)
    return progress


def test_a_job_writes_down_what_it_found_and_did(node: Node) -> None:
    step = "echo step:7/20 val_loss:4.1 train_time:70ms step_avg:10ms"
    made = node.plan(step, container=CONTAINER, data=DATA, data_files=NAMES, gpu_count=2)
    for number, kind in enumerate((Kind.CODE, Kind.IMAGE, Kind.DATA)):
        assert node.makes(made, kind, number + 1)[0] == 0
    with_gpus(node)
    code, said = node.trains(made)
    assert code == 0, said
    assert [(each["index"], each["name"], each["driver"], each["memory_mib"]) for each in of(node, "card")] == [
        (0, 'NVIDIA H100 "80GB"', "580.65.06", 81559),
        (1, 'NVIDIA H100 "80GB"', "580.65.06", 81559),
    ]
    [hardware] = of(node, "hardware")
    assert (hardware["cards"], hardware["world_size"]) == (2, 2)
    stages = [(each["stage"], each["exit"], each["run"]) for each in of(node, "stage_end")]
    assert stages == [("code", 0, 0), ("image", 0, 0), ("data", 0, 0), ("train", 0, 0)]
    assert all(each["seconds"] >= 0 for each in of(node, "stage_end"))
    cached = {each["kind"]: each for each in of(node, "cache")}
    assert cached["code"]["commit"] == node.head
    assert cached["data"]["files"] == 4 and cached["data"]["bytes"] > 4 * 1024
    assert len(cached["image"]["sha256"]) == len(cached["data"]["listing"]) == 64
    [begin] = of(node, "run_begin")
    assert begin["arm"] == "A" and "SPEEDRUN_GPUS" in begin["exports"].split()
    [schedule] = of(node, "schedule")
    assert (schedule["step"], schedule["total_steps"]) == (7, 20)
    assert (events(node)[0]["event"], events(node)[-1]["event"], events(node)[-1]["exit"]) == ("start", "end", 0)


def test_one_process_samples_the_gpus_and_ends_with_the_job(node: Node) -> None:
    with_gpus(node)
    made = node.plan("sleep 1", gpu_count=2)
    node.makes(made, Kind.CODE, 1)
    code, said = node.trains(made)
    assert code == 0, said
    lines = (node.run_directory().parent / "gpu.csv").read_text().splitlines()
    assert lines[0].startswith("timestamp,index,utilization.gpu") and lines[0].endswith(
        "clocks_throttle_reasons.active"
    )
    assert len(lines) > 4
    [sampler] = (node.home / "samplers").read_text().split()
    assert not Path(f"/proc/{sampler}").exists()
    progress = read(said)
    assert dict(progress.hardware)["gpu"] == 'NVIDIA H100 "80GB"'
    run = progress.run(0)
    assert run is not None
    samples = dict(run.hardware)
    assert (samples["clock"], samples["throttled"]) == ("1700", "power,thermal")


@pytest.mark.parametrize("gpus", [0, 2])
def test_without_nvidia_smi_all_goes_well(node: Node, gpus: int) -> None:
    made = node.plan("true", gpu_count=gpus)
    node.makes(made, Kind.CODE, 1)
    code, said = node.trains(made)
    assert code == 0, said
    assert of(node, "card") == [] and of(node, "hardware")[0]["cards"] == 0
    assert not (node.run_directory().parent / "gpu.csv").exists()
    assert dict(read(said).hardware)["gpus"] == "0"


def test_no_samples_are_taken_where_the_period_is_zero(node: Node) -> None:
    with_gpus(node)
    made = node.plan("true", telemetry_seconds=0, gpu_count=2)
    node.makes(made, Kind.CODE, 1)
    assert node.trains(made)[0] == 0
    assert not (node.run_directory().parent / "gpu.csv").exists()


def test_what_was_compiled_is_there_for_the_next_run_on_the_same_gpus_and_driver(node: Node) -> None:
    with_gpus(node)
    versions = CONTAINER.model_copy(update={"probe": "echo version.torch=2.10.0+cu128; echo version.triton=3.6.0"})
    steps = ('cat "$TRITON_CACHE_DIR/kernel" >../found 2>/dev/null', 'echo compiled >"$TRITON_CACHE_DIR/kernel"')
    made = node.plan("\n".join(["set +e", *steps]), container=versions, compile_cache=True, gpu_count=2)
    for number, kind in enumerate((Kind.CODE, Kind.IMAGE)):
        assert node.makes(made, kind, number + 1)[0] == 0
    for allocation, found in enumerate(("", "compiled\n")):
        code, said = node.trains(made, 40 + allocation, allocation)
        assert code == 0, said
        assert (node.run_directory(allocation) / "found").read_text() == found
    [entry] = (node.root / ".cache" / "compiled").iterdir()
    assert "kind=compiled" in (entry / "manifest").read_text()
    path = node.home / "bin" / "nvidia-smi"
    path.write_text(NVIDIA_SMI.replace("580.65.06", "590.1"))
    code, said = node.trains(made, 42, 2)
    assert code == 0 and (node.run_directory(2) / "found").read_text() == ""


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        pytest.param("exit 3", 3, id="a step that fails"),
        pytest.param("kill -TERM $(ps -o sid= -p $$); sleep 60", 143, id="a job that is ended"),
        pytest.param("kill -KILL -- -$(ps -o pgid= -p $$ | tr -d ' ')", 137, id="a run that is killed"),
    ],
)
def test_what_was_compiled_does_not_stay_on_the_node_when_a_run_fails(node: Node, ends: str, code: int) -> None:
    with_gpus(node)
    versions = CONTAINER.model_copy(update={"probe": "echo version.torch=2.10.0+cu128; echo version.triton=3.6.0"})
    steps = ('echo compiled >"$TRITON_CACHE_DIR/kernel"', 'dirname "$TRITON_CACHE_DIR" >../where', ends)
    made = node.plan(*steps, container=versions, compile_cache=True, gpu_count=2)
    for number, kind in enumerate((Kind.CODE, Kind.IMAGE)):
        assert node.makes(made, kind, number + 1)[0] == 0
    ended, said = node.trains(made)
    assert ended == code, said
    where = Path((node.run_directory() / "where").read_text().strip())
    assert where.name.startswith("speedrun-compiled.") and not where.exists()
    assert not (node.root / ".cache" / "compiled").exists()
