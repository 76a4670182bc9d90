"""Properties that all native convolutions share: supported layers, precision, speed, compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from velogan.kernels import native
from velogan.kernels.bf16_gemm import Bf16Gemm, load_bf16_gemm
from velogan.kernels.conv_weight_grad import ConvWeightGrad, fits_conv_weight_grad
from velogan.kernels.few_channel import few_channel_conv2d, is_few_channel_conv
from velogan.kernels.fp32_gemm import load_fp32_gemm
from velogan.kernels.fused import measure_training_speedup
from velogan.kernels.native import load_kernels
from velogan.kernels.precision import measure_speedup
from velogan.kernels.winograd import WinogradTrainingConv, fits_winograd

LAYERS: dict[Callable[[nn.Module], bool], tuple[list[nn.Module], list[nn.Module]]] = {
    fits_winograd: (
        [nn.Conv2d(64, 128, 3), nn.Conv2d(16, 16, 5, dilation=2)],
        [nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, stride=2), nn.Conv2d(3, 64, 7), nn.ReLU()],
    ),
    fits_conv_weight_grad: (
        [nn.Conv2d(64, 128, 4, stride=2, padding=1)],
        [nn.Conv2d(64, 64, 3, padding="same"), nn.Conv2d(64, 64, 3, groups=2), nn.Conv2d(3, 64, 3), nn.Linear(64, 64)],
    ),
    is_few_channel_conv: (
        [nn.Conv2d(3, 64, 7), nn.Conv2d(64, 3, 7)],
        [nn.Conv2d(3, 64, 7, padding=3), nn.Conv2d(64, 64, 7), nn.Conv2d(3, 64, 3), nn.ConvTranspose2d(64, 3, 7)],
    ),
}


@pytest.mark.parametrize("fits", LAYERS, ids=lambda fits: fits.__name__)
def test_selects_the_supported_layers(fits: Callable[[nn.Module], bool]) -> None:
    supported, others = LAYERS[fits]
    assert all(map(fits, supported))
    assert not any(map(fits, others))


def test_float32_uses_the_library(gemm: Bf16Gemm) -> None:
    x, image = torch.randn(1, 64, 8, 8), torch.randn(1, 3, 16, 16)
    conv, strided = nn.Conv2d(64, 64, 3, bias=False), nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False)
    weight = torch.randn(64, 3, 7, 7)
    winograd = WinogradTrainingConv(conv, gemm)
    assert torch.equal(winograd(x), conv(x))
    assert torch.equal(ConvWeightGrad(strided, gemm)(x), strided(x))
    assert torch.equal(few_channel_conv2d(image, weight, None, gemm), few_channel_conv2d(image, weight, None))
    with torch.autocast("cpu", torch.bfloat16):
        assert winograd(x).dtype == few_channel_conv2d(image, weight, None).dtype == torch.bfloat16


def test_the_speedup_is_a_ratio_and_keeps_the_number_of_threads(gemm: Bf16Gemm) -> None:
    torch.set_num_threads(2)
    for layer in (nn.Conv2d(64, 64, 3), nn.Conv2d(64, 128, 4, stride=2, padding=1)):
        assert 0.05 < measure_training_speedup(layer, gemm) < 50
    assert torch.get_num_threads() == 2
    assert measure_training_speedup(nn.Conv2d(48, 48, 4), gemm) == 0
    assert measure_speedup(lambda: torch.ones(10_000).sum(), lambda: torch.ones(1_000_000).sum()) < 1


@pytest.mark.parametrize("load", [load_kernels, load_bf16_gemm, load_fp32_gemm])
def test_without_a_working_compiler_there_is_no_native_code(
    load: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert load(tmp_path) is None
    for compiler in ("/no/such/compiler", "false"):
        monkeypatch.setenv("CXX", compiler)
        assert load(tmp_path) is None
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 16), (16, 3), (4, 4), (1, 9)])
@pytest.mark.parametrize("kernel", [5, 7])
def test_few_channel_convolutions_in_float32_equal_the_library_s(inputs: int, outputs: int, kernel: int):
    torch.manual_seed(0)
    shapes = [(2, inputs, 13, 11), (outputs, inputs, kernel, kernel), (outputs,)]
    exact = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    leaves = [value.detach().float().requires_grad_() for value in exact]
    expected, out = F.conv2d(*exact), few_channel_conv2d(*leaves)  # pyright: ignore[reportCallIssue, reportArgumentType]
    gradient = torch.randn_like(expected)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    grads = torch.autograd.grad(out, leaves, gradient.float())
    for grad, exact_grad in zip(grads, torch.autograd.grad(expected, exact, gradient)):
        torch.testing.assert_close(grad.double(), exact_grad, rtol=1e-4, atol=2e-4)
