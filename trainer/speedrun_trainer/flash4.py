"""FlashAttention 4 (the package flash-attn-4) as an operator that torch.compile passes through.

The package's own autograd function cannot be traced, so its two kernels are wrapped here. Imported only where
attention.py chose it: importing the package takes seconds.
"""

import torch
from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd  # type: ignore[import-not-found]
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, boundaries: Tensor, longest: int, window: int, scale: float) -> Tensor:
    """See attention.py; bfloat16 or float16."""
    out: Tensor = forward(q, k, v, boundaries, longest, window, scale)[0]
    return out


@torch.library.custom_op("speedrun_trainer::flash4_forward", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, boundaries: Tensor, longest: int, window: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention, and the logarithm of each query's sum of exponentials (heads, tokens)."""
    out, lse, *_ = _flash_attn_fwd(
        q.detach(),
        k.detach(),
        v.detach(),
        cu_seqlens_q=boundaries,
        cu_seqlens_k=boundaries,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        softmax_scale=scale,
        causal=False,  # the window says it: nothing to the right
        window_size_left=window,
        window_size_right=0,
        return_lse=True,
    )
    return out, lse


@forward.register_fake
def _(q, k, v, boundaries, longest, window, scale):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), q.new_empty((q.size(1), q.size(0)), dtype=torch.float32)


@torch.library.custom_op("speedrun_trainer::flash4_backward", mutates_args=())
def backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    boundaries: Tensor,
    longest: int,
    window: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv, *_ = _flash_attn_bwd(
        q,
        k,
        v,
        out,
        gradient,
        lse,
        softmax_scale=scale,
        causal=False,
        window_size_left=window,
        window_size_right=0,
        cu_seqlens_q=boundaries,
        cu_seqlens_k=boundaries,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return dq, dk, dv


@backward.register_fake
def _(gradient, q, k, v, out, lse, boundaries, longest, window, scale):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, boundaries, ctx.longest, ctx.window, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, boundaries)


def _gradients(ctx, gradient, _lse):  # type: ignore[no-untyped-def]
    q, k, v, out, lse, boundaries = ctx.saved_tensors
    dq, dk, dv = backward(gradient.contiguous(), q, k, v, out, lse, boundaries, ctx.longest, ctx.window, ctx.scale)
    return dq, dk, dv, None, None, None, None


forward.register_autograd(_gradients, setup_context=_save)
