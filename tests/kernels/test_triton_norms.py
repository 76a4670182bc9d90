"""Triton's kernels against plain operations: on a GPU, or in Triton's interpreter, which runs them on CPU tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.kernels.norms import NormKernels

LAST = torch.channels_last


@pytest.fixture(scope="module")
def norms(device: torch.device) -> NormKernels:
    return import_module("velogan.kernels.triton_norms").TritonNorms()


def _plain(x: Tensor, residual: Tensor | None, *, slope: float, pad: int, norm: bool) -> tuple[Tensor, Tensor]:
    """What the kernels stand for, in torch's operations: with and without the padding."""
    out = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True, correction=0) + 1e-5).sqrt() if norm else x
    out = F.leaky_relu(out, slope) if residual is None else out + residual
    return F.pad(out, (pad,) * 4, mode="reflect") if pad else out, out


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _results(
    compute: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor], weights: list[Tensor | None]
) -> list[Tensor]:
    """Both results, and the gradients of the inputs under the `weights` of the results that have any."""
    leaves = [value.detach().requires_grad_() for value in inputs]
    given = compute(*leaves)
    used = [(out.double() * weight.to(out.device)).sum() for out, weight in zip(given, weights) if weight is not None]
    grads = torch.autograd.grad(torch.stack(used).sum(), leaves)
    return [value.detach().double().cpu() for value in (*given, *grads)]


CASES: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = [
    ((1, 4, 8, 8), {"slope": 0.0, "pad": 1}),
    ((1, 3, 9, 11), {"slope": 0.0, "pad": 3, "norm": False}),  # before the first convolution
    ((4, 17, 5, 7), {"slope": 0.2, "pad": 0}),
    ((2, 5, 33, 4), {"residual": True, "pad": 1}),
    ((1, 70, 9, 5), {"residual": True, "pad": 0}),  # more channels than a program has, and several chunks
    ((1, 2, 1, 6), {"slope": 0.2, "pad": 0}),
    ((3, 6, 4, 9), {"residual": True, "pad": 2, "norm": False}),
    ((1, 20, 6, 5), {"slope": 0.2, "pad": 0, "norm": False}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "asked"), CASES, ids=str)
def test_they_equal_plain_operations_and_so_do_the_gradients(
    shape: tuple[int, ...], asked: dict[str, Any], dtype: torch.dtype, norms: NormKernels, device: torch.device
):
    asked = {"slope": 1.0, "norm": True, "residual": False} | asked
    pad, slope, norm, residual = (asked[name] for name in ("pad", "slope", "norm", "residual"))
    x = (3 + 2 * _random(*shape)).to(dtype)
    inputs = [x, *([_random(*shape, seed=1).to(dtype)] if residual else [])]
    height, width = shape[2:]
    weights: list[Tensor | None] = [_random(*shape[:2], height + 2 * pad, width + 2 * pad, seed=2).to(dtype), None]
    if pad:  # the result without its padding is used, too
        weights[1] = _random(*shape, seed=3).to(dtype)
    kernel = norms.norm if norm else norms.plain
    seen = _results(
        lambda x, r=None: kernel(x, residual=r, slope=slope, pad=pad),
        [value.to(device).contiguous(memory_format=LAST) for value in inputs],
        weights,
    )
    wanted = _results(
        lambda x, r=None: _plain(x, r, slope=slope, pad=pad, norm=norm), [value.double() for value in inputs], weights
    )
    rtol, atol = (1e-5, 2e-5) if dtype is torch.float32 else (0.02, 0.03)
    for mine, exact in zip(seen, wanted, strict=True):
        torch.testing.assert_close(mine, exact, rtol=rtol, atol=atol)


def test_results_repeat_bit_for_bit_in_the_type_and_layout_of_the_input(norms: NormKernels, device: torch.device):
    x = _random(1, 33, 9, 8).bfloat16().to(device).contiguous(memory_format=LAST).requires_grad_()
    made = []
    for _ in range(2):
        out, _ = norms.norm(x, slope=0.0, pad=1)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), x)
        assert out.dtype == gradient.dtype == torch.bfloat16
        assert out.is_contiguous(memory_format=LAST)
        assert gradient.stride() == x.stride()
        made.append((out, gradient))
    assert all(torch.equal(first, second) for first, second in zip(*made))


def test_statistics_stay_exact_far_from_zero(norms: NormKernels, device: torch.device):
    x = (1000 + 0.1 * _random(1, 3, 40, 40)).to(device).contiguous(memory_format=LAST)
    exact, _ = _plain(x.double(), None, slope=1.0, pad=0, norm=True)
    torch.testing.assert_close(norms.norm(x)[0].double(), exact, rtol=1e-4, atol=2e-3)


def test_a_flat_image_is_finite(norms: NormKernels, device: torch.device):
    x = torch.full((1, 3, 6, 6), 0.3, device=device).contiguous(memory_format=LAST).requires_grad_()
    out, _ = norms.norm(x, slope=0.0, pad=1)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert x.grad is not None
    assert x.grad.isfinite().all()


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from velogan.kernels import triton_norms as room

FLOATS = "mean rstd chunk_means chunk_squares grad_sums product_sums grad_mean product_mean"
TYPES = dict.fromkeys(FLOATS.split(), "*fp32")
NUMBERS = {name: "i32" for name in ("h", "w", "c", "pixels_all", "chunk", "chunks", "residual_image", "residual_row")}
NUMBERS |= {"slope": "fp32", "eps": "fp32"}
FIXED = {"pixels": 16, "channels": 64, "steps": 2, "chunks_block": 256, "pad": 1, "norm": True, "residual": False}
FIXED |= {"has_unpadded": True, "has_out": True}
KERNELS = "_chunk_moments _moments _result _plain_gradient _gradient_sums _gradient_means _gradient"
for name in KERNELS.split():
    kernel = getattr(room, name)
    types = {one: NUMBERS.get(one) or TYPES.get(one, "*bf16") for one in kernel.arg_names}
    fixed = {one: value for one, value in FIXED.items() if one in types}
    if "chunks_block" in fixed:
        fixed["channels"] = room._COMBINED
    source = ASTSource(kernel, types | dict.fromkeys(fixed, "constexpr"), constexprs=fixed)
    print(name, len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]) > 0)
"""


def test_they_compile_for_a_gpu_where_there_is_none(device: torch.device, tmp_path_factory: pytest.TempPathFactory):
    if device.type == "cuda":
        pytest.skip("the other tests compile them")
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env = kept | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("True") == 7
