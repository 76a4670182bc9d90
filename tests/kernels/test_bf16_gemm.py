"""The native gradients and the native convolutions to an image, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm, load_bf16_gemm, measure_speedup
from velogan.kernels.conv_weight_grad import ConvWeightGrad, fits_conv_weight_grad
from velogan.kernels.few_channel import few_channel_conv2d
from velogan.kernels.fused import training_speedup


def _images(*shape: int) -> Tensor:
    """Whole numbers and quarters: bfloat16 holds them, and float32 their sums, without rounding."""
    values = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(sum(shape))) / 4
    return values.bfloat16().contiguous(memory_format=torch.channels_last)


CONVOLUTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "down": (nn.Conv2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "patch": (nn.Conv2d, {"kernel_size": 4, "stride": 2, "padding": 1}),
    "last patch": (nn.Conv2d, {"kernel_size": 4, "padding": 1}),
    "point": (nn.Conv2d, {"kernel_size": 1}),
    "stride beyond the kernel": (nn.Conv2d, {"kernel_size": 2, "stride": 3}),
    "up": (nn.ConvTranspose2d, {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}),
    "up by 4": (nn.ConvTranspose2d, {"kernel_size": 4, "stride": 2, "padding": 1}),
}


@settings(max_examples=5, deadline=None)
@given(n=st.integers(1, 2), h=st.integers(4, 20), w=st.integers(4, 80), wide=st.booleans())
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weights_gradients_are_exact_to_float32(gemm: Bf16Gemm, name: str, n: int, h: int, w: int, wide: bool) -> None:
    assume(w > 4 or name != "stride beyond the kernel")  # torch 2.13's own forward pass is wrong there with AMX
    kind, geometry = CONVOLUTIONS[name]
    conv = kind(128 if wide else 64, 64, bias=False, **geometry)
    assert fits_conv_weight_grad(conv)
    x = _images(n, conv.in_channels, h, w).requires_grad_()
    out = ConvWeightGrad(conv, gemm)(x)
    g = _images(*out.shape)
    with torch.no_grad():
        exact_conv = kind(128 if wide else 64, 64, bias=False, **geometry).double()
        exact_conv.weight.copy_(conv.weight.bfloat16())
    exact = x.detach().double().requires_grad_()
    truth = exact_conv(exact)
    torch.testing.assert_close(out.double(), truth, rtol=2**-8, atol=2**-8)
    dx, dweight = torch.autograd.grad(out, [x, conv.weight], g)
    exact_dx, exact_dweight = torch.autograd.grad(truth, [exact, exact_conv.weight], g.double())
    assert dweight.dtype == torch.float32
    assert torch.equal(dweight.double(), exact_dweight)
    torch.testing.assert_close(dx.double(), exact_dx, rtol=2**-8, atol=2**-6)


@settings(max_examples=10, deadline=None)
@given(
    n=st.integers(1, 2),
    thin=st.integers(1, 4),
    wide=st.sampled_from([64, 128]),
    kernel=st.sampled_from([5, 7]),
    h=st.integers(7, 80),
    w=st.integers(7, 20),
)
@pytest.mark.parametrize("to_image", [True, False])
def test_thin_convolutions_are_exact_to_rounding(
    gemm: Bf16Gemm, to_image: bool, n: int, thin: int, wide: int, kernel: int, h: int, w: int
) -> None:
    channels, out_channels = (wide, thin) if to_image else (thin, wide)
    x = _images(n, channels, h, w).requires_grad_()
    weight = _images(out_channels, channels, kernel, kernel).float().requires_grad_()
    bias = torch.arange(float(out_channels), requires_grad=True)
    out = few_channel_conv2d(x, weight, bias, gemm)
    g = _images(*out.shape)
    exact = [value.detach().double().requires_grad_() for value in (x, weight, bias)]
    truth = F.conv2d(exact[0], exact[1], exact[2])
    torch.testing.assert_close(out.double(), truth, rtol=2**-8, atol=2**-8)
    seen = torch.autograd.grad(out, [x, weight, bias], g)
    dx, dweight, dbias = torch.autograd.grad(truth, exact, g.double())
    torch.testing.assert_close(seen[0].double(), dx, rtol=2**-8, atol=2**-6)
    assert torch.equal(seen[1].double(), dweight)
    assert torch.equal(seen[2].double(), dbias)


def test_results_do_not_depend_on_threads(gemm: Bf16Gemm) -> None:
    x, image = torch.randn(2, 64, 40, 21).bfloat16(), torch.randn(2, 3, 46, 27).bfloat16()
    x, image = (value.contiguous(memory_format=torch.channels_last) for value in (x, image))
    weight = torch.randn(3, 64, 7, 7)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(
            (
                gemm.weight_gradient(x, x, kernel=3, stride=1, padding=1),
                gemm.few_channel_convolve(x, weight, pad=6),
                gemm.few_channel_gradient(x, image, kernel=7, pad=0),
            )
        )
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_float32_is_left_to_the_library(gemm: Bf16Gemm) -> None:
    conv, x = nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False), torch.randn(1, 64, 8, 8)
    assert torch.equal(ConvWeightGrad(conv, gemm)(x), conv(x))
    thin, image = torch.randn(64, 3, 7, 7), torch.randn(1, 3, 16, 16)
    assert torch.equal(few_channel_conv2d(image, thin, None, gemm), few_channel_conv2d(image, thin, None))


def test_what_gradients_stand_for() -> None:
    assert fits_conv_weight_grad(nn.Conv2d(64, 128, 4, stride=2, padding=1))
    for other in (
        nn.Conv2d(64, 64, (3, 5)),
        nn.Conv2d(64, 64, 3, stride=(1, 2)),
        nn.Conv2d(64, 64, 3, padding="same"),
        nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(64, 64, 3, groups=2),
        nn.Conv2d(64, 64, 3, dilation=2),
        nn.Conv2d(3, 64, 3),
        nn.Conv2d(64, 1, 3),
        nn.Linear(64, 64),
    ):
        assert not fits_conv_weight_grad(other)


def test_without_a_compiler_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/absent")
    assert load_bf16_gemm(tmp_path) is None


def test_the_gain_is_a_ratio_and_leaves_the_threads_alone(gemm: Bf16Gemm) -> None:
    torch.set_num_threads(2)
    for layer in (nn.Conv2d(64, 64, 3), nn.Conv2d(64, 128, 4, stride=2, padding=1)):
        assert 0.05 < training_speedup(layer, gemm) < 50
    assert torch.get_num_threads() == 2
    assert training_speedup(nn.Conv2d(48, 48, 4), gemm) == 0
    assert measure_speedup(lambda: torch.ones(10_000).sum(), lambda: torch.ones(1_000_000).sum()) < 1
