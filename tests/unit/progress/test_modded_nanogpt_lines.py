"""Lines of modded-nanogpt: what is read, and what only looks alike."""

from decimal import Decimal

import pytest

from speedrun_operator.progress import (
    Compiling,
    Environment,
    LogPath,
    PeakMemory,
    Record,
    StepLine,
    Validation,
    WarmupEnd,
)
from speedrun_operator.progress.modded_nanogpt import begins_source, read_line


def validation(
    step: int, total: int, text: str, time: int, average: float | None, *extras: tuple[str, str]
) -> Validation:
    return Validation(step, total, Decimal(text), text, time, average, extras)


READ: list[tuple[str, list[Record]]] = [
    # ms-plain, ms-warmup, ms-thinned
    ("step:1/1670 train_time:385ms step_avg:385.21ms", [StepLine(1, 1670, 385, 385.21)]),
    ("step:0/1670 val_loss:10.8258 train_time:0ms step_avg:0.02ms", [validation(0, 1670, "10.8258", 0, 0.02)]),
    (
        "step:1390/1390 val_loss:3.2816 train_time:79656ms step_avg:57.31ms",
        [validation(1390, 1390, "3.2816", 79656, 57.31)],
    ),
    ("step:25/1194 train_time:573ms step_avg:22.90ms", [StepLine(25, 1194, 573, 22.9)]),
    ("step:0/4740 val_loss:10.825840 train_time:0ms step_avg:0.03ms", [validation(0, 4740, "10.825840", 0, 0.03)]),
    # the unit is read, and an average may be none
    ("step:12/1393 train_time:248ms step_avg:nanms", [StepLine(12, 1393, 248, None)]),
    ("step:1/3125 train_time:5.792s step_avg:5792.30ms", [StepLine(1, 3125, 5792, 5792.3)]),
    ("step:0/3350 val_loss:10.82584 train_time:0.001s step_avg:nanms", [validation(0, 3350, "10.82584", 1, None)]),
    ("step:5/10 train_time:1.0005s step_avg:0.2s", [StepLine(5, 10, 1001, 200.0)]),
    # fields in any number and order
    (
        "step:10/1875 train_loss:6.5916 train_time:45513ms step_avg:nanms",
        [StepLine(10, 1875, 45513, None, (("train_loss", "6.5916"),))],
    ),
    (
        "step:8200/20000 val_loss:2.1228 val_bpb:1.2540 train_time:356869ms step_avg:43.52ms",
        [validation(8200, 20000, "2.1228", 356869, 43.52, ("val_bpb", "1.2540"))],
    ),
    (
        "step:125/2900 val_loss:4.44701 val_avg_loss:4.4 train_time:474.173s step_avg:1.00ms ema_beta:0 handoff:a:b",
        [validation(125, 2900, "4.44701", 474173, 1.0, ("val_avg_loss", "4.4"), ("ema_beta", "0"), ("handoff", "a:b"))],
    ),
    ("step:7/9 step_avg:2.00ms train_time:14ms val_loss:3.5", [validation(7, 9, "3.5", 14, 2.0)]),
    # numbers in other spellings
    (
        "step:10/100 val_loss:3.2812e+00 train_time:1.2e+05ms step_avg:1.2e+04ms",
        [validation(10, 100, "3.2812e+00", 120000, 12000.0)],
    ),
    (
        "step:20/100 val_loss:7.5E-05 train_time:250000ms step_avg:12500.00ms",
        [validation(20, 100, "7.5E-05", 250000, 12500.0)],
    ),
    ("step:30/100 val_loss:+3.25 train_time:360000ms", [validation(30, 100, "+3.25", 360000, None)]),
    # no number at all
    (
        "step:250/1750 val_loss:nan train_time:30000ms step_avg:120.00ms",
        [Validation(250, 1750, None, "nan", 30000, 120.0)],
    ),
    (
        "step:375/1750 val_loss:inf train_time:45000ms step_avg:120.00ms",
        [Validation(375, 1750, None, "inf", 45000, 120.0)],
    ),
    ("step:375/1750 val_loss:-INF train_time:45000ms", [Validation(375, 1750, None, "-INF", 45000, None)]),
    ("step:500/1750 val_loss: train_time:60000ms step_avg:120.00ms", [StepLine(500, 1750, 60000, 120.0)]),
    ("step:500/1750 val_loss:3.2slurmstepd: train_time:60000ms", [StepLine(500, 1750, 60000, None)]),
    ("step:500/1750 val_loss:3_28 train_time:60000ms", [StepLine(500, 1750, 60000, None)]),
    ("step:500/1750 val_loss:1e400 train_time:60000ms", [StepLine(500, 1750, 60000, None)]),
    # labels of launchers, and lines of two ranks in one
    ("[default0]:step:125/1750 train_time:15000ms step_avg:120.00ms", [StepLine(125, 1750, 15000, 120.0)]),
    ("0: step:250/1750 train_time:30000ms step_avg:120.00ms", [StepLine(250, 1750, 30000, 120.0)]),
    ("[rank0]: step:250/1750 train_time:30000ms step_avg:120.00ms", [StepLine(250, 1750, 30000, 120.0)]),
    (
        "[1,0]<stdout>:step:375/1750 val_loss:3.9 train_time:45000ms step_avg:120.00ms3: NCCL INFO comm ready",
        [validation(375, 1750, "3.9", 45000, 120.0)],
    ),
    (
        "7: step:500/1750 val_loss:3.8 train_time:60ms step_avg:120.00ms0: step:625/1750 val_loss:3.7 train_time:75ms",
        [validation(500, 1750, "3.8", 60, 120.0), validation(625, 1750, "3.7", 75, None)],
    ),
    ("step:7/9 train_time:14ms [rank1]: step:8/9", [StepLine(7, 9, 14, None)]),
    ("step:7/9 [rank1]: train_time:14ms", []),
    ("0: Resetting Model", [WarmupEnd()]),
    # the other lines
    ("Compiling model and warming up kernels (~7 minutes on first execution)", [Compiling()]),
    ("Compiling model, warming up kernels and capturing CUDA graphs (~7 minutes on first execution)", [Compiling()]),
    ("Resetting Model", [WarmupEnd()]),
    ("Running PyTorch 2.10.0+cu128 compiled for CUDA 12.8", [Environment(torch="2.10.0+cu128", cuda="12.8")]),
    (
        "Running pytorch 2.6.0.dev20241119+cu124 compiled for CUDA 12.4",
        [Environment(torch="2.6.0.dev20241119+cu124", cuda="12.4")],
    ),
    ("Running PyTorch 2.10.0+cpu compiled for CUDA None", [Environment(torch="2.10.0+cpu")]),
    ("Running Python 3.12.3 (main, Nov  6 2025, 13:44:16) [GCC 13.3.0]", [Environment(python="3.12.3")]),
    ("Running Triton version 3.6.0", [Environment(triton="3.6.0")]),
    ("peak memory allocated: 30950 MiB reserved: 47202 MiB", [PeakMemory(30950, 47202)]),
    ("peak memory consumption: 34239 MiB", [PeakMemory(34239, None)]),
    ("logs/e6f9a3c6-a7af-42b0-b37d-2207a0372648.txt", [LogPath("logs/e6f9a3c6-a7af-42b0-b37d-2207a0372648.txt")]),
]


@pytest.mark.parametrize(("line", "expected"), READ, ids=[line[:60] for line, _ in READ])
def test_reads(line: str, expected: list[Record]) -> None:
    assert read_line(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        'print0(f"step:{step}/{train_steps} val_loss:{val_loss:.4f} train_time:{t:.0f}ms", console=True)',
        '    print0(f"step:{step+1}/{train_steps} train_time:{t:.0f}ms")',
        "step:{step}/{train_steps} val_loss:3.28 train_time:1ms",
        " step:1/2 val_loss:3.28 train_time:1ms",
        "step:{step}/{n} is printed as step:1/2 val_loss:3.28 train_time:1ms",
        "tailavg step:2720 tau:25 lambda:0.25 val_loss:3.28312",
        "tailavg step:2720/2720 val_loss:3.28312 train_time:1ms",
        "trail_delta step:2640 gamma:-0.04 moved_norm:7.019564 clipped:0",
        "readout applied step:2740 alpha:0.12 anchor_step:2400",
        "saved_checkpoint step:2850 path:/data/state.pt",
        "step:2850 val_loss:3.3 train_time:1ms",
        "step:1/0 val_loss:3.28 train_time:1ms",
        "step:-1/10 val_loss:3.28 train_time:1ms",
        "step:\u0661/10 val_loss:3.28 train_time:1ms",
        "step:1/10",
        "step:1/10 fetching name:shard",
        "step:1/10 val_loss:3.28",
        "step:1/10 val_loss:3.28 train_time:79656",
        "step:1/10 val_loss:3.28 train_time:79656m",
        "step:1/10 val_loss:3.28 train_time:nanms",
        "step:1/10 val_loss:3.28 train_time:-5ms",
        "step:1/10 val_loss:3.28 train_time:1e99s",
        "step:1/10 val_loss:3.28 train_time:\u0661ms",
        "step:99999999999999999999/10 val_loss:3.28 train_time:1ms",
        "s:250 tel:3.2722",
        "step 00100/05568 (1.80%) | loss: 3.398141 | dt: 1066.92ms | total time: 1.00m",
        "Step 05568 | CORE metric: 0.2626",
        "[schedule] stage ends=[0, 320, 681, 1107, 1174, 1194]",
        "Running FA3 build build/torch-stable-abi29-cu128-x86_64-linux/flash_attn_interface.py",
        "Running on device_name=NVIDIA H100 80GB HBM3 with world_size=8",
        "# Resetting Model",
        "writing logs/run.txt",
        "[rank0]: Traceback (most recent call last):",
    ],
)
def test_leaves_alone(line: str) -> None:
    assert read_line(line) == []


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [
        ("=" * 100, True),
        ("import os", True),
        ("from pathlib import Path", True),
        ("# one file", True),
        ('"""Trains a model."""', True),
        ("=" * 99, False),
        ("Running Python 3.12.3 (main)", False),
        ("logs/1.txt", False),
        ("step:0/10 val_loss:10.8 train_time:0ms", False),
        ("important: from here on", False),
    ],
)
def test_knows_source_code_by_its_first_line(first_line: str, expected: bool) -> None:
    assert begins_source(first_line) is expected
