"""The model: a decoder-only transformer with what the speedrun's records agree on, in its plain form.

Rotary positions, RMS norm without weights (also on queries and keys), ReLU² in the MLP, no biases, separate embedding
and output. The output and every matrix that writes into the residual stream start at zero, so that the first loss
is ln(vocabulary).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model. The defaults are the smoke run's: 0.1 million parameters."""

    vocabulary: int
    sequence_length: int  # positions that the rotary table covers
    layers: int = 2
    width: int = 64
    heads: int = 2
    mlp_ratio: int = 4
    rotary_base: float = 1024.0

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


def rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (sequence_length, head_width / 2)."""
    pairs = config.head_width // 2
    frequencies = config.rotary_base ** (-torch.arange(pairs, dtype=torch.float32) / pairs)
    angles = torch.outer(torch.arange(config.sequence_length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of channels of x (batch, heads, positions, head_width) by its position's angle."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, positions, width = x.shape
        heads = self.qkv(x).view(batch, positions, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)  # each (batch, heads, positions, head_width)
        q, k = rotate(norm(q), cos, sin), rotate(norm(k), cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, positions, width))
        return y


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.mlp_ratio * config.width, bias=False)
        self.down = nn.Linear(config.mlp_ratio * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.up(x).relu().square())
        return y


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(norm(x), cos, sin)
        x = x + self.mlp(norm(x))
        return x


class GPT(nn.Module):
    """Token ids (batch, positions) and the ids that follow them -> summed cross-entropy in nats, a scalar."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        cos, sin = rotary_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if name.endswith(("out.weight", "down.weight", "head.weight")):
                nn.init.zeros_(weight)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        cos, sin = self.cos[: tokens.size(1)], self.sin[: tokens.size(1)]
        x = norm(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
