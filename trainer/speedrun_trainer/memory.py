"""Memory: what a run will take, told before minutes are spent on compiling, and what it took."""

import resource
from pathlib import Path

import torch

from speedrun_trainer.data import UNITS, Share
from speedrun_trainer.launch import CannotRun, Ranks
from speedrun_trainer.model import GPT
from speedrun_trainer.presets import Preset

BYTES = 4  # of a float32


def needed(model: GPT, preset: Preset, share: Share) -> int:
    """Bytes on one GPU: weights, gradients, this process's part of the optimizer's state, and tokens on their way."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = max(share.at_once(UNITS, stage.unit_tokens) * stage.unit_tokens for stage in preset.stages)
    return BYTES * parameters * 2 + 2 * BYTES * parameters // share.world + tokens * preset.token_bytes


def advice(preset: Preset, world: int) -> str:
    """What helps where memory does not suffice: smaller portions, unless the largest one is a single unit already."""
    share, unit = Share(0, world, preset.most_tokens), preset.largest_unit
    largest = max(share.at_once(UNITS, stage.unit_tokens) * stage.unit_tokens for stage in preset.stages)
    if largest > unit:
        return f"lower --micro-tokens, to {unit} at the least"
    return f"the smallest portion, a unit of {unit} tokens, is too much for this GPU"


def require(ranks: Ranks, model: GPT, preset: Preset, share: Share) -> None:
    """Raises CannotRun if the GPU has less free than the run takes."""
    if ranks.device.type != "cuda":
        return
    takes = needed(model, preset, share)
    free, total = torch.cuda.mem_get_info(ranks.device)
    if free < takes:
        raise CannotRun(
            f"GPU {ranks.local_rank} ({torch.cuda.get_device_name(ranks.device)}) has {free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB free, and a run with --micro-tokens {preset.most_tokens} takes about "
            f"{takes / 2**30:.1f} GiB: {advice(preset, share.world)}; or end what else runs on it"
        )


def peak(device: torch.device) -> dict[str, int]:
    """Bytes, allocated and reserved. A CPU has no allocator that reserves: both are then the process's resident peak.

    Not getrusage's figure alone: that may be the parent's before exec.
    """
    if device.type == "cuda":
        return {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    try:
        most = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"allocated": most, "reserved": most}
