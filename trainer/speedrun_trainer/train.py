"""One training run, from the first line of the log to the last: on a CPU, or on 1, 2, 4 or 8 GPUs of one node.

    python -m speedrun_trainer data make-synthetic --data data/synthetic
    python -m speedrun_trainer.train --data data/synthetic                                  a CPU, half a minute

    python -m speedrun_trainer data get --data data/fineweb10B --shards 10
    python -m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc_per_node=8 \\
        -m speedrun_trainer.train --preset gpt2-small --data data/fineweb10B                8 GPUs

Without --local-addr torchrun waits for ever on a machine that cannot look up its own name.

The log on standard output has the speedrun's lines; the result is the val_loss and train_time of the line at the last
step. The clock starts after compiling and warm-up, whose effects are reset, and stands still during validations. It
begins at the time that finding the documents in the shards took, since what a run works out from the data counts.

Exit codes: 0 finished, 2 bad options, 3 the loss is no longer a number, 4 the data cannot be used, 5 this machine
cannot run it, 6 the checkpoint or an output cannot be used, 130 interrupted, 143 ended by SIGTERM. torchrun prints them
in its table of failed processes and itself exits with 1.
"""

import math
import os
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from speedrun_trainer import attention, checkpoint, fp8, launch, logline, memory
from speedrun_trainer.arguments import parse_train
from speedrun_trainer.checkpoint import CheckpointError, Place
from speedrun_trainer.clock import Clock
from speedrun_trainer.data import UNITS, Ahead, Batch, Share, cut, plan
from speedrun_trainer.launch import CannotRun, Ranks, Stop
from speedrun_trainer.model import GPT
from speedrun_trainer.report import Metrics, Progress, first_line
from speedrun_trainer.schedule import Schedule, Stage
from speedrun_trainer.sharding import Optimizer
from speedrun_trainer.shards import DataError, TokenStream, find_dataset, vocabulary_of
from speedrun_trainer.source import MARGIN, MarkovSource

EXIT_DIVERGED = 3
EXIT_DATA = 4
EXIT_MACHINE = 5
EXIT_FILES = 6
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    stop = Stop()
    options = parse_train(arguments, description=__doc__ or "")
    code, message = EXIT_MACHINE, ""
    try:
        code = run(options, launch.ranks(options.device), stop)
        launch.disconnect()
        return code
    except (CannotRun, attention.NoKernel) as error:
        message = str(error)
    except torch.OutOfMemoryError as error:
        advice = memory.advice(options.preset, launch.world_size())
        message = f"the GPU's memory does not suffice: {advice} ({first_line(error)})"
    except DataError as error:
        code, message = EXIT_DATA, str(error)
    except (CheckpointError, OSError) as error:
        code, message = EXIT_FILES, str(error)
    except KeyboardInterrupt:
        code, message = EXIT_INTERRUPTED, "interrupted: the run ends here, without a result"
    print(f"speedrun_trainer.train: {message}", file=sys.stderr, flush=True)
    launch.leave(code)
    return code


def run(options: Namespace, ranks: Ranks, stop: Stop) -> int:
    """The run as it happens. Returns the exit code; raises what `main` turns into others, mostly before the warm-up."""
    preset, print0, device = options.preset, ranks.print0, ranks.device
    gpu = device.type == "cuda"
    torch.set_num_threads(options.threads)

    # -----------------------------------------------------------------------
    # What runs

    triton = launch.installed("triton")
    for line in logline.environment(
        python=sys.version, torch=torch.__version__, cuda=torch.version.cuda, triton=triton
    ):
        print0(line)
    name = torch.cuda.get_device_name(device) if gpu else None
    print0(logline.processes(ranks.world, device=name, threads=options.threads))
    print0(logline.SEPARATOR)
    kernel = attention.choose(device, options.attention)
    compiled = options.compile == "yes" or (options.compile == "auto" and gpu)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)

    # -----------------------------------------------------------------------
    # Data: every shard that the run needs is looked at now, not when its turn comes

    dataset = find_dataset(options.data)
    source = MarkovSource.of_folder(options.data)
    vocabulary = vocabulary_of(options.data)
    schedule = Schedule(
        preset.steps,
        preset.stages,
        warmup_steps=preset.warmup_steps,
        cooldown=preset.cooldown,
        final_rate=preset.final_rate,
    )
    train = TokenStream(dataset.train, vocabulary=vocabulary)
    val = TokenStream([dataset.val], vocabulary=vocabulary)
    began = perf_counter()
    train_units = plan(train, schedule.portions())
    planning_time = 1000 * (perf_counter() - began)
    val_units = cut(val, preset.val_tokens // preset.val_unit, preset.val_unit)
    share = Share(ranks.rank, ranks.world, preset.most_tokens)
    if source is not None:
        print0(logline.entropy(source.entropy.of_sequences(preset.val_unit), source=str(source), margin=MARGIN))

    # -----------------------------------------------------------------------
    # Model and optimizer: the same on every rank and every kind of device, by the seed

    config = replace(preset.model, vocabulary=vocabulary)
    launch.connect(ranks)
    launch.compiler_caches()
    seed = options.seed + options.run_number
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if gpu else torch.float32
    model = GPT(config, kernel, dtype)
    memory.require(ranks, model, preset, share)
    model = model.to(device)
    optimizer = Optimizer(model, preset.rules, rank=ranks.rank, world=ranks.world, dtype=dtype, compiled=compiled)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = schedule.tokens_before(preset.steps)
    print0(logline.model(options.preset_name, parameters=parameters, steps=preset.steps, tokens=tokens, seed=seed))
    read = int(train_units.starts[-1] + train_units.lengths[-1])
    shards = int((train.starts < read).sum())
    print0(logline.data(shards=shards, last=train.paths[shards - 1].name, read=read, trained=tokens))
    print0(logline.attention(kernel.name, kernel.why))
    if (scale := config.fp8_gradient_scale) is not None:
        print0(fp8.require(device, scale, config.width, config.padded_vocabulary, preset.stages, validation=dtype))
    forward: Callable[..., Tensor] = model
    if compiled:
        torch._dynamo.config.recompile_limit = 64  # each stage's shapes and windows are compiled once, in both modes
        forward = torch.compile(model, dynamic=False, fullgraph=kernel.name != "sdpa")

    def loss_of(batch: list[Tensor], longest: int, stage: Stage) -> Tensor:
        """Summed over the batch."""
        on_device = (part.to(device, non_blocking=True) for part in batch)
        return forward(*on_device, longest, (stage.short_window, stage.long_window))

    def train_step(step: int, batches: Iterator[list[Tensor]]) -> Tensor:
        """One update, from everybody's batches. Returns the sums over all ranks of loss and of wishes to stop."""
        stage = schedule.stage(step)
        sums = torch.zeros(2, device=device)
        for _ in range(UNITS // ranks.world // share.at_once(UNITS, stage.unit_tokens)):
            loss = loss_of(next(batches), stage.longest, stage) / stage.batch_tokens  # the parts add up to the mean
            loss.backward()  # type: ignore[no-untyped-call]
            sums[0] += loss.detach()
        sums[1] += float(stop.asked)
        optimizer.step(rate=preset.learning_rate * schedule.rate(step), momentum=schedule.momentum(step))
        ranks.add_up([sums])
        return sums

    def train_batches(steps: range) -> Iterator[list[Tensor]]:
        for step in steps:
            tokens, first = schedule.stage(step).unit_tokens, step * UNITS
            rooms = train_units.most_pieces(*schedule.units(step))
            for batch in share.batches(train, train_units, first, UNITS, tokens=tokens, documents=rooms):
                yield tensors(batch, pinned=gpu)

    def val_batches() -> Iterator[list[Tensor]]:
        rooms = val_units.most_pieces()
        for batch in share.batches(val, val_units, 0, len(val_units), tokens=preset.val_unit, documents=rooms):
            yield tensors(batch, pinned=gpu)

    @torch.no_grad()
    def validate(stage: Stage, batches: Iterator[list[Tensor]]) -> float:
        """Mean cross-entropy in nats: the same tokens every time, whatever the number of ranks."""
        total = torch.zeros(1, dtype=torch.float64, device=device)
        for batch in batches:
            total += loss_of(batch, preset.val_unit, stage)
        ranks.add_up([total])
        mean: float = total.item() / preset.val_tokens
        return mean

    # -----------------------------------------------------------------------
    # Compiling and warm-up: first steps are slow, and outside the clock. Then everything is as if they had not been

    how = f"{options.warmup_steps} steps of each of {len(schedule.first_steps())} stages"
    print0(logline.compiling(how if compiled else f"nothing to compile on a CPU; {how}"))
    weights = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    path = options.metrics if ranks.rank == 0 else None
    metrics = Metrics(path, parameters=parameters, attention=kernel.name, world=ranks.world, device=name or "cpu")
    if options.checkpoint:
        checkpoint.require_writable(options.checkpoint)
    if options.weights:
        checkpoint.require_weights(options.weights)
    for first, stage in schedule.first_steps().items():
        began = perf_counter()
        for step in range(first, min(first + options.warmup_steps, preset.steps)):
            train_step(step, train_batches(range(step, step + 1)))
        if compiled and options.warmup_steps:
            validate(stage, iter([next(val_batches())]))
        metrics.write(warmed_up_for=first, seconds=perf_counter() - began)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.pop(name))
    optimizer.reset()
    clock = Clock(device)
    print0(logline.RESETTING)  # the data have no position to reset: a batch is addressed by its step

    # -----------------------------------------------------------------------
    # A run that goes on

    facts = {
        "preset": options.preset_name, "without": options.without, "steps": preset.steps, "seed": seed, "fp8": scale,
        "learning_rate": preset.learning_rate, "vocabulary": vocabulary, "data": train.identity(),
    }  # fmt: skip
    place = checkpoint.load(options.checkpoint, model, optimizer, facts) if options.checkpoint else None
    clock.passed = place.train_time if place else planning_time
    start = place.step if place else 0
    if place:
        print0(logline.resuming(start, str(options.checkpoint)))
        metrics.write(resuming_after=start)

    # -----------------------------------------------------------------------
    # Training. A GPU's loss is looked at a step late, so that it need not wait for the program

    waiting: deque[tuple[int, Tensor]] = deque()
    diverged = stopped = reached = False
    progress = Progress(shown=ranks.rank == 0)
    batches = Ahead(train_batches(range(start, preset.steps)))
    stop.later = options.checkpoint is not None
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
    clock.start()
    for step in range(start, preset.steps + 1):
        last = step == preset.steps
        due = last or bool(preset.val_every and step % preset.val_every == 0)
        save_due = bool(options.save_every and step > start and step % options.save_every == 0)
        while len(waiting) > (1 if gpu and not (due or save_due or diverged or stopped) else 0):
            of, sums = waiting.popleft()
            loss, wishes = sums.tolist()
            diverged, stopped = diverged or not math.isfinite(loss), stopped or wishes > 0
            rate = preset.learning_rate * schedule.rate(of - 1)
            done = {"tokens": schedule.tokens_before(of), "train_time_ms": clock.read()}
            metrics.write(step=of, loss=loss, rate=rate, **done, peak_bytes=memory.peak(device)["allocated"])
            progress.show(of, preset.steps, loss=loss, seconds=clock.read() / 1000)
        if save_due or stopped:
            clock.stop()
            diverged = diverged or not ranks.all_agree(checkpoint.finite(model))
            clock.start()
        if due or diverged:
            train_time = clock.stop()
            val_loss = validate(schedule.stage(step), Ahead(val_batches()))
            print0(logline.validation(step, preset.steps, val_loss=val_loss, train_time=train_time))
            metrics.write(step=step, val_loss=val_loss, train_time_ms=train_time)
            diverged = diverged or not math.isfinite(val_loss)
            reached = options.stop_at_target is not None and val_loss <= options.stop_at_target
            clock.start()
        if (save_due or stopped) and not diverged:
            checkpoint.save(options.checkpoint, Place(step, clock.stop()), model, optimizer, facts)
            clock.start()
        if last or diverged or stopped or reached:
            break
        waiting.append((step + 1, train_step(step, batches)))
        print0(logline.training(step + 1, preset.steps, train_time=clock.read()))
    stop.later = stopped  # what is left is to say so and to leave
    batches.close()
    progress.end()

    # -----------------------------------------------------------------------
    # The end

    print0(logline.peak_memory(**memory.peak(device)))
    if ranks.rank == 0 and diverged:
        print(f"the loss is not a number after step {step}: lower --learning-rate", file=sys.stderr, flush=True)
    elif ranks.rank == 0 and stopped and not last:
        where = f"saved after step {step} in {options.checkpoint}"
        print(f"terminated by SIGTERM: {where}; the same command goes on from there", file=sys.stderr, flush=True)
    elif ranks.rank == 0 and options.weights:
        checkpoint.save_weights(options.weights, model, {"preset": options.preset_name, "step": str(step)})
    metrics.close()
    ranks.wait_for_all()
    return EXIT_DIVERGED if diverged else launch.EXIT_TERMINATED if stopped and not last else 0


def tensors(batch: Batch, *, pinned: bool) -> list[Tensor]:
    """In the order of the model's arguments; in memory that a GPU can copy from by itself."""
    parts = [torch.from_numpy(part) for part in (batch.tokens, batch.targets, batch.positions, batch.boundaries)]
    return [part.pin_memory() for part in parts] if pinned else parts


if __name__ == "__main__":
    sys.exit(main())
