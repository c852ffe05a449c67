"""What an optimizer does to one tensor: Adam for tables and scalars, Muon or NorMuon for matrices. Pure arithmetic.

- Adam: Kingma & Ba 2014, https://arxiv.org/abs/1412.6980, with decoupled weight decay (Loshchilov & Hutter 2017)
- Muon: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/: the momentum of each matrix, orthogonalized
- Polar Express, the iteration that orthogonalizes: Amsel et al. 2025, https://arxiv.org/abs/2505.16932; coefficients
  and safety factor as in modded-nanogpt since September 2025
- NorMuon: Li et al. 2025, https://arxiv.org/abs/2510.05491: rows of the result scaled by what they used to be

The functions change their arguments in place. Numbers that change from step to step come as tensors without dimensions,
so that a compiled version of a function is compiled once. Which process updates what is sharding.py's. torch.optim is
left alone: its first use loads the compiler, 1.5 s and 115 MB that a short run on a CPU gets nothing for.
"""

import torch
from torch import Tensor

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
SAFETY = 1.02  # the spectral norm is at most this part of the Frobenius norm, whatever the rounding does
EPSILON = 1e-10


def adam(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    rate: Tensor,
    step: Tensor,  # counted from 1
    betas: tuple[float, float],
    weight_decay: float,
) -> None:
    first, second = betas
    mean.lerp_(gradient, 1 - first)
    square.lerp_(gradient.square(), 1 - second)
    scale = (square / (1 - second**step)).sqrt() + EPSILON
    parameter.mul_(1 - rate * weight_decay)
    parameter.sub_(mean / scale * (rate / (1 - first**step)))


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest matrices with orthonormal rows or columns, roughly; (..., rows, columns), computed in `dtype`.

    A singular value of at least 1/300 of the matrix's Frobenius norm ends within 0.15 of 1; smaller ones end lower.
    """
    x = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) * SAFETY + 1e-6)
    tall = x.size(-2) > x.size(-1)
    x = (x.mT if tall else x).to(dtype)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Tensor = x.mT if tall else x
    return result


def muon(
    parameter: Tensor,  # (matrices, rows, columns)
    gradient: Tensor,
    momentum: Tensor,
    square: Tensor | None,  # (matrices, rows, 1) for NorMuon, None for Muon
    rate: Tensor,
    decay: Tensor,  # of the momentum
    weight_decay: float,
    dtype: torch.dtype,
    second: float = 0.95,
) -> None:
    momentum.add_((gradient - momentum) * (1 - decay))
    ahead = gradient + (momentum - gradient) * decay  # Nesterov
    update = orthogonalize(ahead, dtype).to(parameter.dtype)
    if square is not None:
        update = normalize_rows(update, square, second)
    rows, columns = parameter.shape[-2:]
    parameter.mul_(1 - rate * weight_decay)
    parameter.sub_(update * (rate * max(1.0, rows / columns) ** 0.5))


def normalize_rows(update: Tensor, square: Tensor, second: float) -> Tensor:
    """NorMuon: each row divided by the root of its mean square over past steps; each matrix keeps its norm."""
    square.lerp_(update.square().mean(dim=-1, keepdim=True), 1 - second)
    scaled = update / (square.sqrt() + EPSILON)
    norm = torch.linalg.matrix_norm(update, keepdim=True)
    kept: Tensor = scaled * (norm / (torch.linalg.matrix_norm(scaled, keepdim=True) + EPSILON))
    return kept
