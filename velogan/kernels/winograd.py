"""Convolutions in bfloat16 with about half of the multiplications, and their gradients, on CPUs with AVX-512.

Winograd's F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308): image and weights are transformed and multiplied
elementwise, and the result is transformed back. The gradients use the same algorithm. Kernels of 5x5 and 7x7 are made
of small ones (`winograd.cpp`): 4/9, 12/25 and 25/49 of the multiplications. In bfloat16 the error is up to
twice that of the plain convolution; the larger F(4x4, 3x3) has nine times the error (benchmarks/LOG.md).
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm, computes_half
from velogan.kernels.native import dense


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


class _Geometry:
    def __init__(self, conv: nn.Conv2d):
        self.channels, self.out = conv.in_channels, conv.out_channels
        self.taps = {"kernel": conv.kernel_size[0], "dilation": conv.dilation[0]}
        self.reach = (conv.kernel_size[0] - 1) * conv.dilation[0]


class WinogradConv2d(nn.Module):
    """Replaces `conv` on bfloat16 images, without gradients."""

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm):
        super().__init__()
        self._gemm = gemm
        self._weight, _ = gemm.winograd_weights(conv.weight)
        self._bias = None if conv.bias is None else conv.bias.detach().float()
        self._geometry = _Geometry(conv)

    def forward(self, x: Tensor) -> Tensor:
        geometry = self._geometry
        return self._gemm.winograd_convolve(dense(x), self._weight, self._bias, out=geometry.out, **geometry.taps)


class WinogradConvolution:
    """`conv` without its bias, by Winograd's algorithm in bfloat16; no second derivatives.

    The weights are those of `conv`. They are transformed once for all forward passes, until the next backward pass:
    fused optimizers change weights without raising their version.
    """

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm):
        self._conv, self._gemm, self.geometry = conv, gemm, _Geometry(conv)
        self._weights: tuple[Tensor, Tensor] | None = None
        self._version = -1

    def __call__(self, x: Tensor) -> Tensor:
        weight = self._conv.weight
        if not computes_half(x):
            return F.conv2d(x, weight, dilation=self._conv.dilation)
        if self._weights is None or self._version != weight._version or not torch.is_grad_enabled():
            self._weights, self._version = self._gemm.winograd_weights(weight), weight._version
        transformed = self._weights
        if not torch.is_grad_enabled():
            self.forget()
        return _Winograd.apply(self, self._gemm, x, weight, *transformed)  # pyright: ignore[reportReturnType]

    def forget(self) -> None:
        """Transforms the weights again at the next use, as they may have changed."""
        self._weights = None


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        convolution: WinogradConvolution,
        gemm: Bf16Gemm,
        x: Tensor,
        weight: Tensor,
        forward: Tensor,
        back: Tensor,
    ):
        image = dense(x.bfloat16())
        ctx.convolution, ctx.gemm, ctx.dtype = convolution, gemm, x.dtype
        ctx.save_for_backward(image, back)
        return gemm.winograd_convolve(image, forward, out=len(weight), **convolution.geometry.taps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        image, back = ctx.saved_tensors
        g, dx, dweight = dense(grads[0].bfloat16()), None, None
        ctx.convolution.forget()
        geometry = ctx.convolution.geometry
        if ctx.needs_input_grad[2]:
            dx = ctx.gemm.winograd_convolve(g, back, out=geometry.channels, pad=geometry.reach, **geometry.taps)
            dx = dx.to(ctx.dtype)
        if ctx.needs_input_grad[3]:
            dweight = ctx.gemm.winograd_gradient(image, g, **geometry.taps)
        return None, None, dx, dweight, None, None
