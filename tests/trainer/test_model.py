"""Cheap truths about the model."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from speedrun_trainer.model import GPT, IDEAS, ModelConfig, rotary_table, rotate
from speedrun_trainer.presets import PRESETS

CONFIG = replace(PRESETS["smoke"].model, positions=32)
WINDOWS = (16, 32)


@pytest.fixture
def trained() -> GPT:
    """A model whose output matrices are no longer zero."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def tokens_of(count: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(16, (count + 1,), generator=generator, dtype=torch.int32)
    return tokens[:-1], tokens[1:]


def loss(model: GPT, tokens: Tensor, targets: Tensor, *, starts: tuple[int, ...] = (0,)) -> float:
    """Of documents that start at the given places."""
    boundaries = torch.tensor([*starts, len(tokens)], dtype=torch.int32)
    positions = torch.cat([torch.arange(int(n), dtype=torch.int32) for n in boundaries.diff()])
    return float(model(tokens, targets, positions, boundaries, 32, WINDOWS).detach())


def test_first_loss_knows_nothing() -> None:
    assert loss(GPT(CONFIG), *tokens_of()) == pytest.approx(32 * math.log(16), rel=1e-6)


def test_no_position_sees_what_follows(trained: GPT) -> None:
    tokens, targets = tokens_of()
    first_ten = targets.clone()
    first_ten[10:] = -100  # not scored
    assert loss(trained, tokens, first_ten) == pytest.approx(loss(trained, tokens[:10], targets[:10]), rel=1e-5)


def test_order_of_earlier_tokens_matters(trained: GPT) -> None:
    tokens, targets = tokens_of()
    last = targets.clone()
    last[:-1] = -100
    swapped = tokens.clone()
    swapped[[3, 20]] = tokens[[20, 3]]
    assert abs(loss(trained, tokens, last) - loss(trained, swapped, last)) > 1e-4


def test_documents_do_not_see_each_other(trained: GPT) -> None:
    """Together in a batch they cost what each costs alone."""
    tokens, targets = tokens_of()
    apart = loss(trained, tokens[:12], targets[:12]) + loss(trained, tokens[12:], targets[12:])
    assert loss(trained, tokens, targets, starts=(0, 12)) == pytest.approx(apart, rel=1e-5)
    assert abs(loss(trained, tokens, targets) - apart) > 1e-3


def test_rotation_depends_on_the_distance_only() -> None:
    cos, sin = (table[:, None, :] for table in rotary_table(CONFIG))
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, CONFIG.head_width)
    q, k = (rotate(x.expand(32, 1, -1), cos, sin)[:, 0] for x in (q, k))
    products = q @ k.T
    for distance in range(-31, 32):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4)


def test_half_of_the_channels_do_not_turn() -> None:
    cos, sin = rotary_table(replace(CONFIG, turning=0.5))
    assert (cos[:, 8:] == 1).all() and (sin[:, 8:] == 0).all()
    assert (sin[1:, :8] != 0).all()


def test_first_and_last_layers_have_value_embeddings() -> None:
    config = replace(CONFIG, layers=12, value_embeddings=3)
    assert [config.value_table(layer) for layer in range(12)] == [0, 1, 2, *[None] * 6, 0, 1, 2]


def test_tables_are_padded() -> None:
    config = PRESETS["gpt2-small"].model
    assert (config.vocabulary, config.padded_vocabulary) == (50257, 50304)
    # 12 layers of 12 matrices of 768 x 768, and the head: what GPT-2 small has, and 47 more rows
    assert config.matrix_weights == 12 * 12 * 768**2 + 50304 * 768


@pytest.mark.parametrize("idea", IDEAS)
def test_each_idea_matters(trained: GPT, idea: str) -> None:
    """Left out, the same weights give another loss; what only concerns the start gives another start."""
    torch.manual_seed(0)
    other = GPT(CONFIG.without(idea))
    if idea == "zero_init":
        assert other.head.abs().sum() > 0 and GPT(CONFIG).head.abs().sum() == 0
        return
    own = trained.state_dict()
    other.load_state_dict({name: own[name][: value.size(0)] for name, value in other.state_dict().items()})
    tokens, targets = tokens_of()
    assert abs(loss(trained, tokens, targets) - loss(other, tokens, targets)) > 1e-4


def test_an_unknown_idea_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no idea is called 'magic'; there are: qk_norm, .*"):
        ModelConfig(vocabulary=16, positions=8, layers=1, width=8, heads=1).without("magic")
