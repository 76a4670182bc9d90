"""Convolutions with a half or a quarter of the multiplications, and their gradients.

In bfloat16, on CPUs with AVX-512, by Winograd's F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308): image and weights
are transformed and multiplied elementwise, and the result is transformed back. The gradients use the same algorithm.
Kernels of 5x5 and 7x7 are made of small ones (`winograd.cpp`): 4/9, 12/25 and 25/49 of the multiplications. The error
is up to twice that of the plain convolution; the larger F(4x4, 3x3) has nine times the error (benchmarks/LOG.md). In
float32, where that is still only some 3e-6 of the result, 3x3 convolutions use F(4x4, 3x3) (`winograd32.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm, computes_half
from velogan.kernels.fp32_gemm import Fp32Gemm
from velogan.kernels.norms import dense

KERNELS = (3, 5, 7)

LEAST = 16
"""Fewer channels than so many gain nothing."""


def fits_winograd(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether `layer` is a convolution that this module can compute."""
    return (
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size in [(kernel, kernel) for kernel in KERNELS]
        and (layer.stride, layer.padding, layer.groups) == ((1, 1), (0, 0), 1)
        and layer.dilation[0] == layer.dilation[1]
        and min(layer.in_channels, layer.out_channels) >= LEAST
    )


def _taps(conv: nn.Conv2d) -> dict[str, int]:
    return {"kernel": conv.kernel_size[0], "dilation": conv.dilation[0]}


class WinogradConv2d(nn.Module):
    """Replaces `conv` on bfloat16 images, without gradients."""

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm):
        super().__init__()
        self._gemm = gemm
        self._weight, _ = gemm.winograd_weights(conv.weight)
        self._bias = None if conv.bias is None else conv.bias.detach().float()
        self._out, self._taps = conv.out_channels, _taps(conv)

    def forward(self, x: Tensor) -> Tensor:
        return self._gemm.winograd_convolve(dense(x), self._weight, self._bias, out=self._out, **self._taps)


class WinogradConvolution:
    """`conv`, with its bias if `biased`, by Winograd's algorithm in the precision of `gemm`; no second derivatives.

    The weights are those of `conv`. They are transformed once for all forward passes, until the next backward pass:
    fused optimizers change weights without raising their version.
    """

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm | Fp32Gemm, *, biased: bool = False):
        self._conv, self._gemm, self._biased = conv, gemm, biased
        self._weights: tuple[Tensor, Tensor] | None = None
        self._version = -1

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self._conv.weight, self._conv.bias if self._biased else None
        if not self._gemm.computes(x):
            return F.conv2d(x, weight, bias, dilation=self._conv.dilation)
        if self._weights is None or self._version != weight._version or not torch.is_grad_enabled():
            self._weights, self._version = self._gemm.winograd_weights(weight), weight._version
        transformed = self._weights
        if not torch.is_grad_enabled():
            self.forget()
        return _Winograd.apply(x, weight, bias, transformed, _taps(self._conv), self._gemm, self.forget)  # pyright: ignore[reportReturnType]

    def forget(self) -> None:
        """Transforms the weights again at the next use, as they may have changed."""
        self._weights = None


def winograd_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, dilation: int = 1, gemm: Bf16Gemm
) -> Tensor:
    """`F.conv2d(x, weight, bias, dilation=dilation)`, of weights that are not a layer's own; no second derivatives.

    By Winograd's algorithm where that is known and `x` is computed in bfloat16.
    """
    out, channels, *kernel = weight.shape
    if not computes_half(x) or kernel not in [[side, side] for side in KERNELS] or min(out, channels) < LEAST:
        return F.conv2d(x, weight, bias, dilation=dilation)
    taps = {"kernel": kernel[0], "dilation": dilation}
    return _Winograd.apply(x, weight, bias, gemm.winograd_weights(weight), taps, gemm, lambda: None)  # pyright: ignore[reportReturnType]


class _Winograd(torch.autograd.Function):
    """`behind` is called in the backward pass."""

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        transformed: tuple[Tensor, Tensor],
        taps: dict[str, int],
        gemm: Bf16Gemm | Fp32Gemm,
        behind: Callable[[], None],
    ):
        image, (forward, back) = dense(x.to(gemm.dtype)), transformed
        ctx.gemm, ctx.taps, ctx.behind, ctx.dtype = gemm, taps, behind, x.dtype
        ctx.save_for_backward(image, back)
        return gemm.winograd_convolve(image, forward, None if bias is None else bias.float(), out=len(weight), **taps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        image, back = ctx.saved_tensors
        g, dx, dweight, dbias = dense(grads[0].to(ctx.gemm.dtype)), None, None, None
        ctx.behind()
        if ctx.needs_input_grad[0]:
            reach = (ctx.taps["kernel"] - 1) * ctx.taps["dilation"]
            dx = ctx.gemm.winograd_convolve(g, back, out=image.shape[1], pad=reach, **ctx.taps).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            dweight = ctx.gemm.winograd_gradient(image, g, **ctx.taps)
        if ctx.needs_input_grad[2]:
            dbias = g.sum((0, 2, 3), dtype=torch.float32)
        return dx, dweight, dbias, None, None, None, None
