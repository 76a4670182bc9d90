"""3x3 convolutions in bfloat16 with four ninths of the multiplications, and their gradients, on CPUs with AVX-512.

Winograd's F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308): image and weights are transformed and multiplied
elementwise, and the result is transformed back. The gradients use the same algorithm. In bfloat16 its error is up to
twice that of the plain convolution; the larger F(4x4, 3x3) has nine times the error (benchmarks/LOG.md).
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import BLOCK, Bf16Gemm, computes_half
from velogan.kernels.native import dense


def fits_winograd(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether `layer` is a convolution that this module can compute."""
    return (
        isinstance(layer, nn.Conv2d)
        and (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == ((3, 3), (1, 1), (0, 0), (1, 1))
        and layer.groups == 1
        and layer.in_channels % BLOCK == layer.out_channels % BLOCK == 0
    )


class WinogradConv2d(nn.Module):
    """Replaces `conv` on bfloat16 images, without gradients."""

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm):
        super().__init__()
        self._gemm = gemm
        self._weight, _ = gemm.winograd_weights(conv.weight)
        self._bias = None if conv.bias is None else conv.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        return self._gemm.winograd_convolve(dense(x), self._weight, self._bias)


class WinogradConvolution:
    """`conv` without its bias, by Winograd's algorithm in bfloat16; no second derivatives.

    The weights are those of `conv`. They are transformed once for all forward passes, until the next backward pass:
    fused optimizers change weights without raising their version.
    """

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm):
        self._conv, self._gemm = conv, gemm
        self._weights: tuple[Tensor, Tensor] | None = None
        self._version = -1

    def __call__(self, x: Tensor) -> Tensor:
        weight = self._conv.weight
        if not computes_half(x):
            return F.conv2d(x, weight)
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
        return gemm.winograd_convolve(image, forward)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        image, back = ctx.saved_tensors
        g, dx, dweight = dense(grads[0].bfloat16()), None, None
        ctx.convolution.forget()
        if ctx.needs_input_grad[2]:
            dx = ctx.gemm.winograd_convolve(g, back, pad=2).to(ctx.dtype)
        if ctx.needs_input_grad[3]:
            dweight = ctx.gemm.winograd_gradient(image, g)
        return None, None, dx, dweight, None, None
