"""What the head costs in bfloat16 and in FP8, on one GPU at GPT-2 small's size: ms forward and back, peak memory.

    python bench/_gpu_head.py --out FOLDER [--tokens N ...]

Not part of `make bench`: it needs a GPU. It takes the head of the trainer's own model, from normalized activations to
the loss and back to the gradients of activations and weights, compiled, on random numbers. Both kinds are measured in
turn, twice: what their two medians differ by is noise. Rows go to FOLDER/head.md as they come.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "trainer"))

from speedrun_trainer.launch import compiler_caches  # noqa: E402
from speedrun_trainer.model import GPT, norm  # noqa: E402
from speedrun_trainer.presets import GPT2_SMALL  # noqa: E402

WARM, ROUNDS = 5, 2
COLUMNS = ["tokens", "head", "forward ms", "forward and backward ms (sd)", "peak GiB", "compile s"]


class Head:
    """One kind of head on one number of tokens, compiled by its first call."""

    def __init__(self, kind: str, tokens: int, device: torch.device) -> None:
        preset = GPT2_SMALL.with_fp8_head() if kind == "fp8" else GPT2_SMALL
        shape = {"layers": 1, "positions": 16, "long_layers": (), "value_embeddings": 0}
        model = GPT(replace(preset.model, **shape), dtype=torch.bfloat16).to(device)
        torch.manual_seed(0)
        torch.nn.init.normal_(model.head, std=0.05)
        self.kind, self.tokens, self.device, self.model = kind, tokens, device, model
        self.x = norm(torch.randn(tokens, preset.model.width, device=device)).bfloat16().requires_grad_()
        self.targets = torch.randint(preset.model.vocabulary, (tokens,), device=device)
        self.batch = preset.stages[-1].batch_tokens
        self.loss = torch.compile(model.cross_entropy, fullgraph=True, dynamic=False)

    def forward(self) -> torch.Tensor:
        return self.loss(self.x, self.targets) / self.batch

    def forward_and_backward(self) -> None:
        self.x.grad = self.model.head.grad = None
        self.forward().backward()

    def compile(self) -> float:
        """Seconds."""
        began = time.perf_counter()
        self.forward_and_backward()
        synchronize(self.device)
        return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Of each call; on a GPU between events, without waiting for the program in between."""
    for _ in range(WARM):
        call()
    synchronize(device)
    if device.type == "cpu":
        times = [time.perf_counter()]
        for _ in range(repeats):
            call()
            times.append(time.perf_counter())
        return [1000 * (end - begin) for begin, end in pairwise(times)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    synchronize(device)
    return [begin.elapsed_time(end) for begin, end in pairwise(events)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[49_152, 16_384], help="micro-batches")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    options = parser.parse_args()
    compiler_caches()
    torch._dynamo.config.recompile_limit = 64  # each head is compiled once
    options.out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name() if options.device.type == "cuda" else "CPU"
    with (options.out / "head.md").open("w") as file:

        def write(line: str) -> None:
            print(line, file=file, flush=True)
            print(line, flush=True)

        write(f"{name}, torch {torch.__version__}, {GPT2_SMALL.model.padded_vocabulary} rows of 768\n")
        write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for tokens in options.tokens:
            heads = [Head(kind, tokens, options.device) for kind in ("bf16", "fp8")]
            compiled = {head.kind: head.compile() for head in heads}
            for head in heads * ROUNDS:
                measure(head, options, compiled[head.kind], write)


def measure(head: Head, options: argparse.Namespace, compiled: float, write: Callable[[str], None]) -> None:
    gpu = head.device.type == "cuda"
    forward = statistics.median(milliseconds(head.forward, head.device, options.repeats))
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    times = milliseconds(head.forward_and_backward, head.device, options.repeats)
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else 0.0
    both, spread = statistics.median(times), statistics.stdev(times)
    write(
        f"| {head.tokens:,} | {head.kind} | {forward:.2f} | {both:.2f} ({spread:.2f}) | {peak:.1f} | {compiled:.0f} |"
    )


if __name__ == "__main__":
    main()
