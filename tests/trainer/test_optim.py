"""Optimizers against float64 and against torch's own; sharing the work out changes no number."""

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from speedrun_trainer import optim
from speedrun_trainer.sharding import Optimizer, Rule


def polar(matrices: Tensor) -> Tensor:
    """The orthogonal factor, by a singular value decomposition in float64."""
    u, _, vh = torch.linalg.svd(matrices.double(), full_matrices=False)
    return u @ vh


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (256, 64), (64, 256), (3, 96, 32)])
def test_orthogonalization_agrees_with_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Singular values from 1 to 1/30, as the momentum of a matrix has them and better than a random one's smallest."""
    generator = torch.Generator().manual_seed(0)
    *many, rows, columns = shape
    u = polar(torch.randn(*many, rows, min(rows, columns), generator=generator))
    vh = polar(torch.randn(*many, min(rows, columns), columns, generator=generator))
    values = torch.logspace(0, -math.log10(30), min(rows, columns), dtype=torch.float64)
    got = optim.orthogonalize(((u * values) @ vh).float(), dtype).double()
    expected = u @ vh
    assert ((got - expected).norm() / expected.norm()).item() < 0.1
    singular = torch.linalg.svdvals(got)
    assert singular.min() > 0.8 and singular.max() < 1.2


def test_polar_express_converges_as_documented() -> None:
    """The polynomials alone, in float64: what becomes of a singular value x after normalization."""
    x = torch.linspace(1 / 300, 1 / optim.SAFETY, 20_000, dtype=torch.float64)
    for a, b, c in optim.POLAR_EXPRESS:
        x = a * x + b * x**3 + c * x**5
    assert (x - 1).abs().max() < 0.15


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e15])
def test_orthogonalization_does_not_depend_on_the_size_of_the_gradient(scale: float) -> None:
    matrix = torch.randn(32, 48, generator=torch.Generator().manual_seed(1))
    got = optim.orthogonalize(matrix * scale, torch.float32)
    wanted = optim.orthogonalize(matrix, torch.float32)
    assert torch.allclose(got, wanted, atol=1e-3)
    assert (optim.orthogonalize(matrix * 0, torch.float32) == 0).all()


def scalars(*numbers: float) -> list[Tensor]:
    return [torch.tensor(number) for number in numbers]


def test_muon_is_nesterov_momentum_orthogonalized() -> None:
    generator = torch.Generator().manual_seed(2)
    start, *gradients = torch.randn(4, 2, 48, 16, generator=generator)
    parameter, momentum = start.clone(), torch.zeros_like(start)
    expected, memory = start.double(), torch.zeros_like(start, dtype=torch.float64)
    for gradient in gradients:
        optim.muon(parameter, gradient, momentum, None, *scalars(0.02, 0.9), 0.1, torch.float32)
        memory = 0.9 * memory + 0.1 * gradient.double()
        step = polar(0.1 * gradient.double() + 0.9 * memory)
        expected = expected * (1 - 0.02 * 0.1) - 0.02 * math.sqrt(48 / 16) * step
    moved = (expected - start.double()).norm()
    assert ((parameter.double() - expected).norm() / moved).item() < 0.1


def test_normuon_evens_out_the_rows_and_keeps_the_norm() -> None:
    update = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(3)) * torch.logspace(-1, 1, 8)[:, None]
    got = optim.normalize_rows(update, torch.zeros(2, 8, 1), 0.95)
    assert torch.allclose(got.norm(dim=(-2, -1)), update.norm(dim=(-2, -1)), rtol=1e-4)
    rows = got.norm(dim=-1)
    assert torch.allclose(rows, rows[:, :1].expand_as(rows), rtol=1e-3)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_agrees_with_torch(weight_decay: float) -> None:
    torch.manual_seed(0)
    ours = torch.randn(5, 3)
    theirs = nn.Parameter(ours.clone())
    reference = torch.optim.AdamW([theirs], betas=(0.9, 0.95), eps=optim.EPSILON, weight_decay=weight_decay)
    mean, square = torch.zeros(5, 3), torch.zeros(5, 3)
    for step, rate in enumerate((0.01, 0.02, 0.0, 0.005), start=1):
        gradient = torch.randn(5, 3)
        theirs.grad = gradient.clone()
        reference.param_groups[0]["lr"] = rate
        reference.step()
        optim.adam(ours, gradient, mean, square, *scalars(rate, step), (0.9, 0.95), weight_decay)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------------------
# Shared out


class Tables(nn.Module):
    """A parameter of each kind: cut evenly by 1, 2 and 4; by 1 and 2 only; too small to cut; without elements."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(64, 32, generator=generator))
        self.bank = nn.Parameter(torch.randn(8, 24, 16, generator=generator))
        self.uneven = nn.Parameter(torch.randn(6, 16, 16, generator=generator))
        self.small = nn.Parameter(torch.randn(4, 5, generator=generator))
        self.empty = nn.Parameter(torch.empty(0, 5))


RULES = {
    "table": Rule("adam", 2.0, weight_decay=0.1),
    "bank": Rule("normuon", 3.0),
    "uneven": Rule("muon", 1.0),
    "small": Rule("adam", 1.0, betas=(0.9, 0.99)),
}


def train(rank: int, world: int, steps: range, model: Tables, optimizer: Optimizer) -> None:
    """Each rank has a part of each gradient; together they are the same for every number of ranks."""
    for step in steps:
        for number, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(100 * step + number)
            parts = torch.randint(-8, 9, (4, *parameter.shape), generator=generator).float() / 8  # sums are exact
            parameter.grad = parts[rank * 4 // world : (rank + 1) * 4 // world].sum(dim=0)
        optimizer.step(rate=0.01, momentum=0.9)


def in_a_process(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        model = Tables()
        optimizer = Optimizer(model, RULES, rank=rank, world=world, dtype=torch.float32, compiled=False)
        train(rank, world, range(3), model, optimizer)
        whole = optimizer.state()
        for part in optimizer.parts:
            assert part.shards in (1, world)
        if rank == 0:
            torch.save({"model": model.state_dict(), "state": whole}, f"{folder}/result.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def alone(steps: range = range(3)) -> tuple[Tables, Optimizer]:
    model = Tables()
    optimizer = Optimizer(model, RULES, rank=0, world=1, dtype=torch.float32, compiled=False)
    train(0, 1, steps, model, optimizer)
    return model, optimizer


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_update_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(in_a_process, args=(world, str(tmp_path)), nprocs=world)
    got = torch.load(tmp_path / "result.pt", weights_only=True)
    model, optimizer = alone()
    for name, parameter in model.named_parameters():
        assert torch.allclose(got["model"][name], parameter, rtol=1e-6, atol=1e-7), name
    for name, value in optimizer.state().items():
        assert torch.allclose(got["state"][name], value, rtol=1e-6, atol=1e-8), name


def test_state_that_is_loaded_goes_on_exactly() -> None:
    expected, _ = alone(range(6))
    model, optimizer = alone()
    fresh = Optimizer(model, RULES, rank=0, world=1, dtype=torch.float32, compiled=False)
    fresh.load(optimizer.state(), steps=3)
    train(0, 1, range(3, 6), model, fresh)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_parameter_without_a_rule_is_an_error() -> None:
    with pytest.raises(KeyError, match="uneven"):
        Optimizer(
            Tables(),
            {k: v for k, v in RULES.items() if k != "uneven"},
            rank=0,
            world=1,
            dtype=torch.float32,
            compiled=False,
        )
