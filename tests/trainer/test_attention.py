"""Attention a document at a time, against one dense mask over everything in float64; GPU kernels are in test_gpu.py."""

import math
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_trainer.attention import NoKernel, band, choose, mean_visible, sdpa

CPU = torch.device("cpu")


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], window: int, scale: float
) -> torch.Tensor:
    """softmax(q k^T) v in float64 with the mask written out."""
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(len(document))
    distance = place[:, None] - place[None, :]
    seen = (document[:, None] == document[None, :]) & (distance >= 0) & (distance <= window)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * scale
    weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v.double())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 25), st.integers(0, 3))
def test_sdpa_sees_its_document_and_its_window_only(lengths: list[int], window: int, empty: int) -> None:
    generator = torch.Generator().manual_seed(sum(lengths))
    q, k, v, gradient = (torch.randn(sum(lengths), 2, 8, generator=generator) for _ in range(4))
    boundaries = torch.tensor(
        [0, *torch.tensor(lengths).cumsum(0).tolist(), *[sum(lengths)] * empty], dtype=torch.int32
    )
    results = []
    for function in (
        lambda q, k, v: dense(q, k, v, lengths, window, 0.3),
        lambda q, k, v: sdpa(q, k, v, boundaries, max(lengths), window, 0.3),
    ):
        leaves = [part.clone().requires_grad_() for part in (q, k, v)]
        out = function(*leaves)
        out.backward(gradient.to(out.dtype))
        results.append([out.detach().float(), *(leaf.grad for leaf in leaves)])
    for wanted, got in zip(*results, strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 40))
def test_visible_keys_are_counted(lengths: list[int], window: int) -> None:
    counted = sum(int(band(length, window, CPU).sum()) for length in lengths) / sum(lengths)
    assert mean_visible(torch.tensor(lengths), window) == pytest.approx(counted)


def test_a_cpu_has_one_kernel() -> None:
    assert choose(CPU).name == "sdpa" and choose(CPU).why == "on a CPU"
    for wanted in ("varlen", "flash-attn-4"):
        with pytest.raises(NoKernel, match=f"--attention {wanted} needs a GPU; on a CPU there is sdpa"):
            choose(CPU, wanted)


def test_an_old_gpu_is_told_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Tesla T4")
    with pytest.raises(NoKernel, match=r"Tesla T4 \(compute capability 7\.5\) has no FlashAttention kernel"):
        choose(torch.device("cuda", 0))


BROKEN = [
    (
        "__init__.py",
        "raise ImportError('undefined symbol: _ZN3c10')",
        "package flash_attn cannot be imported: undefined",
    ),
    (
        "cute/interface.py",
        "raise AttributeError('no cutlass.base_dsl')",
        "flash-attn-4 is installed but .*: no cutlass",
    ),
]


@pytest.mark.parametrize(("file", "content", "why"), BROKEN, ids=["flash-attn 2", "flash-attn-4"])
def test_a_broken_package_leaves_the_other_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str, why: str
) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    for name in ("__init__.py", "cute/__init__.py", "cute/interface.py"):
        (tmp_path / "flash_attn" / name).write_text(content if name == file else "")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    gpu = torch.device("cuda", 0)
    try:
        kernel = choose(gpu)
        assert kernel.name == "varlen" and re.search(why, kernel.why)
        assert choose(gpu, "varlen").why == "as asked for"
        with pytest.raises(NoKernel, match=f"--attention flash-attn-4: .*{why}"):
            choose(gpu, "flash-attn-4")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
            del sys.modules[name]
