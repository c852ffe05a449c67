"""The optimizer: Adam with decoupled weight decay, written out.

torch.optim is left alone because its first use loads the compiler: 1.5 s and 115 MB of memory that a short run on a
CPU gets nothing for.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Adam:
    """Adam over parameters whose `.grad` is filled. The learning rate comes with each step: the schedule owns it."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = list(parameters)
        self.betas, self.epsilon, self.weight_decay = betas, epsilon, weight_decay
        self.steps = 0
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        self.steps += 1
        first, second = self.betas
        bias_first, bias_second = 1 - first**self.steps, 1 - second**self.steps
        for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            gradient = parameter.grad
            assert gradient is not None, "step() before backward()"
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            scale: Tensor = (square / bias_second).sqrt_().add_(self.epsilon)
            parameter.mul_(1 - learning_rate * self.weight_decay)
            parameter.addcdiv_(mean, scale, value=-learning_rate / bias_first)
