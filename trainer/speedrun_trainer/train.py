"""One training run, from the first line of the log to the last.

    python -m speedrun_trainer data make-synthetic --data data/synthetic
    python -m speedrun_trainer.train --data data/synthetic
    python -m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc_per_node=2 \\
        -m speedrun_trainer.train --data data/synthetic

Without --local-addr torchrun waits for ever on a machine that cannot look up its own name.

The log on standard output has the speedrun's lines; the result is the val_loss and train_time of the line at the last
step. The clock starts after the warm-up, whose effects are reset, and stands still during validations.

Exit codes: 0 finished, 2 bad options, 3 the loss is no longer a number, 4 the data cannot be used, 143 ended by
SIGTERM. torchrun prints them in its table of failed processes and itself exits with 1.
"""

import copy
import math
import resource
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from time import perf_counter

import torch

from speedrun_trainer import launch, logline
from speedrun_trainer.arguments import parse_train
from speedrun_trainer.data import (
    GPT2_VOCABULARY,
    BatchShape,
    DataError,
    Rows,
    TokenStream,
    batch_rows,
    find_dataset,
)
from speedrun_trainer.launch import Ranks
from speedrun_trainer.model import GPT, ModelConfig
from speedrun_trainer.optim import Adam
from speedrun_trainer.schedule import learning_rate
from speedrun_trainer.source import MARGIN, VOCABULARY, MarkovSource

EXIT_DIVERGED = 3
EXIT_DATA = 4
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    launch.end_on_sigterm()
    ranks = launch.ranks()
    options = parse_train(arguments, description=__doc__ or "", world=ranks.world)
    try:
        return run(options, ranks)
    except DataError as error:
        print(f"speedrun_trainer.train: {error}", file=sys.stderr)
        return EXIT_DATA
    except KeyboardInterrupt:
        print("interrupted: the run ends here, without a result", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        launch.disconnect()


def run(options: Namespace, ranks: Ranks) -> int:
    """The run as it happens. Returns the exit code; raises DataError, before the warm-up for all that shows by then."""
    torch.set_num_threads(options.threads)
    print0 = ranks.print0

    # -----------------------------------------------------------------------
    # What runs

    for line in logline.environment(
        python=sys.version, torch=torch.__version__, cuda=torch.version.cuda, triton=installed("triton")
    ):
        print0(line)
    print0(logline.processes(ranks.world, threads=options.threads))
    print0(logline.SEPARATOR)

    # -----------------------------------------------------------------------
    # Data: every shard that the run needs is checked now, not when its turn comes

    shape = BatchShape(sequences=options.sequences, length=options.sequence_length)
    dataset = find_dataset(options.data)
    source = MarkovSource.of_folder(options.data)
    vocabulary = GPT2_VOCABULARY if source is None else VOCABULARY
    train = TokenStream(dataset.train, vocabulary=vocabulary)
    train.require(options.steps * shape.tokens + 1, f"training {options.steps} steps of {shape.tokens:,} tokens")
    val = TokenStream([dataset.val], vocabulary=vocabulary)
    val.require(options.val_tokens + 1, "validation")
    if source is not None:
        print0(logline.entropy(source.entropy.of_sequences(shape.length), source=str(source), margin=MARGIN))

    # -----------------------------------------------------------------------
    # Model and optimizer: the same on every rank, by the seed

    launch.connect(ranks)
    torch.manual_seed(options.seed)
    model = GPT(ModelConfig(vocabulary=vocabulary, sequence_length=shape.length))
    optimizer = Adam(model.parameters())

    # -----------------------------------------------------------------------
    # Warm-up: first steps are slow, and outside the clock. Then everything is as if they had not been

    print0(logline.compiling(f"nothing to compile on a CPU; {options.warmup_steps} steps"))
    weights, randomness = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for step in range(min(options.warmup_steps, options.steps)):
        rows = batch_rows(train, shape, batch=step, rank=ranks.rank, world=ranks.world)
        train_step(model, optimizer, rows, shape, ranks, rate=options.learning_rate)
    model.load_state_dict(weights)
    optimizer = Adam(model.parameters())
    torch.set_rng_state(randomness)
    print0(logline.RESETTING)  # the data have no position to reset: a batch is addressed by its step

    # -----------------------------------------------------------------------
    # Training. The clock counts steps and stands still during validations

    train_time = 0.0  # ms
    train_loss = math.nan
    started = perf_counter()
    for step in range(options.steps + 1):
        diverged = step > 0 and not math.isfinite(train_loss)
        last = step == options.steps or diverged
        if last or (options.val_every and step % options.val_every == 0):
            train_time += 1000 * (perf_counter() - started)
            val_loss = validate(model, val, shape, options.val_tokens // shape.tokens, ranks)
            print0(logline.validation(step, options.steps, val_loss=val_loss, train_time=train_time))
            diverged = diverged or not math.isfinite(val_loss)
            started = perf_counter()
        if last or diverged:
            break
        rows = batch_rows(train, shape, batch=step, rank=ranks.rank, world=ranks.world)
        rate = learning_rate(step, steps=options.steps, peak=options.learning_rate)
        train_loss = train_step(model, optimizer, rows, shape, ranks, rate=rate)
        elapsed = train_time + 1000 * (perf_counter() - started)
        print0(logline.training(step + 1, options.steps, train_time=elapsed))

    # -----------------------------------------------------------------------
    # The end

    peak = peak_resident_bytes()  # a CPU has no allocator that reserves: both figures are the process's resident peak
    print0(logline.peak_memory(allocated=peak, reserved=peak))
    if diverged and ranks.rank == 0:
        print(f"the loss is not a number after step {step}: lower --learning-rate", file=sys.stderr, flush=True)
    ranks.wait_for_all()
    return EXIT_DIVERGED if diverged else 0


def train_step(model: GPT, optimizer: Adam, rows: Rows, shape: BatchShape, ranks: Ranks, *, rate: float) -> float:
    """One update from this rank's rows and everybody else's. Returns the batch's mean loss before it, in nats."""
    tokens, targets = (torch.from_numpy(part) for part in rows)
    loss = model(tokens, targets) / shape.tokens  # this rank's part of the batch's mean: the parts add up to it
    loss.backward()
    loss = loss.detach()
    ranks.add_up([loss, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
    optimizer.step(rate)
    model.zero_grad()
    return float(loss)


@torch.no_grad()
def validate(model: GPT, stream: TokenStream, shape: BatchShape, batches: int, ranks: Ranks) -> float:
    """Mean cross-entropy in nats over the first `batches` batches of the stream, the same tokens every time."""
    total = torch.zeros(1, dtype=torch.float64)
    for batch in range(batches):
        rows = batch_rows(stream, shape, batch=batch, rank=ranks.rank, world=ranks.world)
        tokens, targets = (torch.from_numpy(part) for part in rows)
        total += model(tokens, targets)
    ranks.add_up([total])
    return total.item() / (batches * shape.tokens)


def installed(package: str) -> str | None:
    """The version of an installed package, without the cost of importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def peak_resident_bytes() -> int:
    """The most memory this process has had. Not getrusage's figure alone: that may be the parent's before exec."""
    try:
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
