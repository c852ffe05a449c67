"""Cheap truths about the model and the optimizer."""

import math

import pytest
import torch

from speedrun_trainer.model import GPT, ModelConfig, rotary_table, rotate
from speedrun_trainer.optim import Adam

CONFIG = ModelConfig(vocabulary=16, sequence_length=32)


@pytest.fixture
def trained() -> GPT:
    """A model whose output matrices are no longer zero."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch(positions: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(16, (4, positions + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def test_first_loss_knows_nothing() -> None:
    loss = GPT(CONFIG)(*batch())
    assert loss.item() == pytest.approx(4 * 32 * math.log(16), rel=1e-6)


def test_no_position_sees_what_follows(trained: GPT) -> None:
    tokens, targets = batch()
    first_ten = targets.clone()
    first_ten[:, 10:] = -100  # not scored
    assert trained(tokens, first_ten).item() == pytest.approx(trained(tokens[:, :10], targets[:, :10]).item(), rel=1e-5)


def test_order_of_earlier_tokens_matters(trained: GPT) -> None:
    tokens, targets = batch()
    last = targets.clone()
    last[:, :-1] = -100
    swapped = tokens.clone()
    swapped[:, [3, 20]] = tokens[:, [20, 3]]
    assert abs(trained(tokens, last).item() - trained(swapped, last).item()) > 1e-4


def test_rotation_depends_on_the_distance_only() -> None:
    cos, sin = rotary_table(CONFIG)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, CONFIG.head_width)
    q, k = (rotate(x.expand(1, 1, 32, -1), cos, sin)[0, 0] for x in (q, k))
    products = q @ k.T
    for distance in range(-31, 32):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-4)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_agrees_with_torch(weight_decay: float) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    reference = torch.optim.AdamW(theirs, betas=(0.9, 0.95), eps=1e-10, weight_decay=weight_decay)
    adam = Adam(ours, weight_decay=weight_decay)
    for rate in (0.01, 0.02, 0.0, 0.005):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        reference.param_groups[0]["lr"] = rate
        reference.step()
        adam.step(rate)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
