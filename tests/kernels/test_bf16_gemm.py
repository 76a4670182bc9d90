"""Native gradients and few-channel convolutions in bfloat16, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm
from velogan.kernels.conv_weight_grad import ConvWeightGrad, fits_conv_weight_grad
from velogan.kernels.few_channel import few_channel_conv2d


def _images(*shape: int) -> Tensor:
    """Return multiples of 1/4, which bfloat16 holds, and float32 their sums, without rounding."""
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
@given(n=st.integers(1, 2), h=st.integers(4, 20), w=st.integers(4, 80), many=st.booleans())
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weight_gradients_are_exact(gemm: Bf16Gemm, name: str, n: int, h: int, w: int, many: bool) -> None:
    assume(w > 4 or name != "stride beyond the kernel")  # torch 2.13's own forward pass is wrong there with AMX
    kind, geometry = CONVOLUTIONS[name]
    conv = kind(128 if many else 64, 64, bias=False, **geometry)
    assert fits_conv_weight_grad(conv)
    x = _images(n, conv.in_channels, h, w).requires_grad_()
    out = ConvWeightGrad(conv, gemm)(x)
    g = _images(*out.shape)
    with torch.no_grad():
        exact_conv = kind(128 if many else 64, 64, bias=False, **geometry).double()
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
    few=st.integers(1, 4),
    many=st.sampled_from([64, 128]),
    kernel=st.sampled_from([5, 7]),
    h=st.integers(7, 80),
    w=st.integers(7, 20),
)
@pytest.mark.parametrize("to_image", [True, False])
def test_few_channel_convolutions_are_exact_to_rounding(
    gemm: Bf16Gemm, to_image: bool, n: int, few: int, many: int, kernel: int, h: int, w: int
) -> None:
    channels, out_channels = (many, few) if to_image else (few, many)
    x = _images(n, channels, h, w).requires_grad_()
    weight = _images(out_channels, channels, kernel, kernel).float().requires_grad_()
    bias = torch.arange(float(out_channels), requires_grad=True)
    out = few_channel_conv2d(x, weight, bias, gemm)
    g = _images(*out.shape)
    exact = [value.detach().double().requires_grad_() for value in (x, weight, bias)]
    truth = F.conv2d(exact[0], exact[1], exact[2])
    torch.testing.assert_close(out.double(), truth, rtol=2**-8, atol=2**-8)
    grads = torch.autograd.grad(out, [x, weight, bias], g)
    dx, dweight, dbias = torch.autograd.grad(truth, exact, g.double())
    torch.testing.assert_close(grads[0].double(), dx, rtol=2**-8, atol=2**-6)
    assert torch.equal(grads[1].double(), dweight)
    assert torch.equal(grads[2].double(), dbias)


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
