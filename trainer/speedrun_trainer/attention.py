"""Causal attention within documents and a sliding window: three kernels for one formula, one of them chosen at start.

Queries, keys and values are (tokens, heads, head_width), several documents one after the other; `boundaries`
(documents + 1, int32) says where they begin and end, `longest` how many tokens the longest may have. Token i sees token
j of its own document if 0 <= i - j <= window.

- flash-attn-4: Dao-AILab's kernels for Hopper and Blackwell, where the package `flash-attn-4` is installed.
- varlen: torch's own kernel (FlashAttention 2), on a GPU from Ampere on, torch 2.11.
- sdpa: torch's scaled_dot_product_attention, a document at a time: a CPU, any precision.
"""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from speedrun_trainer.report import first_line

NAMES = ("flash-attn-4", "varlen", "sdpa")

Function = Callable[[Tensor, Tensor, Tensor, Tensor, int, int, float], Tensor]


class NoKernel(Exception):
    """Attention cannot run here; the message says why and what to do."""


@dataclass(frozen=True)
class Kernel:
    """`attend(q, k, v, boundaries, longest, window, scale)` gives (tokens, heads, head_width)."""

    name: str
    attend: Function
    why: str  # it was chosen


def choose(device: torch.device, wanted: str = "auto") -> Kernel:
    """The fastest kernel that runs on `device`, or the one that is wanted by name. Raises NoKernel."""
    if wanted == "sdpa" or (wanted == "auto" and device.type == "cpu"):
        return Kernel("sdpa", sdpa, "as asked for" if wanted == "sdpa" else "on a CPU")
    if device.type == "cpu":
        raise NoKernel(f"--attention {wanted} needs a GPU; on a CPU there is sdpa")
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise NoKernel(
            f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) has no FlashAttention kernel: "
            "they begin with Ampere (8.0). --attention sdpa runs, slowly"
        )
    why = "as asked for"
    if wanted != "varlen":
        found = flash_attn_4(major)
        if not isinstance(found, str):
            return Kernel("flash-attn-4", found, "it is installed")
        if wanted == "flash-attn-4":
            raise NoKernel(f"--attention flash-attn-4: {found}")
        why = found
    from torch.nn.attention.varlen import varlen_attn

    if "window_size" not in inspect.signature(varlen_attn).parameters:
        raise NoKernel(
            f"torch {torch.__version__}: its varlen kernel has no sliding windows, 2.11's has. "
            "Install torch 2.11 or flash-attn-4"
        )
    return Kernel("varlen", varlen, why)


def flash_attn_4(major: int) -> Function | str:
    """The kernel, or why it is of no use here."""
    if major < 9:
        return "flash-attn-4 is for Hopper and Blackwell"
    # Both run code of packages that may have been built for another torch, which shows as an error of any kind.
    try:
        if importlib.util.find_spec("flash_attn.cute") is None:  # imports flash_attn, maybe flash-attn 2's
            return "flash-attn-4 is not installed"
    except ModuleNotFoundError:
        return "flash-attn-4 is not installed"
    except Exception as error:
        return f"the package flash_attn cannot be imported: {first_line(error)}"
    try:
        from speedrun_trainer import flash4
    except Exception as error:
        return f"flash-attn-4 is installed but cannot be imported: {first_line(error)}"
    return flash4.attend


def varlen(q: Tensor, k: Tensor, v: Tensor, boundaries: Tensor, longest: int, window: int, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(q, k, v, boundaries, boundaries, longest, longest, scale=scale, window_size=(window, 0))
    assert isinstance(out, Tensor)
    return out


def sdpa(q: Tensor, k: Tensor, v: Tensor, boundaries: Tensor, longest: int, window: int, scale: float) -> Tensor:
    lengths = [length for length in boundaries.diff().tolist() if length]
    pieces = []
    for parts in zip(*(torch.split(x, lengths) for x in (q, k, v)), strict=True):
        q1, k1, v1 = (part.transpose(0, 1).unsqueeze(0) for part in parts)  # (1, heads, length, head_width)
        length = q1.size(2)
        if length - 1 <= window:
            mixed = F.scaled_dot_product_attention(q1, k1, v1, is_causal=True, scale=scale)
        else:
            mixed = F.scaled_dot_product_attention(q1, k1, v1, attn_mask=band(length, window, q.device), scale=scale)
        pieces.append(mixed.squeeze(0).transpose(0, 1))
    return torch.cat(pieces)


def band(length: int, window: int, device: torch.device) -> Tensor:
    """Which of `length` tokens (columns) each one (rows) sees."""
    place = torch.arange(length, device=device)
    distance = place[:, None] - place[None, :]
    return (distance >= 0) & (distance <= window)


def mean_visible(lengths: Tensor, window: int) -> float:
    """Keys that a token sees on average, itself included, in documents of these lengths: for counts of operations."""
    n = lengths.double()
    full = window + 1.0
    seen = torch.where(n <= full, n * (n + 1) / 2, full * (full + 1) / 2 + (n - full) * full)
    return float(seen.sum() / n.sum())
