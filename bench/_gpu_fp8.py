"""What `--fp8 head` does to a whole training step on one GPU: milliseconds, and the loss after as many steps.

    python bench/_gpu_fp8.py --out FOLDER [--rounds N] [options of speedrun_trainer.train ...]

Not part of `make bench`: it needs a GPU. Each round trains gpt2-small twice, in processes of their own, once with each
kind of head and from the same seed; the kinds change places from round to round, so that a card that slows down is no
head's advantage. Runs that FOLDER has already are not made again, so the same command goes on after an interruption.

A step's time is what _gpu_trainer.py's is. The shards are made up as well, but have something to learn beyond their
tokens' frequencies: with even chances the next token is the one successor that its predecessor has, or drawn anew.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _gpu_trainer import BOS, ROOT, step_times, train

sys.path.insert(0, str(ROOT / "trainer"))

from speedrun_trainer.presets import GPT2_SMALL
from speedrun_trainer.schedule import Schedule
from speedrun_trainer.shards import ensure_shard

KINDS = ("none", "head")
ANEW = 0.5  # chance of a token that does not follow from the one before


def make(folder: Path) -> float:
    """Shards in `folder`; returns the entropy of a token, BOS left out, in nats."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = 1 / np.arange(1, BOS + 1)
    weights /= weights.sum()
    successor = np.random.default_rng(99).permutation(BOS)
    for number, (name, count) in enumerate(
        [("val_000000", 4_300_000), *((f"train_{n:06d}", 20_000_000) for n in (1, 2, 3))]
    ):
        random = np.random.default_rng(100 + number)
        tokens = random.choice(BOS, size=count, p=weights)
        anew = random.random(count) < ANEW
        anew[0] = True
        places = np.arange(count)
        distance = places - np.maximum.accumulate(np.where(anew, places, 0))  # to the last token drawn anew
        for one in range(1, int(distance.max()) + 1):
            here = np.flatnonzero(distance == one)
            tokens[here] = successor[tokens[here - 1]]
        lengths = np.maximum(random.lognormal(np.log(688) - 0.5, 1.0, size=count // 300), 2).astype(np.int64)
        starts = np.cumsum(lengths)
        tokens[0] = BOS
        tokens[starts[starts < count]] = BOS
        ensure_shard(folder / f"chain_{name}.bin", tokens.astype(np.uint16))
    # Of p = (1 - ANEW) x (is it the successor?) + ANEW x weight, for each token and its successor's weight; tokens are
    # as frequent as what leads to them, which settles after a few steps of the chain.
    frequency = weights.copy()
    for _ in range(60):
        moved = ANEW * weights
        moved[successor] += (1 - ANEW) * frequency
        frequency = moved
    plain = ANEW * weights
    expected = plain[successor] + (1 - ANEW)
    all_but = (plain * np.log(plain)).sum() - plain[successor] * np.log(plain[successor])
    return float(-(frequency * (all_but + expected * np.log(expected))).sum())


@dataclass(frozen=True)
class Run:
    """What a finished run's metrics say."""

    number: int
    kind: str
    stages: tuple[float, ...]  # median milliseconds of a step
    deviations: tuple[float, ...]
    step_avg: float
    val_loss: float
    peak: float  # GiB
    warm_up: float  # seconds

    @classmethod
    def of(cls, metrics: Path, number: int, kind: str, steps: int) -> "Run | None":
        """None if the run is not there or did not come to its end."""
        if not metrics.exists():
            return None
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        if "val_loss" not in lines[-1]:
            return None
        times = step_times(lines, Schedule(steps, GPT2_SMALL.stages)).values()
        return cls(
            number,
            kind,
            tuple(statistics.median(took) for took in times),
            tuple(statistics.stdev(took) for took in times),
            lines[-1]["train_time_ms"] / steps,
            lines[-1]["val_loss"],
            max(line["peak_bytes"] for line in lines if "loss" in line) / 2**30,
            sum(line["seconds"] for line in lines if "warmed_up_for" in line),
        )

    def row(self) -> str:
        stages = (f"{ms:.1f} ({sd:.1f})" for ms, sd in zip(self.stages, self.deviations, strict=True))
        last = (f"{self.step_avg:.2f}", f"{self.val_loss:.4f}", f"{self.peak:.1f}", f"{self.warm_up:.0f}")
        return cells([str(self.number), self.kind, *stages, *last])


def cells(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=72)
    options, rest = parser.parse_known_args()
    entropy = make(options.out / "data")
    runs = []
    for number in range(options.rounds):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            metrics = options.out / f"{kind}-{number}.jsonl"
            if Run.of(metrics, number, kind, options.steps) is None:
                more = ["--fp8", kind, "--run-number", str(number), *rest]
                train(options.out, metrics.stem, options.out / "data", options.steps, 1, more)
            run = Run.of(metrics, number, kind, options.steps)
            assert run is not None, f"{metrics} has no validation at its end"
            runs.append(run)
            print(run.row(), flush=True)  # an interrupted bench has shown what it has
    first = json.loads(metrics.read_text().splitlines()[0])
    lines = table(runs, f"{first['device']}, torch {torch.__version__}, attention by {first['attention']}", entropy)
    (options.out / "fp8.md").write_text("\n".join(lines) + "\n")
    print("\n".join(["", *lines]))


def table(runs: Sequence[Run], where: str, entropy: float) -> list[str]:
    stages = range(len(runs[0].stages))
    columns = ["seed", "--fp8", *(f"stage {n}, ms (sd)" for n in stages), "step_avg ms", "val_loss", "GiB", "warm-up s"]
    lines = [f"{where}; entropy of the tokens {entropy:.2f} nats", "", cells(columns), "|---" * len(columns) + "|"]
    lines += [run.row() for run in runs]
    lines += ["", cells(["", "none", "head", "head against none, seed by seed"]), "|---|---|---|---|"]
    for n in stages:
        lines.append(compared(f"stage {n}, ms", runs, [run.stages[n] for run in runs], relative=True))
    lines.append(compared("step_avg, ms", runs, [run.step_avg for run in runs], relative=True))
    lines.append(compared("val_loss", runs, [run.val_loss for run in runs], relative=False))
    return lines


def compared(name: str, runs: Sequence[Run], numbers: Sequence[float], *, relative: bool) -> str:
    """Medians of the kinds and of the pairs' differences, with the lowest and the highest."""
    found = {(run.kind, run.number): number for run, number in zip(runs, numbers, strict=True)}
    plain, fp8 = ([value for (kind, _), value in sorted(found.items()) if kind == wanted] for wanted in KINDS)
    differences = [100 * (b / a - 1) if relative else b - a for a, b in zip(plain, fp8, strict=True)]
    digits, unit = (1, " %") if relative else (4, "")
    return cells(
        [
            name,
            spread(plain, digits),
            spread(fp8, digits),
            spread(differences, digits, sign="+") + unit,
        ]
    )


def spread(numbers: Sequence[float], digits: int, sign: str = "") -> str:
    assert all(map(math.isfinite, numbers))
    middle, low, high = (f"{x:{sign}.{digits}f}" for x in (statistics.median(numbers), min(numbers), max(numbers)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
