"""The lines of the log, in the forms of modded-nanogpt's: whoever watches the run reads these and nothing else.

Formats only. Times are in milliseconds of the training clock, losses in nats a token, memory in bytes. The forms are
fixed by golden lines that the tests of the trainer and of its readers share.
"""

from math import log2

SEPARATOR = "=" * 100
RESETTING = "Resetting Model"


def environment(*, python: str, torch: str, cuda: str | None, triton: str | None) -> list[str]:
    """Versions; `cuda` is None in a torch built without it, `triton` where it is not installed."""
    lines = [f"Running Python {python}", f"Running PyTorch {torch} compiled for CUDA {cuda}"]
    return lines if triton is None else [*lines, f"Running Triton version {triton}"]


def processes(world: int, *, device: str | None, threads: int) -> str:
    """`device` is the GPU's name, or None on a CPU."""
    if device is not None:
        return f"Running on {device} with world_size {world}"
    return f"Running on the CPU with world_size {world} and {threads} threads a process"


def model(preset: str, *, parameters: int, steps: int, tokens: int, seed: int) -> str:
    return f"Model {preset}: {parameters:,} parameters, {steps:,} steps, {tokens:,} tokens, seed {seed}"


def data(*, shards: int, last: str, read: int, trained: int) -> str:
    """What of the training shards the run reads; what it drops of that are ends of documents."""
    dropped = 100 * (1 - trained / read)
    return f"Data: {trained:,} tokens from {read:,} of {shards} shards up to {last}, {dropped:.1f} % dropped"


def attention(kernel: str, why: str) -> str:
    return f"Attention by {kernel} ({why})"


def fp8_head(how: str, *, activations: float, weights: float, gradients: float, validation: str) -> str:
    """The scales are powers of two that numbers are multiplied by; `validation` is the precision there."""
    scales = f"activations x 2^{log2(activations):.0f}, weights x 2^{log2(weights):.0f}"
    return f"FP8 head by {how} (e4m3: {scales}; e5m2: gradients x 2^{log2(gradients):.0f}; validation in {validation})"


def resuming(step: int, path: str) -> str:
    return f"Resuming after step {step} from {path}"


def entropy(bound: float, *, source: str, margin: float) -> str:
    """Where the target comes from, for a source of known entropy."""
    return f"entropy:{bound:.4f} nats ({source}) + margin:{margin:.4f} nats = target:{bound + margin:.4f} nats"


def compiling(how: str) -> str:
    return f"Compiling model and warming up ({how})"


def training(step: int, steps: int, *, train_time: float) -> str:
    return f"step:{step}/{steps} {_times(step, train_time)}"


def validation(step: int, steps: int, *, val_loss: float, train_time: float) -> str:
    return f"step:{step}/{steps} val_loss:{val_loss:.4f} {_times(step, train_time)}"


def peak_memory(*, allocated: int, reserved: int) -> str:
    return f"peak memory allocated: {allocated >> 20} MiB reserved: {reserved >> 20} MiB"


def _times(step: int, train_time: float) -> str:
    return f"train_time:{train_time:.0f}ms step_avg:{train_time / max(step, 1):.2f}ms"
