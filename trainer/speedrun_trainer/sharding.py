"""The optimizer of a run: which tensors are updated how, and by which process.

Each process updates an equal part of every parameter, cut along its first dimension, and keeps the optimizer's state
of that part only (ZeRO, stage 1: Rajbhandari et al. 2019, https://arxiv.org/abs/1910.02054). Gradients come in by
reduce-scatter, updated parameters go out by all-gather. All reductions are started at once and each parameter is
updated as soon as its own is done, so that the exchange of one goes on while another is computed. What cannot be cut
evenly is reduced whole and updated by everybody. Sums are in float32 on any number of processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from speedrun_trainer import optim

SMALLEST = 1024  # elements; a smaller parameter is not worth cutting


@dataclass(frozen=True)
class Rule:
    """How a parameter is updated. `rate` is a multiple of the run's learning rate."""

    kind: Literal["adam", "muon", "normuon"]
    rate: float = 1.0
    betas: tuple[float, float] = (0.8, 0.95)  # Adam's
    weight_decay: float = 0.0


@dataclass
class Part:
    """This process's part of one parameter, and the optimizer's state of it."""

    name: str
    parameter: nn.Parameter
    rule: Rule
    shards: int  # the parameter's parts; 1 if everybody updates all of it
    mine: Tensor  # a view of the parameter
    state: dict[str, Tensor] = field(default_factory=dict)

    def reset(self) -> None:
        names = {"adam": ("mean", "square"), "muon": ("momentum",), "normuon": ("momentum", "square")}[self.rule.kind]
        for name in names:
            rows_only = self.rule.kind == "normuon" and name == "square"
            self.state[name] = torch.zeros_like(self.mine[..., :1] if rows_only else self.mine)


class Optimizer:
    """Updates every parameter of a model that has a rule; parameters without elements need none."""

    def __init__(
        self, model: nn.Module, rules: Mapping[str, Rule], *, rank: int, world: int, dtype: torch.dtype, compiled: bool
    ) -> None:
        """`dtype` is what matrices are orthogonalized in. Raises KeyError if a parameter has no rule."""
        self.rank, self.world, self.dtype = rank, world, dtype
        self.steps = 0
        wrap: Callable[..., Callable[..., None]] = torch.compile if compiled else (lambda function, **_: function)
        self.adam = wrap(optim.adam, dynamic=False, fullgraph=True)
        self.muon = wrap(optim.muon, dynamic=False, fullgraph=True)
        self.parts = []
        for name, parameter in model.named_parameters():
            if parameter.numel():
                even = parameter.size(0) % world == 0 and parameter.numel() >= SMALLEST
                shards = world if even else 1
                rows = parameter.size(0) // shards
                begin = rank * rows if shards > 1 else 0
                self.parts.append(Part(name, parameter, rules[name], shards, parameter.data[begin : begin + rows]))
        self.reset()

    def reset(self) -> None:
        """As if no step had been made; parameters stay as they are."""
        self.steps = 0
        for part in self.parts:
            part.reset()

    @torch.no_grad()
    def step(self, *, rate: float, momentum: float) -> None:
        """Update from the sum of all processes' gradients, and drop the gradients."""
        self.steps += 1
        gradients = [self._reduce(part) for part in self.parts]
        gathers = []
        for part, (gradient, work) in zip(self.parts, gradients, strict=True):
            if work is not None:
                work.wait()
            self._update(part, gradient, rate, momentum)
            part.parameter.grad = None
            if part.shards > 1:
                gathers.append(dist.all_gather_into_tensor(part.parameter.data, part.mine.clone(), async_op=True))
        for work in gathers:
            if work is not None:
                work.wait()

    def _reduce(self, part: Part) -> tuple[Tensor, dist.Work | None]:
        gradient = part.parameter.grad
        if gradient is None:  # nothing that is not left out uses the parameter
            gradient = torch.zeros_like(part.parameter)
        if self.world == 1:
            return gradient, None
        if part.shards == 1:
            return gradient, dist.all_reduce(gradient, async_op=True)
        mine = torch.empty_like(part.mine)
        return mine, dist.reduce_scatter_tensor(mine, gradient.contiguous(), async_op=True)

    def _update(self, part: Part, gradient: Tensor, rate: float, momentum: float) -> None:
        rule, state = part.rule, part.state
        its_rate = torch.tensor(rate * rule.rate)
        if rule.kind == "adam":
            step = torch.tensor(float(self.steps))
            self.adam(
                part.mine, gradient, state["mean"], state["square"], its_rate, step, rule.betas, rule.weight_decay
            )
        else:
            square = state.get("square")
            decay = torch.tensor(momentum)
            self.muon(part.mine, gradient, state["momentum"], square, its_rate, decay, rule.weight_decay, self.dtype)

    # -----------------------------------------------------------------------
    # For checkpoints: whole tensors, so that a run can go on with another number of processes

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        """The whole state by `parameter/name`, on the CPU on rank 0 and empty elsewhere. All processes must call."""
        whole = {}
        for part in self.parts:
            for name, mine in part.state.items():
                full = mine
                if part.shards > 1:
                    full = mine.new_empty((mine.size(0) * part.shards, *mine.shape[1:]))
                    dist.all_gather_into_tensor(full, mine)
                if self.rank == 0:
                    whole[f"{part.name}/{name}"] = full.cpu()
        return whole

    @torch.no_grad()
    def load(self, whole: Mapping[str, Tensor], steps: int) -> None:
        """Take this process's part of what `state` gave."""
        self.steps = steps
        for part in self.parts:
            for name, mine in part.state.items():
                rows = mine.size(0)
                begin = self.rank * rows if part.shards > 1 else 0
                mine.copy_(whole[f"{part.name}/{name}"][begin : begin + rows])
