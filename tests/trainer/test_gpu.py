"""What only a GPU can show. Marked `gpu`, and left out where there is none."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import Processes
from speedrun_trainer import attention, fp8, optim
from speedrun_trainer.__main__ import main as data_main
from speedrun_trainer.model import GPT, norm
from speedrun_trainer.presets import PRESETS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

TRAIN = [sys.executable, "-m", "speedrun_trainer.train", "--device", "cuda"]


def kernels() -> list[str]:
    if not torch.cuda.is_available():
        return ["varlen"]
    return ["varlen"] if isinstance(attention.flash_attn_4(9), str) else ["varlen", "flash-attn-4"]


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("name", kernels())
@pytest.mark.parametrize("window", [128, 384, 5000])
@pytest.mark.parametrize("compiled", [False, True])
def test_kernel_agrees_with_float32_sdpa(name: str, window: int, compiled: bool) -> None:
    device = torch.device("cuda")
    attend = attention.choose(device, name).attend
    if compiled:
        attend = torch.compile(attend, fullgraph=True, dynamic=False)
    generator = torch.Generator(device).manual_seed(window)
    lengths = [1, 700, 896, 3, 128, 129, 511]
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)
    boundaries = torch.cat((boundaries, boundaries[-1:].expand(5)))  # empty documents, as batches have them
    exact = [torch.randn(sum(lengths), 6, 128, device=device, generator=generator) for _ in range(4)]
    results = []
    for dtype, function in ((torch.float32, attention.sdpa), (torch.bfloat16, attend)):
        q, k, v = (part.to(torch.bfloat16).to(dtype).requires_grad_() for part in exact[:3])
        out = function(q, k, v, boundaries, 896, min(window, 896), 0.12)
        out.backward(exact[3].to(torch.bfloat16).to(dtype))
        results.append([part.float() for part in (out, q.grad, k.grad, v.grad)])
    for wanted, got in zip(*results, strict=True):
        assert (got - wanted).norm() / wanted.norm() < 1e-2


@pytest.mark.parametrize("shape", [(3, 768, 768), (2, 3072, 768)])
def test_orthogonalization_in_bfloat16_agrees_with_float64(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, vh = torch.linalg.svd(matrices.double(), full_matrices=False)
    got = optim.orthogonalize(matrices.cuda(), torch.bfloat16).cpu().double()
    assert ((got - u @ vh).norm() / (u @ vh).norm()).item() < 0.15  # a square one has some tiny singular values


HAS_FP8 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < fp8.ADA, reason="FP8 begins with Ada"
)


@HAS_FP8
@pytest.mark.parametrize(
    ("formats", "result", "fast"),
    [
        ((fp8.E4M3, fp8.E4M3), torch.bfloat16, True),
        ((fp8.E5M2, fp8.E4M3), torch.bfloat16, False),
        ((fp8.E5M2, fp8.E4M3), torch.float32, False),
    ],
)
def test_fp8_product_is_that_of_the_emulation(
    formats: tuple[torch.dtype, torch.dtype], result: torch.dtype, fast: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = [500 * torch.randn(rows, 768, generator=generator) for rows in (512, 1280)]  # some beyond e4m3's 448
    factors = [fp8.quantized(part, 0.5, dtype) for part, dtype in zip(exact, formats, strict=True)]
    on_gpu = [fp8.quantized(part.cuda(), 0.5, dtype) for part, dtype in zip(exact, formats, strict=True)]
    for one, other in zip(factors, on_gpu, strict=True):
        assert torch.equal(one.view(torch.uint8), other.cpu().view(torch.uint8))
    wanted = fp8.product(*factors, 2.0**-12, torch.float32, fast)
    got = fp8.product(*on_gpu, 2.0**-12, result, fast)
    assert got.dtype == result and got.shape == (512, 1280)
    assert (got.cpu().float() - wanted).norm() / wanted.norm() < (1e-2 if result == torch.bfloat16 else 2e-3)


@HAS_FP8
@pytest.mark.parametrize("shape", [(1280, 768), (80, 16), (49_152, 50_304)])  # the last: more than 2**31 numbers
def test_fp8_matrices_are_turned(shape: tuple[int, int]) -> None:
    matrix = torch.randint(256, shape, dtype=torch.uint8, device="cuda")
    turned = fp8.turned(matrix.view(fp8.E5M2)).view(torch.uint8)
    assert turned.is_contiguous() and torch.equal(turned, matrix.t())


@HAS_FP8
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_fp8_head_is_that_of_the_emulation() -> None:
    """Logits and both gradients; on the GPU from bfloat16, as in training."""

    def head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return fp8.head(x, weight, fp8.gradient_scale(512))

    generator = torch.Generator().manual_seed(0)
    x = norm(torch.randn(512, 768, generator=generator)).bfloat16().float()
    weight = 0.2 * torch.randn(1280, 768, generator=generator)
    gradient = (torch.randn(512, 1280, generator=generator).mul(3).softmax(-1) / 512).bfloat16().float()
    results = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        inputs = x.detach().to(device, dtype).requires_grad_(), weight.detach().to(device).requires_grad_()
        function = torch.compile(head, fullgraph=True, dynamic=False) if device == "cuda" else head
        logits = function(*inputs)
        logits.backward(gradient.to(device, dtype))
        results.append([logits, inputs[0].grad, inputs[1].grad])
    assert results[1][0].dtype == torch.bfloat16 and results[1][2].dtype == torch.float32
    for wanted, got in zip(*results, strict=True):
        assert (got.cpu().float() - wanted).norm() / wanted.norm() < 1e-2


@HAS_FP8
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_model_with_fp8_head_is_close_to_the_one_without() -> None:
    small = {"vocabulary": 1000, "positions": 1024, "layers": 2, "width": 256, "heads": 2}
    config = replace(PRESETS["gpt2-small"].model, **small, long_layers=(1,), value_embeddings=1)
    kernel = attention.choose(torch.device("cuda"))
    torch.manual_seed(0)
    plain = GPT(config, kernel, torch.bfloat16)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    with_fp8 = GPT(replace(config, fp8_gradient_scale=fp8.gradient_scale(1024)), kernel, torch.bfloat16)
    with_fp8.load_state_dict(plain.state_dict())
    plain, with_fp8 = plain.cuda(), with_fp8.cuda()
    compiled = torch.compile(with_fp8, fullgraph=True, dynamic=False)
    tokens = torch.randint(1000, (1025,), dtype=torch.int32).cuda()
    positions = torch.arange(1024, dtype=torch.int32, device="cuda")
    boundaries = torch.tensor([0, 1024], dtype=torch.int32, device="cuda")
    batch = tokens[:-1], tokens[1:], positions, boundaries, 1024, (128, 1024)
    losses = []
    for model in (plain, compiled):
        loss = model(*batch) / 1024
        loss.backward()
        losses.append(loss.item())
    assert 0 < abs(losses[0] - losses[1]) < 0.02 * losses[0]
    for (name, one), (_, other) in zip(plain.named_parameters(), with_fp8.named_parameters(), strict=True):
        assert other.grad.isfinite().all(), name
        assert (one.grad - other.grad).norm() < 0.15 * one.grad.norm(), name
    with torch.no_grad():
        assert compiled(*batch).item() / 1024 == pytest.approx(losses[0], rel=1e-3), "validation is in bfloat16"


def losses(path: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_smoke_learns_on_a_gpu(smoke_data: Path, processes: Processes) -> None:
    code, out, err = processes.run([*TRAIN, "--data", str(smoke_data), "--steps", "200"], within=400)
    assert code == 0, err
    assert re.search(r"^Running on NVIDIA .* with world_size 1$", out, flags=re.MULTILINE)
    found = re.findall(r"^step:200/200 val_loss:(\S+) ", out, flags=re.MULTILINE)
    assert float(found[0]) < 2.2


def test_resumed_run_repeats_bit_for_bit(smoke_data: Path, tmp_path: Path, processes: Processes) -> None:
    options = ["--data", str(smoke_data), "--steps", "20", "--val-every", "0", "--deterministic"]
    whole, first, second = (tmp_path / name for name in ("whole.jsonl", "first.jsonl", "second.jsonl"))
    code, _, err = processes.run([*TRAIN, *options, "--metrics", str(whole)], within=400)
    assert code == 0, err
    kept = ["--checkpoint", str(tmp_path / "kept"), "--save-every", "12"]
    assert processes.run([*TRAIN, *options, "--metrics", str(first), *kept], within=400)[0] == 0
    code, out, err = processes.run([*TRAIN, *options, "--metrics", str(second), *kept], within=400)
    assert code == 0 and "Resuming after step 12 " in out, err
    assert losses(first) == losses(whole)
    assert losses(second) == {step: loss for step, loss in losses(whole).items() if step > 12}


def test_too_little_memory_is_told_before_anything_is_compiled(tmp_path: Path, processes: Processes) -> None:
    assert data_main(["data", "make-synthetic", "--data", str(tmp_path / "data"), "--val-tokens", "300000"]) == 0
    options = ["--preset", "gpt2-small", "--data", str(tmp_path / "data"), "--steps", "1", "--val-tokens", "262144"]
    code, out, err = processes.run([*TRAIN, *options, "--micro-tokens", "100000000"])
    assert code == 5, err
    assert re.search(r"GiB free, and a run with --micro-tokens 100000000 takes about \d+\.\d GiB: lower", err)
    assert "Compiling" not in out


def test_more_processes_than_gpus_are_refused(smoke_data: Path, processes: Processes) -> None:
    gpus = torch.cuda.device_count()
    wanted = 8 if gpus < 8 else 16
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc_per_node={wanted}"]
    command = [sys.executable, *launcher, "-m", "speedrun_trainer.train", "--device", "cuda"]
    code, out, err = processes.run([*command, "--data", str(smoke_data)])
    assert code == 1
    assert f"{wanted} processes, but this node shows {gpus} GPUs: --nproc_per_node={gpus}" in err
    assert "step:" not in out
