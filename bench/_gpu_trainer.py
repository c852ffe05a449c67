"""What the trainer does on a GPU, stage by stage: ms a step, tokens/s, MFU, peak memory, seconds of compiling.

    python bench/_gpu_trainer.py --out FOLDER [--gpus N] [options of speedrun_trainer.train ...]

Not part of `make bench`: it needs a GPU. It makes shards that look like FineWeb's (Zipf unigrams, lognormal document
lengths of mean 688; losses mean nothing), runs the trainer itself on them and works the table out from its metrics.
A step's time is the difference of the times at which two losses in a row arrived, so it is wall time between finished
steps. MFU counts the products of the model alone (6 x weights + 12 x width x keys that a token sees, a layer), at the
bf16 peak of an H100 or H200, 989 TFLOP/s; the optimizer is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "trainer"))

from speedrun_trainer.attention import mean_visible  # noqa: E402
from speedrun_trainer.data import UNITS, plan  # noqa: E402
from speedrun_trainer.presets import GPT2_SMALL  # noqa: E402
from speedrun_trainer.schedule import Schedule  # noqa: E402
from speedrun_trainer.shards import TokenStream, ensure_shard, find_dataset  # noqa: E402

PEAK = 989e12
BOS = 50256
WARM = 4  # first steps of a stage that are not counted


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate(
        [("val_000000", 4_300_000), *((f"train_{n:06d}", 20_000_000) for n in (1, 2, 3))]
    ):
        random = np.random.default_rng(number)
        weights = 1 / np.arange(1, BOS + 1)
        tokens = random.choice(BOS, size=count, p=weights / weights.sum()).astype(np.uint16)
        lengths = np.maximum(random.lognormal(np.log(688) - 0.5, 1.0, size=count // 300), 2).astype(np.int64)
        starts = np.cumsum(lengths)
        tokens[0] = BOS
        tokens[starts[starts < count]] = BOS
        ensure_shard(folder / f"zipf_{name}.bin", tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=72)
    parser.add_argument("--name", default="gpt2-small")
    options, rest = parser.parse_known_args()
    data = options.out / "data"
    make(data)
    metrics = train(options.out, options.name, data, options.steps, options.gpus, rest)
    print("\n".join(table(metrics, data, options.steps, options.gpus)))


def train(out: Path, name: str, data: Path, steps: int, gpus: int, rest: list[str]) -> Path:
    """Run the trainer, its log in `out`; returns the file of its metrics."""
    metrics = out / f"{name}.jsonl"
    metrics.unlink(missing_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [sys.executable, *launcher, f"--nproc_per_node={gpus}", "-m", "speedrun_trainer.train"]
    command += ["--preset", "gpt2-small", "--data", str(data), "--steps", str(steps), "--val-every", "0"]
    command += ["--val-tokens", "2097152", "--metrics", str(metrics), *rest]
    with (out / f"{name}.log").open("w") as log:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "trainer"), "PYTHONUNBUFFERED": "1"}
        subprocess.run(command, check=True, stdout=log, env=environment)
    return metrics


def step_times(lines: list[dict[str, Any]], schedule: Schedule) -> dict[int, list[float]]:
    """Milliseconds of each counted step, by the stage's first step."""
    times = {line["step"]: line["train_time_ms"] for line in lines if "loss" in line}
    ends = {first: first + schedule.units(first)[1] // UNITS for first in schedule.first_steps()}
    return {
        first: [times[step + 1] - times[step] for step in range(first + WARM, end - 1)] for first, end in ends.items()
    }


def table(metrics: Path, data: Path, steps: int, gpus: int) -> list[str]:
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    peaks = {line["step"]: line["peak_bytes"] for line in lines if "loss" in line}
    compiling = {line["warmed_up_for"]: line["seconds"] for line in lines if "warmed_up_for" in line}
    preset, model = GPT2_SMALL, GPT2_SMALL.model
    schedule = Schedule(steps, preset.stages)
    times = step_times(lines, schedule)
    units = plan(TokenStream(find_dataset(data).train, vocabulary=BOS + 1), schedule.portions())
    rows = [
        f"{lines[0]['device']}, {gpus} GPU, torch {torch.__version__}, attention by {lines[0]['attention']}, "
        f"{lines[0]['parameters']:,} parameters",
        "",
        "| stage | tokens a step | windows | ms a step (sd) | tokens/s | TFLOP/s a GPU | MFU | peak GiB | warm-up s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, (first, stage) in enumerate(schedule.first_steps().items()):
        begin, count = schedule.units(first)
        lengths = torch.from_numpy(units.lengths[units.firsts[begin] : units.firsts[begin + count]])
        windows = [stage.long_window if i in model.long_layers else stage.short_window for i in range(model.layers)]
        keys = sum(mean_visible(lengths, window) for window in windows)
        flops = 6 * model.matrix_weights + 12 * model.width * keys
        took, end = times[first], first + count // UNITS
        mean = statistics.mean(took)
        speed = 1000 * stage.batch_tokens / mean
        rows.append(
            f"| {number} | {stage.batch_tokens:,} | {stage.short_window}/{stage.long_window} "
            f"| {mean:.1f} ({statistics.stdev(took):.1f}) | {speed:,.0f} | {flops * speed / gpus / 1e12:.0f} "
            f"| {100 * flops * speed / gpus / PEAK:.1f} % | {peaks[end - 1] / 2**30:.1f} | {compiling[first]:.0f} |"
        )
    return rows


if __name__ == "__main__":
    main()
