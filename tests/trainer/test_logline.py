"""The lines are exactly the golden ones, which the log's readers test against too."""

import math

from conftest import REPOSITORY
from speedrun_trainer import logline

PYTHON = "3.11.2 (main, Apr 28 2025, 14:11:48) [GCC 12.2.0]"


def test_lines_are_the_golden_ones() -> None:
    golden = (REPOSITORY / "tests/golden/loglines.txt").read_text().splitlines()
    printed = [
        *logline.environment(python=PYTHON, torch="2.11.0+cu130", cuda="13.0", triton="3.6.0"),
        *logline.environment(python=PYTHON, torch="2.11.0+cpu", cuda=None, triton=None),
        logline.processes(2, device=None, threads=1),
        logline.processes(8, device="NVIDIA H100 80GB HBM3", threads=1),
        logline.SEPARATOR,
        logline.entropy(1.9688238889, source="order-2 Markov source, 16 tokens, seed 1", margin=0.05),
        logline.model("gpt2-small", parameters=278_102_076, steps=2700, tokens=707_788_800, seed=0),
        logline.data(shards=9, last="fineweb_train_000009.bin", read=880_000_000, trained=707_788_800),
        logline.attention("sdpa", "on a CPU"),
        logline.fp8_head("scaled_mm", activations=16.0, weights=64.0, gradients=2.0**32, validation="bfloat16"),
        logline.compiling("nothing to compile on a CPU; 3 steps"),
        logline.RESETTING,
        logline.resuming(250, "checkpoint"),
        logline.validation(0, 500, val_loss=2.77258872, train_time=0.004),
        logline.training(1, 500, train_time=52.2799),
        logline.training(125, 500, train_time=4108.351),
        logline.validation(125, 500, val_loss=2.16063, train_time=4108.351),
        logline.validation(126, 500, val_loss=math.nan, train_time=4140.6),
        logline.validation(126, 500, val_loss=math.inf, train_time=4140.6),
        logline.validation(500, 500, val_loss=1.99034, train_time=1_234_567.89),
        logline.peak_memory(allocated=557 * 2**20 + 1, reserved=2**30),
    ]
    assert printed == [line for line in golden if not line.startswith("#")]
