from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from velogan.kernels import native
from velogan.kernels.native import load_kernels
from velogan.kernels.norms import NormKernels

LAST = torch.channels_last


def _plain(x: Tensor, residual: Tensor | None, *, slope: float, pad: int, norm: bool = True) -> Tensor:
    """What the kernels stand for, in torch's operations."""
    out = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True, correction=0) + 1e-5).sqrt() if norm else x
    out = F.leaky_relu(out, slope) if residual is None else out + residual
    return F.pad(out, (pad,) * 4, mode="reflect") if pad else out


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _results(norm: Callable[..., Tensor], inputs: list[Tensor], *, dtype: torch.dtype) -> list[Tensor]:
    """What `norm` gives, and the gradients of its inputs under a random gradient of `dtype`."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    out = norm(*leaves)
    out.backward(_random(*out.shape, seed=9).to(dtype).to(out.dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _both(
    kernels: NormKernels, x: Tensor, inner: Tensor | None, *, slope: float, pad: int, rpad: int, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Results of the kernels in `dtype`, and of torch's operations in float64 on the same numbers."""
    inputs = [value.to(dtype) for value in (x, inner) if value is not None]
    padded = [inputs[0], *(F.pad(value, (rpad,) * 4, value=float("nan")) for value in inputs[1:])]
    padded = [value.contiguous(memory_format=LAST) for value in padded]

    def native(x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is not None and rpad:
            residual = residual[:, :, rpad:-rpad, rpad:-rpad]
        return kernels.norm(x, residual=residual, slope=slope, pad=pad)[0]

    def plain(x: Tensor, residual: Tensor | None = None) -> Tensor:
        return _plain(x, residual, slope=slope, pad=pad)

    seen = _results(native, padded, dtype=dtype)
    wanted = _results(plain, [value.double() for value in inputs], dtype=dtype)
    if inner is not None and rpad:
        inside = seen[2][:, :, rpad:-rpad, rpad:-rpad]
        assert seen[2].count_nonzero() == inside.count_nonzero()  # padding that is not read has no gradient
        seen[2] = inside
    return seen, wanted


SHAPES = [(1, 4, 8, 8), (2, 3, 5, 7), (1, 1, 4, 9), (3, 17, 9, 4), (2, 5, 33, 4), (1, 2, 1, 6), (1, 8, 7, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slope", [1.0, 0.0, 0.2])
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_float32_equals_plain_operations(shape: tuple[int, ...], slope: float, pad: int, kernels: NormKernels):
    if pad >= min(shape[2:]):
        pad = 0  # reflection needs more pixels than that
    for seen, wanted in zip(*_both(kernels, _random(*shape), None, slope=slope, pad=pad, rpad=0, dtype=torch.float32)):
        torch.testing.assert_close(seen.double(), wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("rpad", [0, 1, 3])
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_residual_is_added_inside_its_padding(rpad: int, pad: int, dtype: torch.dtype, kernels: NormKernels):
    x, inner = _random(2, 5, 6, 7), _random(2, 5, 6, 7, seed=1)
    tolerance = 2e-5 if dtype is torch.float32 else 0.02
    for seen, wanted in zip(*_both(kernels, x, inner, slope=1.0, pad=pad, rpad=rpad, dtype=dtype)):
        torch.testing.assert_close(seen.double(), wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(2, 20), st.integers(2, 20)),
    slope=st.sampled_from([0.0, 0.2, 1.0]),
    pad=st.integers(0, 4),
    residual=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    shape: tuple[int, ...], slope: float, pad: int, residual: bool, half: bool, seed: int, kernels: NormKernels
):
    pad = min(pad, min(shape[2:]) - 1)
    x = 3 + 2 * _random(*shape, seed=seed)
    inner, slope = (_random(*shape, seed=seed + 1), 1.0) if residual else (None, slope)
    dtype, tolerance = (torch.bfloat16, 0.04) if half else (torch.float32, 1e-3)
    for seen, wanted in zip(*_both(kernels, x, inner, slope=slope, pad=pad, rpad=pad, dtype=dtype)):
        assert seen.shape == wanted.shape
        torch.testing.assert_close(seen.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_do_not_depend_on_threads(dtype: torch.dtype, kernels: NormKernels):
    x, residual = _random(3, 6, 37, 11).to(dtype), _random(3, 6, 37, 11, seed=1).to(dtype)
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        leaves = [value.contiguous(memory_format=LAST).requires_grad_() for value in (x, residual)]
        out, _ = kernels.norm(leaves[0], residual=leaves[1], pad=2)
        out.backward(_random(*out.shape).to(dtype))
        results.append([out, *(leaf.grad for leaf in leaves)])
    for result in results[1:]:
        assert all(torch.equal(mine, first) for mine, first in zip(result, results[0]))


@pytest.mark.parametrize("pad", [0, 2])
def test_a_result_used_twice_gets_the_sum_of_both_gradients(pad: int, kernels: NormKernels):
    x = _random(2, 4, 7, 6)
    first, second = _random(2, 4, 7 + 2 * pad, 6 + 2 * pad, seed=1), _random(2, 4, 7, 6, seed=2)
    leaf = x.contiguous(memory_format=LAST).requires_grad_()
    out, inner = kernels.norm(leaf, slope=0.2, pad=pad)
    assert torch.equal(inner, out[:, :, pad : pad + 7, pad : pad + 6])
    (seen,) = torch.autograd.grad((out * first).sum() + (inner * second).sum(), leaf)
    exact = x.double().requires_grad_()
    padded, plain = (_plain(exact, None, slope=0.2, pad=p) for p in (pad, 0))
    (wanted,) = torch.autograd.grad((padded * first).sum() + (plain * second).sum(), exact)
    torch.testing.assert_close(seen.double(), wanted, rtol=1e-4, atol=2e-5)
    (alone,) = torch.autograd.grad((kernels.norm(leaf, slope=0.2, pad=pad)[1] * second).sum(), leaf)
    (wanted,) = torch.autograd.grad((_plain(exact, None, slope=0.2, pad=0) * second).sum(), exact)
    torch.testing.assert_close(alone.double(), wanted, rtol=1e-4, atol=2e-5)


def test_statistics_stay_exact_far_from_zero(kernels: NormKernels):
    x = (1000 + 0.1 * _random(1, 3, 40, 40)).contiguous(memory_format=LAST)
    exact = _plain(x.double(), None, slope=1.0, pad=0)
    torch.testing.assert_close(kernels.norm(x)[0].double(), exact, rtol=1e-4, atol=2e-3)


def test_a_flat_image_is_finite(kernels: NormKernels):
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.full((1, 3, 6, 6), 0.3, dtype=dtype).contiguous(memory_format=LAST).requires_grad_()
        out, _ = kernels.norm(x, slope=0.0, pad=1)
        out.sum().backward()
        assert torch.equal(out, torch.zeros_like(out))
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_other_layouts_are_taken_too(kernels: NormKernels):
    x = _random(2, 3, 6, 6)
    expected, _ = kernels.norm(x.contiguous(memory_format=LAST), pad=1)
    assert torch.equal(kernels.norm(x, pad=1)[0], expected)
    strided = _random(2, 3, 12, 6)[:, :, ::2]
    torch.testing.assert_close(kernels.norm(strided)[0], _plain(strided, None, slope=1.0, pad=0))


def test_without_a_compiler_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert load_kernels(tmp_path) is None
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert load_kernels(tmp_path) is None
    monkeypatch.setenv("CXX", "false")  # a compiler that fails
    assert load_kernels(tmp_path) is None
    assert not list(tmp_path.rglob("*.so"))


def test_they_are_built_once(tmp_path: Path, kernels: NormKernels, monkeypatch: pytest.MonkeyPatch):
    assert load_kernels(tmp_path) is not None
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("built again"))
    assert load_kernels(tmp_path) is not None
    assert len(list(tmp_path.iterdir())) == 1


def test_bf16_is_the_float32_result_rounded_to_nearest_even(kernels: NormKernels):
    x = _random(1, 64, 128, 128).bfloat16().contiguous(memory_format=LAST)  # a million values hold a few ties
    assert torch.equal(kernels.norm(x)[0], kernels.norm(x.float())[0].bfloat16())


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(2, 20), st.integers(2, 20)),
    slope=st.sampled_from([0.0, 0.2, 1.0]),
    pad=st.integers(0, 4),
    residual=st.booleans(),
    half=st.booleans(),
    threads=st.sampled_from([1, 2, 3]),
)
def test_without_a_norm_results_are_those_of_plain_operations_and_of_both_uses(
    shape: tuple[int, ...], slope: float, pad: int, residual: bool, half: bool, threads: int, kernels: NormKernels
):
    torch.set_num_threads(threads)
    pad, slope = min(pad, min(shape[2:]) - 1), 1.0 if residual else slope
    dtype = torch.bfloat16 if half else torch.float32
    inputs = [_random(*shape, seed=seed).to(dtype) for seed in range(1 + residual)]
    height, width = shape[2:]
    weights = _random(*shape[:2], height + 2 * pad, width + 2 * pad, seed=7), _random(*shape, seed=8)

    def used(act: Callable[..., tuple[Tensor, Tensor]], *inputs: Tensor) -> list[Tensor]:
        leaves = [value.detach().clone().requires_grad_() for value in inputs]
        out, inner = act(*leaves)
        total = (out.double() * weights[0]).sum() + (inner.double() * weights[1]).sum()
        return [out.detach().double(), *(g.double() for g in torch.autograd.grad(total, leaves))]

    def native(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return kernels.plain(x, residual=residual, slope=slope, pad=pad)

    def plain(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out = _plain(x, residual, slope=slope, pad=pad, norm=False)
        return out, out[:, :, pad : pad + height, pad : pad + width]

    rtol, atol = (0.02, 0.06) if half else (1e-5, 1e-5)
    for seen, wanted in zip(used(native, *inputs), used(plain, *(value.double() for value in inputs)), strict=True):
        torch.testing.assert_close(seen, wanted, rtol=rtol, atol=atol)


def test_without_a_norm_only_one_of_two_uses_may_have_a_gradient(kernels: NormKernels):
    x = _random(1, 3, 5, 6)
    for use, pad in ((0, 1), (1, 1), (1, 0)):
        leaf, exact = x.clone().requires_grad_(), x.clone().requires_grad_()
        kernels.plain(leaf, slope=0.2, pad=pad)[use].square().sum().backward()
        _plain(exact, None, slope=0.2, pad=pad if use == 0 else 0, norm=False).square().sum().backward()
        torch.testing.assert_close(leaf.grad, exact.grad)
