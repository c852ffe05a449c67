"""What is kept with each run: its stages with their times, and what it ran on."""

from __future__ import annotations

from speedrun_operator.api.phases import Phase
from speedrun_operator.api.status import Hardware, Run, StageSummary
from speedrun_operator.lifecycle.evidence import with_evidence
from unit.builders import JobLog

RUN = Run(index=0, arm="A", phase=Phase.TRAINING)
LOG = JobLog().job().mark("hardware node=node-a gpus=8 gpu=NVIDIA%20H100 driver=580.65.06")


def test_stages_and_hardware_come_from_the_jobs_own_lines() -> None:
    log = LOG.begun(0).begin("data", 10).end("data", 12.5).begin("train", 13)
    log = log.line("Running PyTorch 2.10.0+cu128 compiled for CUDA 12.8").end("train", 73, code=1)
    log = log.mark("run=0 hardware samples=60 clock=1755 throttled=power,thermal")
    run = with_evidence(RUN, log.read())
    assert run.stages == (
        StageSummary(name="data", seconds=2.5, exit_code=0),
        StageSummary(name="train", seconds=60, exit_code=1),
    )
    assert run.hardware == Hardware(
        node="node-a",
        gpu="NVIDIA H100",
        count=8,
        driver="580.65.06",
        torch="2.10.0+cu128",
        clock=1755,
        throttled=("power", "thermal"),
    )


def test_gpus_that_were_not_throttled_are_told_from_gpus_that_nobody_sampled() -> None:
    log = LOG.begun(0).begin("train", 13)
    unknown = with_evidence(RUN, log.read()).hardware
    steady = with_evidence(RUN, log.mark("run=0 hardware samples=60 clock=1980").read()).hardware
    assert unknown is not None and unknown.throttled is None
    assert steady is not None and steady.throttled == ()


def test_a_log_that_was_not_read_takes_nothing_back() -> None:
    run = with_evidence(RUN, LOG.begun(0).begin("data", 1).end("data", 2).read())
    assert with_evidence(run, None) == run


def test_lines_that_say_nonsense_are_left_out() -> None:
    log = JobLog().job().mark("hardware node=n gpus=many").begun(0).mark("run=0 hardware clock=fast throttled=rm,power")
    run = with_evidence(RUN, log.read())
    assert run.hardware == Hardware(node="n", throttled=("power",))
