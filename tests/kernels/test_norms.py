"""The kernels of norms against plain operations: C++ on CPUs, and Triton on a GPU or in its interpreter."""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from velogan.kernels.norms import NormKernels
from velogan.networks.layers import norm_layer

from .conftest import TRITON_DEVICES

LAST = torch.channels_last
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(scope="module", params=["c++", *TRITON_DEVICES])
def backend(request: pytest.FixtureRequest, kernels: NormKernels) -> tuple[NormKernels, torch.device]:
    """Kernels and the device on which they run."""
    if request.param == "c++":
        return kernels, torch.device("cpu")
    pytest.importorskip("triton", reason="Triton is not installed")
    return import_module("velogan.kernels.triton_norms").TritonNorms(), torch.device(request.param)


def _plain(x: Tensor, residual: Tensor | None = None, *, slope: float, pad: int, norm: bool) -> tuple[Tensor, Tensor]:
    """Return by torch's operations what the kernels compute: with and without the padding."""
    out = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True, correction=0) + 1e-5).sqrt() if norm else x
    out = F.leaky_relu(out, slope) if residual is None else out + residual
    return F.pad(out, (pad,) * 4, mode="reflect") if pad else out, out


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _results(
    compute: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor], weights: list[Tensor | None]
) -> list[Tensor]:
    """Return both results, and the gradients of the inputs; the loss is the sum of results times their `weights`."""
    leaves = [value.detach().requires_grad_() for value in inputs]
    results = compute(*leaves)
    terms = [
        (out.double() * weight.to(out.device)).sum() for out, weight in zip(results, weights) if weight is not None
    ]
    grads = torch.autograd.grad(torch.stack(terms).sum(), leaves)
    return [value.detach().double().cpu() for value in (*results, *grads)]


def _check(
    backend: tuple[NormKernels, torch.device],
    inputs: list[Tensor],
    *,
    slope: float,
    pad: int,
    norm: bool,
    tolerance: tuple[float, float],
    uses: tuple[bool, bool],
) -> None:
    """Compare results and gradients with plain operations in float64; `uses`: which of both results have a gradient."""
    kernels, device = backend
    dtype, (n, c, h, w) = inputs[0].dtype, inputs[0].shape
    weights = [_random(n, c, h + 2 * pad, w + 2 * pad, seed=7).to(dtype), _random(n, c, h, w, seed=8).to(dtype)]
    used = [weight if is_used else None for weight, is_used in zip(weights, uses)]
    kernel = kernels.norm if norm else kernels.epilogue
    actual = _results(
        lambda x, residual=None: kernel(x, residual=residual, slope=slope, pad=pad),
        [value.to(device).contiguous(memory_format=LAST) for value in inputs],
        used,
    )
    expected = _results(
        lambda x, residual=None: _plain(x, residual, slope=slope, pad=pad, norm=norm),
        [value.double() for value in inputs],
        used,
    )
    rtol, atol = tolerance
    for value, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, exact, rtol=rtol, atol=atol)


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


@DTYPES
@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_results_and_gradients_equal_plain_operations(
    shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype, backend: tuple[NormKernels, torch.device]
):
    options = {"slope": 1.0, "norm": True} | options
    inputs = [3 + 2 * _random(*shape), *([_random(*shape, seed=1)] if options.pop("residual", False) else [])]
    tolerance = (1e-5, 2e-5) if dtype is torch.float32 else (0.02, 0.03)
    uses = True, options["pad"] > 0
    _check(backend, [value.to(dtype) for value in inputs], **options, tolerance=tolerance, uses=uses)


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(2, 20), st.integers(2, 20)),
    slope=st.sampled_from([0.0, 0.2, 1.0]),
    pad=st.integers(0, 4),
    norm=st.booleans(),
    residual=st.booleans(),
    bf16=st.booleans(),
    threads=st.sampled_from([1, 2, 3]),
    uses=st.sampled_from([(True, False), (True, True), (False, True)]),
)
def test_any_shape_on_a_cpu(
    shape: tuple[int, ...],
    slope: float,
    pad: int,
    norm: bool,
    residual: bool,
    bf16: bool,
    threads: int,
    uses: tuple[bool, bool],
    kernels: NormKernels,
):
    torch.set_num_threads(threads)
    pad, slope = min(pad, min(shape[2:]) - 1), 1.0 if residual else slope
    x = 3 + 2 * _random(*shape) if norm else _random(*shape)
    inputs = [x, *([_random(*shape, seed=1)] if residual else [])]
    tolerance = {(True, True): 0.04, (True, False): 1e-3, (False, False): 1e-5}.get((norm, bf16))
    _check(
        (kernels, torch.device("cpu")),
        [value.to(torch.bfloat16 if bf16 else torch.float32) for value in inputs],
        slope=slope,
        pad=pad,
        norm=norm,
        tolerance=(tolerance, tolerance) if tolerance else (0.02, 0.06),
        uses=uses,
    )


@DTYPES
def test_adds_a_residual_inside_its_padding(dtype: torch.dtype, kernels: NormKernels):
    residual_pad, pad = 3, 1
    x, residual = (_random(2, 5, 6, 7, seed=seed).to(dtype) for seed in range(2))
    padded = F.pad(residual, (residual_pad,) * 4, value=float("nan")).contiguous(memory_format=LAST)
    inside = slice(residual_pad, residual_pad + 6), slice(residual_pad, residual_pad + 7)
    weights: list[Tensor | None] = [_random(2, 5, 6 + 2 * pad, 7 + 2 * pad, seed=9).to(dtype), None]
    actual = _results(
        lambda x, padded: kernels.norm(x, residual=padded[:, :, *inside], pad=pad),
        [x.contiguous(memory_format=LAST), padded],
        weights,
    )
    expected = _results(
        lambda x, residual: _plain(x, residual, slope=1.0, pad=pad, norm=True),
        [x.double(), residual.double()],
        weights,
    )
    gradient = actual[-1][:, :, *inside]
    assert actual[-1].count_nonzero() == gradient.count_nonzero(), "unread padding has no gradient"
    tolerance = 2e-5 if dtype is torch.float32 else 0.02
    for value, exact in zip([*actual[:-1], gradient], expected, strict=True):
        torch.testing.assert_close(value, exact, rtol=tolerance, atol=tolerance)


@DTYPES
def test_results_do_not_depend_on_threads(dtype: torch.dtype, kernels: NormKernels):
    inputs = [_random(3, 6, 37, 11, seed=seed).to(dtype).contiguous(memory_format=LAST) for seed in range(2)]
    weights: list[Tensor | None] = [_random(3, 6, 41, 15), None]
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results.append(_results(lambda x, y: kernels.norm(x, residual=y, pad=2), inputs, weights))
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(result, results[0]))


def test_results_repeat_bit_for_bit_in_the_type_and_layout_of_the_input(backend: tuple[NormKernels, torch.device]):
    kernels, device = backend
    x = _random(1, 33, 9, 8).bfloat16().to(device).contiguous(memory_format=LAST).requires_grad_()
    results = []
    for _ in range(2):
        out, _ = kernels.norm(x, slope=0.0, pad=1)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), x)
        assert out.dtype == gradient.dtype == torch.bfloat16
        assert out.is_contiguous(memory_format=LAST)
        assert gradient.stride() == x.stride()
        results.append((out, gradient))
    assert all(torch.equal(first, second) for first, second in zip(*results))


def test_statistics_stay_exact_far_from_zero(backend: tuple[NormKernels, torch.device]):
    kernels, device = backend
    x = (1000 + 0.1 * _random(1, 3, 40, 40)).to(device).contiguous(memory_format=LAST)
    exact, _ = _plain(x.double(), slope=1.0, pad=0, norm=True)
    torch.testing.assert_close(kernels.norm(x)[0].double(), exact, rtol=1e-4, atol=2e-3)


@DTYPES
def test_a_flat_image_is_finite(dtype: torch.dtype, backend: tuple[NormKernels, torch.device]):
    kernels, device = backend
    x = torch.full((1, 3, 6, 6), 0.3, device=device, dtype=dtype).contiguous(memory_format=LAST).requires_grad_()
    out, _ = kernels.norm(x, slope=0.0, pad=1)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert x.grad is not None
    assert x.grad.isfinite().all()


FLAT: dict[str, Callable[[], Tensor]] = {
    "zeros": lambda: torch.zeros(2, 3, 12, 10),
    "ones": lambda: torch.ones(2, 3, 12, 10),
    "large": lambda: torch.full((2, 3, 12, 10), 1e4),
    "almost constant": lambda: 0.5 + 1e-7 * torch.rand(2, 3, 12, 10, generator=torch.Generator().manual_seed(0)),
    "almost zero": lambda: 1e-8 * torch.rand(2, 3, 12, 10, generator=torch.Generator().manual_seed(0)),
    "diagonal": lambda: torch.ones(2, 3, 12, 10).index_put_((torch.tensor(0), torch.tensor(1)), torch.eye(12, 10)),
    "one pixel": lambda: torch.ones(2, 3, 120).index_fill_(2, torch.tensor(7), 1.01).view(2, 3, 12, 10),
}


@DTYPES
@pytest.mark.parametrize("layer", ["plain", "native", "native, residual"])
@pytest.mark.parametrize("name", FLAT)
def test_instance_norm_of_large_or_almost_constant_values_is_finite(
    name: str, layer: str, dtype: torch.dtype, kernels: NormKernels
):
    x = FLAT[name]().to(dtype).contiguous(memory_format=LAST).requires_grad_()
    if layer == "plain":
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = norm_layer("instance")(3)(x)
    else:
        residual = torch.ones_like(x) if "residual" in layer else None
        out, _ = kernels.norm(x, residual=residual, slope=0.2, pad=3)
    assert out.isfinite().all()
    assert out.abs().max() <= 120**0.5 + 1  # no pixel of n is further than sqrt(n) deviations from the mean
    torch.manual_seed(0)
    out.backward(torch.randn(out.shape).to(out.dtype))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["zeros", "ones", "large"])
def test_the_norm_of_a_constant_is_zero(name: str, kernels: NormKernels):
    x = FLAT[name]().contiguous(memory_format=LAST)
    assert kernels.norm(x)[0].abs().max() == 0


def test_bf16_is_the_float32_result_rounded_to_nearest_even(kernels: NormKernels):
    x = _random(1, 64, 128, 128).bfloat16().contiguous(memory_format=LAST)  # a million values hold a few ties
    assert torch.equal(kernels.norm(x)[0], kernels.norm(x.float())[0].bfloat16())


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from velogan.kernels import triton_norms

FLOATS = "mean rstd chunk_means chunk_squares grad_sums product_sums grad_mean product_mean"
TYPES = dict.fromkeys(FLOATS.split(), "*fp32")
NUMBERS = {name: "i32" for name in ("h", "w", "c", "pixels_all", "chunk", "chunks", "residual_image", "residual_row")}
NUMBERS |= {"slope": "fp32", "eps": "fp32"}
FIXED = {"pixels": 16, "channels": 64, "steps": 2, "chunks_block": 256, "pad": 1, "norm": True, "residual": False}
FIXED |= {"has_unpadded": True, "has_out": True}
KERNELS = "_chunk_moments _moments _result _plain_gradient _gradient_sums _gradient_means _gradient"
for name in KERNELS.split():
    kernel = getattr(triton_norms, name)
    types = {arg: NUMBERS.get(arg) or TYPES.get(arg, "*bf16") for arg in kernel.arg_names}
    fixed = {arg: value for arg, value in FIXED.items() if arg in types}
    if "chunks_block" in fixed:
        fixed["channels"] = triton_norms._COMBINED
    source = ASTSource(kernel, types | dict.fromkeys(fixed, "constexpr"), constexprs=fixed)
    print(name, len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]) > 0)
"""


def test_triton_kernels_compile_for_a_gpu(device: torch.device, tmp_path_factory: pytest.TempPathFactory):
    if device.type == "cuda":
        pytest.skip("the other tests compile them")
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env = variables | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("True") == 7
