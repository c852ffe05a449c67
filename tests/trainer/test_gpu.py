"""What only a GPU can show. Marked `gpu`, and left out where there is none."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from conftest import Processes
from speedrun_trainer import attention, optim
from speedrun_trainer.__main__ import main as data_main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

TRAIN = [sys.executable, "-m", "speedrun_trainer.train", "--device", "cuda"]


def kernels() -> list[str]:
    if not torch.cuda.is_available():
        return ["varlen"]
    return ["varlen", "flash-attn-4"] if attention.flash_attn_4_is_missing(9) is None else ["varlen"]


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
