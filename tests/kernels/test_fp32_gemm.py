from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from velogan.kernels.conv_weight_grad import ConvWeightGrad, fits_conv_weight_grad
from velogan.kernels.fp32_gemm import Fp32Gemm, load_fp32_gemm
from velogan.kernels.fused import Fused
from velogan.kernels.isa import ISA_LEVELS, LEVEL_VARIABLE, supported_levels
from velogan.kernels.norms import NormKernels
from velogan.kernels.winograd import WinogradTrainingConv
from velogan.networks.generators import GeneratorConfig, build_generator


@pytest.fixture(scope="module", params=ISA_LEVELS)
def gemm(request: pytest.FixtureRequest) -> Fp32Gemm:
    """The native code for each level that this CPU has."""
    if request.param not in supported_levels():
        pytest.skip("this CPU does not support this level")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LEVEL_VARIABLE, request.param)
        gemm = load_fp32_gemm(Path(os.environ["VELOGAN_CACHE"]) / "kernels")
    if gemm is None:
        pytest.skip("there is no g++ to build the native convolutions")
    return gemm


def _images(*shape: int) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values.contiguous(memory_format=torch.channels_last)


def _check(fast: Callable[[Tensor], Tensor], conv: nn.Module, x: Tensor, *, tolerance: float) -> None:
    """Compare `fast` and its gradients with `conv` in float64, up to a relative error."""
    exact, x64 = deepcopy(conv).double(), x.double().requires_grad_()
    out, expected = fast(x.requires_grad_()), exact(x64)
    g = _images(*expected.shape)
    actual = (out, *torch.autograd.grad(out, [x, *conv.parameters()], g))
    truth = (expected, *torch.autograd.grad(expected, [x64, *exact.parameters()], g.double()))
    for value, exact_value in zip(actual, truth, strict=True):
        assert (value.dtype, value.shape) == (torch.float32, exact_value.shape)
        assert (value.double() - exact_value).norm() < tolerance * exact_value.norm()


@pytest.mark.parametrize(
    ("n", "c", "o", "h", "w"), [(1, 16, 16, 3, 3), (2, 37, 33, 9, 18), (1, 64, 149, 35, 30), (3, 128, 70, 8, 8)]
)
def test_winograd_equals_the_convolution(gemm: Fp32Gemm, n: int, c: int, o: int, h: int, w: int) -> None:
    conv = nn.Conv2d(c, o, 3, bias=False)
    _check(WinogradTrainingConv(conv, gemm), conv, _images(n, c, h, w), tolerance=1e-5)


CONVOLUTIONS = {
    "down": lambda: nn.Conv2d(64, 32, 3, stride=2, padding=1, bias=False),
    "patch": lambda: nn.Conv2d(32, 96, 4, stride=2, padding=1, bias=False),
    "head": lambda: nn.Conv2d(96, 64, 4, padding=1, bias=False),
    "wide": lambda: nn.Conv2d(32, 32, 5, padding=3, bias=False),
    "up": lambda: nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1, bias=False),
}


@pytest.mark.parametrize(("n", "h", "w"), [(1, 4, 4), (2, 9, 34), (1, 5, 150)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_weight_gradient_equals_the_convolution_s(gemm: Fp32Gemm, name: str, n: int, h: int, w: int) -> None:
    conv = CONVOLUTIONS[name]()
    assert fits_conv_weight_grad(conv, gemm.block)
    _check(ConvWeightGrad(conv, gemm), conv, _images(n, conv.in_channels, h, w), tolerance=1e-6)


def test_results_do_not_depend_on_threads_or_neighbours(gemm: Fp32Gemm) -> None:
    conv, x, g = nn.Conv2d(64, 96, 3), _images(2, 64, 70, 21), _images(2, 96, 68, 19)
    weight, mirrored = gemm.winograd_weights(conv.weight)

    def computed(x: Tensor, g: Tensor) -> list[Tensor]:
        images = [
            gemm.winograd_convolve(x, weight, conv.bias, c_out=96),
            gemm.winograd_convolve(g, mirrored, c_out=64, pad=2),
        ]
        other = gemm.weight_gradient(x, g, kernel=3, stride=1, padding=0)
        return [*images, gemm.winograd_gradient(x, g), other]

    with torch.no_grad():
        single_thread = computed(x, g)
        torch.set_num_threads(2)
        assert all(torch.equal(a, b) for a, b in zip(single_thread, computed(x, g), strict=True))
        alone = computed(x[1:], g[1:])
    assert all(torch.equal(a, b[1:]) for a, b in zip(alone[:2], single_thread))


def test_bfloat16_uses_the_library(gemm: Fp32Gemm) -> None:
    conv, x = nn.Conv2d(64, 64, 3, bias=False), _images(1, 64, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(WinogradTrainingConv(conv, gemm)(x), conv(x))


def test_a_fused_generator_has_the_gradients_of_the_plain_one(gemm: Fp32Gemm, kernels: NormKernels) -> None:
    torch.manual_seed(0)  # where rounding moves a unit over the kink of its ReLU, gradients differ by a hundredth
    net = build_generator(GeneratorConfig(channels=32, blocks=2, init="kaiming"))
    x, weights = torch.rand(1, 3, 36, 28) * 2 - 1, [p for name, p in net.named_parameters() if name.endswith("weight")]
    fused, g = Fused(net, kernels, gemm), torch.randn(1, 3, 36, 28)
    results = [torch.autograd.grad(forward(x), weights, g) for forward in (net, fused)]
    for expected, actual in zip(*results, strict=True):
        assert not torch.equal(actual, expected)
        assert (actual - expected).norm() < 1e-4 * expected.norm()
