"""Compute convolutions and their gradients by Winograd's algorithm, with a half or a quarter of the multiplications.

In bfloat16, on CPUs with AVX-512, this is F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308): image and
weights are transformed and multiplied elementwise, and the result is transformed back. The gradients use the same
algorithm. Kernels of 3x3, 5x5 and 7x7, the larger ones split into small ones (`winograd.cpp`), need 4/9, 12/25 and
25/49 of the multiplications. The error is up to twice that of the plain convolution; the larger F(4x4, 3x3) has nine
times the error (benchmarks/LOG.md). In float32 its error is still only 3e-6 of the result, so 3x3 convolutions use
F(4x4, 3x3) (`winograd32.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm, computes_in_bf16
from velogan.kernels.fp32_gemm import Fp32Gemm
from velogan.kernels.norms import to_channels_last

KERNELS = (3, 5, 7)

MIN_CHANNELS = 16
"""Minimum number of input and output channels: with fewer the algorithm is not faster."""


def fits_winograd(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether `layer` is a convolution that this module can compute."""
    return (
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size in [(kernel, kernel) for kernel in KERNELS]
        and (layer.stride, layer.padding, layer.groups) == ((1, 1), (0, 0), 1)
        and layer.dilation[0] == layer.dilation[1]
        and min(layer.in_channels, layer.out_channels) >= MIN_CHANNELS
    )


def _geometry(conv: nn.Conv2d) -> dict[str, int]:
    return {"kernel": conv.kernel_size[0], "dilation": conv.dilation[0]}


class WinogradInferenceConv(nn.Module):
    """Computes `conv` on bfloat16 images by Winograd's algorithm, without gradients."""

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm):
        super().__init__()
        self._gemm = gemm
        self._weight, _ = gemm.winograd_weights(conv.weight)
        self._bias = None if conv.bias is None else conv.bias.detach().float()
        self._c_out, self._geometry = conv.out_channels, _geometry(conv)

    def forward(self, x: Tensor) -> Tensor:
        return self._gemm.winograd_convolve(
            to_channels_last(x), self._weight, self._bias, c_out=self._c_out, **self._geometry
        )


class WinogradTrainingConv:
    """Computes `conv` by Winograd's algorithm, in the precision of `gemm` and with its bias if `has_bias`.

    The weights of `conv` are transformed once for all forward passes, until the next backward pass: fused optimizers
    change weights without raising their version. There are no second derivatives.
    """

    def __init__(self, conv: nn.Conv2d, gemm: Bf16Gemm | Fp32Gemm, *, has_bias: bool = False):
        self._conv, self._gemm = conv, gemm
        self._has_bias = has_bias
        self._weights: tuple[Tensor, Tensor] | None = None
        self._version = -1

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self._conv.weight, self._conv.bias if self._has_bias else None
        if not self._gemm.computes(x):
            return F.conv2d(x, weight, bias, dilation=self._conv.dilation)
        if self._weights is None or self._version != weight._version or not torch.is_grad_enabled():
            self._weights, self._version = self._gemm.winograd_weights(weight), weight._version
        transformed = self._weights
        if not torch.is_grad_enabled():
            self.forget()
        return _Winograd.apply(x, weight, bias, transformed, _geometry(self._conv), self._gemm, self.forget)  # pyright: ignore[reportReturnType]

    def forget(self) -> None:
        """Discard the transformed weights, since the weights may change."""
        self._weights = None


def winograd_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, dilation: int = 1, gemm: Bf16Gemm
) -> Tensor:
    """Return `F.conv2d(x, weight, bias, dilation=dilation)` for weights that belong to no layer; no second derivatives.

    It uses Winograd's algorithm if that supports the kernel and the convolution computes in bfloat16.
    """
    c_out, c_in, *kernel = weight.shape
    if not computes_in_bf16(x) or kernel not in [[side, side] for side in KERNELS] or min(c_out, c_in) < MIN_CHANNELS:
        return F.conv2d(x, weight, bias, dilation=dilation)
    geometry = {"kernel": kernel[0], "dilation": dilation}
    return _Winograd.apply(x, weight, bias, gemm.winograd_weights(weight), geometry, gemm, lambda: None)  # pyright: ignore[reportReturnType]


class _Winograd(torch.autograd.Function):
    """A Winograd convolution that calls `on_backward` in its backward pass."""

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        transformed: tuple[Tensor, Tensor],
        geometry: dict[str, int],
        gemm: Bf16Gemm | Fp32Gemm,
        on_backward: Callable[[], None],
    ):
        image, (weights, mirrored) = to_channels_last(x.to(gemm.dtype)), transformed
        ctx.gemm, ctx.geometry = gemm, geometry
        ctx.on_backward, ctx.dtype = on_backward, x.dtype
        ctx.save_for_backward(image, mirrored)
        return gemm.winograd_convolve(
            image, weights, None if bias is None else bias.float(), c_out=len(weight), **geometry
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        image, mirrored = ctx.saved_tensors
        g, dx = to_channels_last(grads[0].to(ctx.gemm.dtype)), None
        dweight, dbias = None, None
        ctx.on_backward()
        if ctx.needs_input_grad[0]:
            reach = (ctx.geometry["kernel"] - 1) * ctx.geometry["dilation"]
            dx = ctx.gemm.winograd_convolve(g, mirrored, c_out=image.shape[1], pad=reach, **ctx.geometry).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            dweight = ctx.gemm.winograd_gradient(image, g, **ctx.geometry)
        if ctx.needs_input_grad[2]:
            dbias = g.sum((0, 2, 3), dtype=torch.float32)
        return dx, dweight, dbias, None, None, None, None
