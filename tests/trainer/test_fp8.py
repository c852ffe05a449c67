"""The FP8 head against float32 and its own formula, as a CPU emulates it; test_gpu.py holds a GPU to the emulation."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import Processes
from speedrun_trainer import fp8
from speedrun_trainer.data import UNITS
from speedrun_trainer.launch import CannotRun
from speedrun_trainer.model import GPT, norm
from speedrun_trainer.presets import PRESETS
from speedrun_trainer.schedule import Stage

WIDTH, ROWS, TOKENS, BATCH = 64, 96, 48, 1024
ROUNDING = {fp8.E4M3: 2.0**-4, fp8.E5M2: 2.0**-3}  # half of the last digit, relative
SMALLEST = {fp8.E4M3: 2.0**-6, fp8.E5M2: 2.0**-14}  # with all digits
TURN = """
import torch
from speedrun_trainer.turning import SIDE, turn
for rows, columns in ((SIDE, 2 * SIDE), (48, 3 * SIDE + 16), (1, 100)):
    matrix = torch.randint(256, (rows, columns), dtype=torch.uint8).view(torch.float8_e5m2)
    turned = turn(matrix)
    assert turned.shape == (columns, rows) and turned.is_contiguous() and turned.dtype == matrix.dtype
    assert torch.equal(turned.view(torch.uint8), matrix.view(torch.uint8).t()), (rows, columns)
"""
FORMATS = pytest.mark.parametrize("dtype", ROUNDING)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Normalized activations, weights, and gradients of a mean loss over BATCH tokens."""
    generator = torch.Generator().manual_seed(0)
    x = norm(torch.randn(TOKENS, WIDTH, generator=generator)).requires_grad_()
    weight = (0.2 * torch.randn(ROWS, WIDTH, generator=generator)).requires_grad_()
    chances = torch.randn(TOKENS, ROWS, generator=generator).mul(3).softmax(-1)
    return x, weight, chances / BATCH


def stages_of(*units: int) -> list[Stage]:
    return [Stage(1, batch_tokens=UNITS * unit, longest=128, short_window=16, long_window=64) for unit in units]


@FORMATS
def test_rounding_is_within_half_a_digit(dtype: torch.dtype) -> None:
    exponents = torch.linspace(math.log2(SMALLEST[dtype]), math.log2(torch.finfo(dtype).max), 10_001)
    exact = torch.exp2(exponents).clamp(max=torch.finfo(dtype).max) / 4
    rounded = fp8.quantized(exact, 4.0, dtype).float() / 4
    assert ((rounded - exact).abs() / exact).max() <= ROUNDING[dtype]
    assert (fp8.quantized(exact / 64, 4.0, dtype).float() / 4 - exact / 64).abs().max() <= (exact / 64).max()


@FORMATS
def test_numbers_beyond_the_largest_are_cut_and_nan_is_kept(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    exact = torch.tensor([largest, 1.04 * largest, 2 * largest, -3 * largest, math.inf, -math.inf, math.nan, 0.0])
    wanted = torch.tensor([largest, largest, largest, -largest, largest, -largest, math.nan, 0.0])
    assert torch.equal(fp8.quantized(exact, 1.0, dtype).float().nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_scales_use_the_formats_and_do_not_leave_them() -> None:
    assert (fp8.activation_scale(768), fp8.activation_scale(64)) == (16.0, 32.0)
    for width in (64, 768, 1024, 4096):
        assert 224 < fp8.activation_scale(width) * math.sqrt(width) <= 448
    for name, preset in PRESETS.items():
        scale = preset.with_fp8_head().model.fp8_gradient_scale
        assert scale is not None
        largest = [scale / stage.batch_tokens for stage in preset.stages]
        assert max(largest) <= 57344 and min(largest) > 57344 / 8, name
    assert PRESETS["gpt2-small"].with_fp8_head().model.fp8_gradient_scale == 2.0**32
    assert PRESETS["gpt2-small"].without("stages").with_fp8_head().model.fp8_gradient_scale == 2.0**34


def test_logits_and_gradients_are_float32s_within_what_rounding_allows() -> None:
    x, weight, gradient = inputs()
    logits = fp8.head(x, weight, fp8.gradient_scale(BATCH))
    logits.backward(gradient)
    assert x.grad is not None and weight.grad is not None
    assert logits.dtype == x.grad.dtype == weight.grad.dtype == torch.float32
    sizes, e4, e5 = (x.detach().abs(), weight.detach().abs(), gradient.abs()), ROUNDING[fp8.E4M3], ROUNDING[fp8.E5M2]
    for got, exact, most, share in (
        (logits, x @ weight.t(), sizes[0] @ sizes[1].t(), (1 + e4) * (1 + e4) - 1),
        (x.grad, gradient @ weight, sizes[2] @ sizes[1], (1 + e4) * (1 + e5) - 1),
        (weight.grad, gradient.t() @ x, sizes[2].t() @ sizes[0], (1 + e4) * (1 + e5) - 1),
    ):
        error = (got - exact).detach()
        assert (error.abs() <= share * most + 1e-4 * most.mean()).all()  # the worst that rounding all one way can do
        assert 1e-3 < error.norm() / exact.norm() < share / 2  # and the usual, which is not nothing


def test_logits_and_gradients_follow_the_formula() -> None:
    """Products in float64 of the rounded factors, whose scales are powers of two."""
    x, weight, gradient = inputs()
    scales = fp8.activation_scale(WIDTH), fp8.WEIGHT_SCALE, fp8.gradient_scale(BATCH)
    logits = fp8.head(x, weight, scales[2])
    logits.backward(gradient)
    formats = (fp8.E4M3, fp8.E4M3, fp8.E5M2)
    x8, w8, g8 = (
        (part.detach() * scale).to(dtype).double() / scale
        for part, scale, dtype in zip((x, weight, gradient), scales, formats, strict=True)
    )
    for got, wanted in ((logits, x8 @ w8.t()), (x.grad, g8 @ w8), (weight.grad, g8.t() @ x8)):
        assert got is not None
        assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_the_compiler_passes_through() -> None:
    """One graph forward and one backward, with the same numbers."""

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return fp8.head(norm(x), weight, fp8.gradient_scale(BATCH)).float().logsumexp(-1).sum() / BATCH

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")):
        x, weight, _ = inputs()
        value = function(x, weight)
        value.backward()
        results.append((value.detach(), x.grad, weight.grad))
    for eager, compiled in zip(*results, strict=True):
        assert torch.equal(eager, compiled)


def test_the_operators_describe_themselves() -> None:
    """Shape, type and strides, as the compiler is told them, are those of what it gives."""
    x, weight, _ = inputs()
    a, b = (fp8.quantized(part.detach(), 1.0, fp8.E4M3) for part in (x, weight))
    torch.library.opcheck(fp8.product, (a, b, 0.5, torch.bfloat16, True), test_utils="test_faketensor")
    torch.library.opcheck(fp8.turned, (a,), test_utils="test_faketensor")


def test_matrices_are_turned(processes: Processes) -> None:
    """The GPU's kernel, as Triton interprets it on a CPU: whole tiles and parts of tiles."""
    pytest.importorskip("triton", reason="comes with a torch for GPUs")
    code, _, err = processes.run(["env", "TRITON_INTERPRET=1", sys.executable, "-c", TURN])
    assert code == 0, err


def test_only_training_is_in_fp8() -> None:
    """Validation gives the very number that the same weights give without FP8; training another one, close to it."""
    tokens = torch.arange(33, dtype=torch.int32) * 7 % 16
    boundaries = torch.tensor([0, 32], dtype=torch.int32)
    batch = (tokens[:-1], tokens[1:], torch.arange(32, dtype=torch.int32), boundaries, 32, (16, 32))
    config = replace(PRESETS["smoke"].model, positions=32)
    torch.manual_seed(0)
    plain = GPT(config)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    with_fp8 = GPT(replace(config, fp8_gradient_scale=fp8.gradient_scale(32)))
    with_fp8.load_state_dict(plain.state_dict())
    with torch.no_grad():
        assert torch.equal(plain(*batch), with_fp8(*batch))
    losses = []
    for model in (plain, with_fp8):
        loss = model(*batch) / 32
        loss.backward()
        losses.append(float(loss.detach()))
    assert 0 < abs(losses[0] - losses[1]) < 0.02 * losses[0]
    for (name, one), (_, other) in zip(plain.named_parameters(), with_fp8.named_parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert (one.grad - other.grad).norm() < 0.1 * one.grad.norm(), name


@pytest.mark.parametrize(
    ("width", "rows", "unit", "message"),
    [
        (64, 257, 128, "--fp8 head: its products take multiples of 16, and there are 257 rows of the vocabulary; "),
        (60, 256, 128, "and there are 60 channels; leave it out"),
        (64, 256, 24, "and there are 24 tokens a unit; leave it out"),
    ],
)
def test_shapes_that_do_not_fit_are_told(width: int, rows: int, unit: int, message: str) -> None:
    with pytest.raises(CannotRun, match=message):
        fp8.require(torch.device("cpu"), 2.0**25, width, rows, stages_of(128, unit), validation=torch.float32)


def test_a_gpu_without_fp8_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two questions that torch answers about a GPU are answered here as an A100 and an L40 answer them."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    gpu = torch.device("cuda", 0)
    with pytest.raises(CannotRun, match=r"head: NVIDIA A100-SXM4-80GB \(compute capability 8.0\) has no FP8"):
        fp8.require(gpu, 2.0**32, 768, 50304, stages_of(16384), validation=torch.bfloat16)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 9))
    line = fp8.require(gpu, 2.0**32, 768, 50304, stages_of(16384), validation=torch.bfloat16)
    assert line.startswith("FP8 head by scaled_mm (e4m3: activations x 2^4, weights x 2^6; e5m2: gradients x 2^32; ")
