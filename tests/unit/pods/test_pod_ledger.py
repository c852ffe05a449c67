"""What stays of a pod: events, samples and log on the volume, or the log's last part in a ConfigMap."""

from __future__ import annotations

import base64
import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.api.status import Run
from speedrun_operator.backends.pods import manifest
from speedrun_operator.backends.pods.keeping import Tail, claim_of, kept_log, shown_by, shown_of
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.lifecycle.evidence import with_evidence
from speedrun_operator.recipes.recipe import Stage, Step
from unit.pods.containers import IDENTITY, Containers
from unit.pods.test_pod_manifest import planned

NVIDIA_SMI = """#!/bin/bash
case "$*" in
*driver_version*) printf '%s, NVIDIA H100, %s, 81559, 580.65.06\\n' 0 GPU-a 1 GPU-b ;;
*--loop=*) while :; do echo "2026/07/01 12:00:00.000, 0, 97, 40000, 690.5, 71, 1700, 2619, 0x24"; sleep 0.05; done ;;
esac
"""
SAYS = "echo step:3/9 train_time:1ms step_avg:1ms; sleep 0.3; exit 3"


@pytest.fixture
def pod(tmp_path: Path) -> Containers:
    return Containers(tmp_path)


def events(pod: Containers, name: str) -> list[dict[str, Any]]:
    lines = (pod.ledger() / "events.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["event"] == name]


def test_a_pod_leaves_the_same_events_and_samples_as_a_job(pod: Containers) -> None:
    pod.program("nvidia-smi", NVIDIA_SMI)
    plan = replace(planned(gpus={"count": 2}), steps=(Step(name="train", stage=Stage.TRAIN, run=SAYS),))
    assert pod.run(plan) == 3
    assert [each["index"] for each in events(pod, "card")] == [0, 1]
    (hardware,) = events(pod, "hardware")
    assert (hardware["node"], hardware["cards"], hardware["world_size"]) == ("node-a", 2, 2)
    assert [(each["stage"], each["exit"]) for each in events(pod, "stage_end")] == [("train", 3)]
    (begin,) = events(pod, "run_begin")
    assert begin["arm"] == "A" and "PARAM_STEPS" in begin["parameters"].split()
    assert [(each["step"], each["total_steps"]) for each in events(pod, "schedule")] == [(3, 9)]
    assert events(pod, "end")[0]["exit"] == 3
    assert len((pod.ledger() / "gpu.csv").read_text().splitlines()) > 2
    log = pod.read()
    found = with_evidence(Run(index=0, arm="A", phase="Training"), log).hardware
    assert found is not None
    assert (found.node, found.gpu, found.count, found.driver) == ("node-a", "NVIDIA H100", 2, "580.65.06")
    assert (found.clock, found.throttled) == (1700, ("power", "thermal"))
    assert (pod.ledger() / "log").read_text() == pod.log


def test_the_last_part_of_a_long_log_fits_into_a_config_map() -> None:
    lines = [b"%d %s\n" % (number, random.Random(number).randbytes(40).hex().encode()) for number in range(40_000)]
    tail = Tail()
    for each in lines:
        tail.add(each)
    body = kept_log(IDENTITY, "c", "sr-c-u-0", tail.compressed())
    assert len(json.dumps(body)) < 1_000_000
    text = gzip.decompress(base64.b64decode(body["binaryData"]["log.gz"]))
    whole = b"".join(lines)
    assert whole.endswith(text) and len(text) > 500_000
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["uid"], body["metadata"]["name"], body["immutable"]) == (IDENTITY.uid, "sr-c-u-0-log", True)


def test_a_short_log_is_kept_whole_and_no_log_not_at_all() -> None:
    tail = Tail()
    assert tail.compressed() == b""
    tail.add(b"one\n")
    tail.add(b"two\n")
    assert gzip.decompress(tail.compressed()) == b"one\ntwo\n"


def test_status_says_how_to_see_a_pods_log_and_where_it_is_when_the_pod_is_gone(pod: Containers) -> None:
    command = "kubectl logs -n lab sr-1 --all-containers --ignore-errors"
    assert shown_of(IDENTITY, 3, "sr-1", "") == command
    pod.run(replace(planned(), steps=(Step(name="train", stage=Stage.TRAIN, run=SAYS),)), 3)
    path = (pod.ledger(3) / "log").relative_to(pod.cache)
    assert (
        shown_of(IDENTITY, 3, "sr-1", "shared") == f"{command} # without the pod: {path} on the volume of claim shared"
    )
    made = manifest.pod(planned(), IDENTITY, 0, name="sr-1", cluster="c", site=PodSite(cache_claim="shared"))
    assert claim_of(made) == "shared"
    assert claim_of(manifest.pod(planned(), IDENTITY, 0, name="sr-1", cluster="c", site=PodSite())) == ""


def test_status_says_how_to_see_a_kept_log() -> None:
    command = r"kubectl get configmap -n lab sr-1-log -o jsonpath='{.binaryData.log\.gz}' | base64 -d | gunzip"
    assert shown_by("lab", "sr-1") == command


def training(script: str, runs: int = 1) -> Any:
    step = Step(name="train", stage=Stage.TRAIN, run=script)
    return replace(planned(runs=runs).for_runs([(index, "A") for index in range(runs)]), steps=(step,))


FINAL = "step:9/9 val_loss:3.2769 train_time:450ms step_avg:50.00ms"


@pytest.mark.parametrize("code", [0, 3])
def test_the_result_stands_at_the_end_of_the_log_too(pod: Containers, code: int) -> None:
    """What came before may have been rotated away before anybody read it."""
    early = "step:5/9 val_loss:4.1 train_time:250ms step_avg:50.00ms"
    assert pod.run(training(f"echo {early}; echo '[rank0]: {FINAL}'; echo more >&2; sleep 0.2; exit {code}")) == code
    last = pod.log.splitlines()[-8:]
    assert [each for each in last if "val_loss" in each] == [f"[rank0]: {FINAL}"], pod.log
    assert pod.log.count(FINAL) == 2 and pod.errors == ""
    whole = pod.read().run(0)
    assert whole is not None and whole.progress.final is not None and whole.progress.train_time_ms == 450
    lines = pod.log.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if "val_loss:4.1" in line)
    again = next(number for number in range(len(lines) - 1, 0, -1) if FINAL in lines[number])
    pod.log = "".join(lines[:first] + lines[again:])
    rotated = pod.read().run(0)
    assert rotated is not None and rotated.progress.final == whole.progress.final


@pytest.mark.parametrize("said", ["step:5/9 val_loss:4.1 train_time:250ms step_avg:50.00ms", "nothing"])
def test_what_is_no_result_is_not_said_again(pod: Containers, said: str) -> None:
    pod.run(training(f"echo {said}; echo step:7/9 train_time:350ms step_avg:50.00ms"))
    assert pod.log.count(said) == 1
    run = pod.read().run(0)
    assert run is not None and (run.progress.final, run.progress.step) == (None, 7)


def test_a_run_says_no_other_runs_result(pod: Containers) -> None:
    assert pod.run(training(f'[ "$SPEEDRUN_RUN" = 1 ] || echo {FINAL}', runs=2)) == 0
    first, second = pod.read().run(0), pod.read().run(1)
    assert first is not None and second is not None
    assert first.progress.final is not None and second.progress.final is None
    assert pod.log.count(FINAL) == 2
