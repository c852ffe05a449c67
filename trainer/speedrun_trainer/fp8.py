"""The head's products in FP8, 8-bit floats: half the bytes of bfloat16, and on Hopper twice its rate.

The head is the largest product of a small model: every token times every row of the vocabulary. Forward, its two
factors are e4m3 (3 bits of mantissa, up to 448); backward, the logits' gradient is e5m2 (2 bits, up to 57344) and the
other factor the forward's e4m3. Sums are in float32. Source: modded-nanogpt's record of 2025-01-13; the formats:
Micikevicius et al. 2022, https://arxiv.org/abs/2209.05433.

Scales are fixed, so that nothing has to be looked at before it is rounded: a factor is multiplied by its scale, cut at
the format's largest number and rounded; the product is divided by both scales. All are powers of two, which cost no
digit. What they multiply, and why they suffice:

- activations, of a root mean square of 1 (norm): none is above sqrt(width), which the scale brings to at most 448
- weights, of the optimizer's own size: WEIGHT_SCALE cuts at 448 / 64 = 7, and keeps all bits of mantissa from 2**-12 on
- gradients of the mean loss, by logit: none is above 1 / batch_tokens, which the scale brings to at most 57344

Gradients take rounding and cutting for the identity. `nan` stays `nan`, so that a run that diverges is found.
"""

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from speedrun_trainer import logline
from speedrun_trainer.launch import CannotRun
from speedrun_trainer.schedule import Stage

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WEIGHT_SCALE = 2.0**6  # records have 2**4.2 to 2**9
MULTIPLE = 16  # of all sides of a product: what _scaled_mm takes
ADA = (8, 9)  # the first compute capability with FP8


def activation_scale(width: int) -> float:
    """The largest power of two that takes no number of a normalized vector beyond e4m3."""
    return 2.0 ** math.floor(math.log2(torch.finfo(E4M3).max / math.sqrt(width)))


def gradient_scale(batch_tokens: int) -> float:
    """The largest power of two that takes no logit's gradient of a mean over `batch_tokens` beyond e5m2."""
    return 2.0 ** math.floor(math.log2(torch.finfo(E5M2).max * batch_tokens))


def head(x: Tensor, weight: Tensor, scale_of_gradients: float) -> Tensor:
    """Logits (tokens, rows) in x's dtype, of normalized x (tokens, width) and weight (rows, width)."""
    logits: Tensor = _Head.apply(x, weight, scale_of_gradients)  # type: ignore[no-untyped-call]
    return logits


def quantized(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """x times scale in `dtype`. Without the cut a number beyond its largest would become nan (e4m3) or inf (e5m2)."""
    largest = torch.finfo(dtype).max
    return (x * scale).clamp(-largest, largest).to(dtype)


@torch.library.custom_op("speedrun_trainer::fp8_product", mutates_args=(), device_types="cuda")
def product(a: Tensor, b: Tensor, scale: float, dtype: torch.dtype, fast: bool) -> Tensor:
    """scale x a @ b.T in `dtype`, for a (m, k) and b (n, k), both contiguous: the only layout that Hopper multiplies.

    `fast` leaves out some of what keeps long sums exact to float32. One of a and b is e4m3. An operator of our own, so
    that the compiler passes through and a CPU has it.
    """
    scale_a, scale_b = (torch.full((), value, device=a.device) for value in (scale, 1.0))
    return torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast)


@product.register_kernel("cpu")
def _emulated(a: Tensor, b: Tensor, scale: float, dtype: torch.dtype, fast: bool) -> Tensor:
    return (a.float() @ b.float().t() * scale).to(dtype)


@product.register_fake
def _(a: Tensor, b: Tensor, scale: float, dtype: torch.dtype, fast: bool) -> Tensor:
    return a.new_empty((a.size(0), b.size(0)), dtype=dtype)


@torch.library.custom_op("speedrun_trainer::fp8_turned", mutates_args=(), device_types="cuda")
def turned(matrix: Tensor) -> Tensor:
    """The transpose, contiguous. Left to the compiler it costs more than FP8 saves: bench/results/trainer-h200.md."""
    from speedrun_trainer.turning import turn

    return turn(matrix)


@turned.register_kernel("cpu")
def _turned_on_a_cpu(matrix: Tensor) -> Tensor:
    return matrix.t().contiguous()


@turned.register_fake
def _(matrix: Tensor) -> Tensor:
    return matrix.new_empty((matrix.size(1), matrix.size(0)))


class _Head(torch.autograd.Function):
    """Around the products and not part of their operator, so that rounding is compiled into what comes before it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale_of_gradients: float) -> Tensor:
        scale = activation_scale(x.size(1))
        x8, w8 = quantized(x, scale, E4M3), quantized(weight, WEIGHT_SCALE, E4M3)
        ctx.save_for_backward(x8, w8)
        ctx.scale, ctx.scale_of_gradients, ctx.dtypes = scale, scale_of_gradients, (x.dtype, weight.dtype)
        logits: Tensor = product(x8, w8, 1 / (scale * WEIGHT_SCALE), x.dtype, True)
        return logits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x8, w8 = ctx.saved_tensors
        g8 = quantized(gradient, ctx.scale_of_gradients, E5M2)
        of_x = product(g8, turned(w8), 1 / (ctx.scale_of_gradients * WEIGHT_SCALE), ctx.dtypes[0], False)
        of_weight = product(turned(g8), turned(x8), 1 / (ctx.scale_of_gradients * ctx.scale), ctx.dtypes[1], False)
        return of_x, of_weight, None


def require(
    device: torch.device, gradients: float, width: int, rows: int, stages: Sequence[Stage], *, validation: torch.dtype
) -> str:
    """The log's line about these products; raises CannotRun if `device` or the shapes do not allow them.

    `gradients` is their scale; a stage's tokens go through the model in multiples of its unit.
    """
    sides = {
        "channels": [width],
        "rows of the vocabulary": [rows],
        "tokens a unit": [stage.unit_tokens for stage in stages],
    }
    for what, numbers in sides.items():
        if odd := [number for number in numbers if number % MULTIPLE]:
            raise CannotRun(
                f"--fp8 head: its products take multiples of {MULTIPLE}, and there are {odd[0]} {what}; leave it out"
            )
    how = "emulation on a CPU"
    if device.type == "cuda":
        how = "scaled_mm"
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < ADA:
            raise CannotRun(
                f"--fp8 head: {torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) has no FP8, "
                "which begins with Ada (8.9) and Hopper (9.0); leave it out"
            )
        if importlib.util.find_spec("triton") is None:
            raise CannotRun("--fp8 head: needs Triton, which is not installed here; install triton or leave it out")
    return logline.fp8_head(
        how,
        activations=activation_scale(width),
        weights=WEIGHT_SCALE,
        gradients=gradients,
        validation=str(validation).removeprefix("torch."),
    )
