"""The model: a decoder-only transformer of GPT-2's shape with what the speedrun's records established.

Every idea is a field of ModelConfig that can be switched off (`--without NAME` on the command line), so that what it
is worth can be measured. Where they come from (records are those of modded-nanogpt):

- rotary positions (always on): Su et al. 2021, https://arxiv.org/abs/2104.09864; half of the channels do not turn:
  record of 2024-11-24
- qk_norm, relu_squared (So et al. 2021, https://arxiv.org/abs/2109.08668), zero_init, soft_cap of the logits (Gemma 2,
  https://arxiv.org/abs/2408.00118): records of 2024-10 to 2024-11
- value_embeddings: token tables added to the values of the first and the last layers (Zhou et al. 2024,
  https://arxiv.org/abs/2410.17897): records of 2024-11-14 and 2024-12-08
- skips: the second half of the layers adds the outputs of the first, as in a U-net: record of 2024-11-10
- embedding_shortcut: every layer mixes the token's embedding in again: record of 2024-10-29
- windows: most layers see a short window, some a long one; both grow over the run: record of 2024-11-19
- fp8_gradient_scale (off unless asked for): the head's products are in FP8 while training, see fp8.py: record of
  2025-01-13. Without gradients, in validation, they are in `dtype` as they are without it, as in that record: the
  loss that counts is that of the weights, and compares with runs that train otherwise.

All matrices of a kind lie in one parameter ("bank"), so that they can be updated at once and shared out among processes
along the first dimension. Parameters are float32; the products are in `dtype`.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from speedrun_trainer import fp8
from speedrun_trainer.attention import Kernel, sdpa

IDEAS = (
    "qk_norm",
    "relu_squared",
    "zero_init",
    "soft_cap",
    "value_embeddings",
    "skips",
    "embedding_shortcut",
    "windows",
)
NO_WINDOW = 2**30


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model, and its ideas."""

    vocabulary: int
    positions: int  # tokens of the longest document, in training or validation
    layers: int
    width: int
    heads: int
    mlp_ratio: int = 4
    vocabulary_multiple: int = 1  # the tables are padded to a multiple of it; no token has the added ids
    rotary_base: float = 1024.0
    turning: float = 1.0  # share of the channels that rotary positions turn
    attention_scale: float | None = None  # of queries times keys; 1 / sqrt(head_width) if not given
    long_layers: tuple[int, ...] = ()  # those with the long window
    value_embeddings: int = 0  # tables, for as many first layers and, in the same order, as many last ones
    soft_cap: float | None = None  # the logits stay within +- this
    qk_norm: bool = True
    relu_squared: bool = True  # else GELU
    zero_init: bool = True  # what writes into the residual stream and the output start at zero
    skips: bool = True
    embedding_shortcut: bool = True
    windows: bool = True
    fp8_gradient_scale: float | None = None  # of the head's products, as fp8.gradient_scale gives it; None: no FP8

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def padded_vocabulary(self) -> int:
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def matrix_weights(self) -> int:
        """Weights that every token is multiplied with: without tables that are only looked up in."""
        return self.layers * (4 + 2 * self.mlp_ratio) * self.width**2 + self.padded_vocabulary * self.width

    def without(self, idea: str) -> Self:
        """The same model without one of IDEAS."""
        if idea not in IDEAS:
            raise ValueError(f"no idea is called {idea!r}; there are: {', '.join(IDEAS)}")
        off: dict[str, Any] = {idea: {"soft_cap": None, "value_embeddings": 0}.get(idea, False)}
        return replace(self, **off)

    def value_table(self, layer: int) -> int | None:
        """Which value embedding a layer has."""
        from_end = layer - (self.layers - self.value_embeddings)
        if layer < self.value_embeddings:
            return layer
        return from_end if from_end >= 0 else None


def norm(x: Tensor) -> Tensor:
    """To a root mean square of 1 along the last dimension."""
    return F.rms_norm(x, (x.size(-1),))


def rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (positions, head_width / 2) in float32. Channels that do not turn have angle 0."""
    pairs = config.head_width // 2
    turning = round(pairs * config.turning)
    frequencies = config.rotary_base ** (-torch.arange(turning, dtype=torch.float32) / turning)
    frequencies = torch.cat((frequencies, torch.zeros(pairs - turning)))
    angles = torch.outer(torch.arange(config.positions, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of channels of x (tokens, heads, head_width) by the angle of its token's position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


class GPT(nn.Module):
    """A batch of documents -> summed cross-entropy in nats, a float32 scalar."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, kernel: Kernel | None = None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.attend = kernel.attend if kernel else sdpa
        self.scale = config.attention_scale or config.head_width**-0.5
        d, n, v = config.width, config.layers, config.padded_vocabulary
        self.embedding = nn.Parameter(torch.empty(v, d))
        self.value_embedding = nn.Parameter(torch.empty(config.value_embeddings * v, d))
        self.head = nn.Parameter(torch.empty(v, d))
        self.attention_bank = nn.Parameter(torch.empty(4 * n, d, d))  # a layer's queries, keys, values, output
        self.mlp_bank = nn.Parameter(
            torch.empty(2 * n, config.mlp_ratio * d, d)
        )  # a layer's way up, way down transposed
        self.mixing = nn.Parameter(torch.empty(n, 5))  # a layer's weights of: stream, embedding, skip, values, table
        cos, sin = rotary_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Weights as they are before training, by torch's random numbers."""
        c = self.config
        bound = 0.5 * (3 / c.width) ** 0.5  # half of what would keep the variance; record of 2024-11
        for table in (self.embedding, self.value_embedding):
            table.normal_()
        for bank in (self.attention_bank, self.mlp_bank, self.head):
            bank.uniform_(-bound, bound)
        if c.zero_init:
            self.head.zero_()
            self.attention_bank[3::4].zero_()
            self.mlp_bank[1::2].zero_()
        half = 0.5 if c.value_embeddings else 1.0
        self.mixing.copy_(torch.tensor([1.0, 0.0, 1.0, half, half]))

    def forward(
        self,
        tokens: Tensor,  # (n,) int32
        targets: Tensor,  # (n,) int32
        positions: Tensor,  # (n,) int32
        boundaries: Tensor,  # (documents + 1,) int32
        longest: int,
        windows: tuple[int, int],  # short, long
    ) -> Tensor:
        c = self.config
        cos, sin = (table[positions][:, None, :] for table in (self.cos, self.sin))  # (n, 1, head_width / 2)
        attention_bank, mlp_bank = (bank.to(self.dtype) for bank in (self.attention_bank, self.mlp_bank))
        matrices, mlps = attention_bank.unbind(), mlp_bank.unbind()
        mixing = self.mixing.to(self.dtype)
        x = start = norm(F.embedding(tokens, self.embedding).to(self.dtype))
        skipped: list[Tensor] = []
        for layer in range(c.layers):
            stream, shortcut, skip = mixing[layer, :3].unbind()
            if c.skips and layer >= c.layers - c.layers // 2:
                x = x + skip * skipped.pop()
            if c.embedding_shortcut:
                x = stream * x + shortcut * start
            window = (windows[1] if layer in c.long_layers else windows[0]) if c.windows else NO_WINDOW
            wq, wk, wv, wo = matrices[4 * layer : 4 * layer + 4]
            h = norm(x)
            q, k, v = (F.linear(h, w).view(-1, c.heads, c.head_width) for w in (wq, wk, wv))
            if (table := c.value_table(layer)) is not None:
                values = F.embedding(tokens + table * c.padded_vocabulary, self.value_embedding).to(self.dtype)
                v = mixing[layer, 3] * v + mixing[layer, 4] * values.view_as(v)
            if c.qk_norm:
                q, k = norm(q), norm(k)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            mixed = self.attend(q, k, v, boundaries, longest, min(window, longest), self.scale)
            x = x + F.linear(mixed.reshape_as(x), wo)
            up, down = mlps[2 * layer : 2 * layer + 2]
            h = F.linear(norm(x), up)
            h = h.relu().square() if c.relu_squared else F.gelu(h)
            x = x + h @ down
            if c.skips and layer < c.layers // 2:
                skipped.append(x)
        return self.cross_entropy(norm(x), targets)

    def cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        """The head: summed over the tokens of normalized x (n, width)."""
        c = self.config
        if c.fp8_gradient_scale is not None and torch.is_grad_enabled():
            logits = fp8.head(x, self.head, c.fp8_gradient_scale).float()
        else:
            logits = F.linear(x, self.head.to(self.dtype)).float()
        if c.soft_cap is not None:
            logits = c.soft_cap * torch.tanh(logits / c.soft_cap)
        return F.cross_entropy(logits, targets.long(), reduction="sum")
