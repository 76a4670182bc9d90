"""Compute convolutions with a native weight gradient, since PyTorch's takes up to twice as long."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import BLOCK, Bf16Gemm
from velogan.kernels.fp32_gemm import Fp32Gemm
from velogan.kernels.norms import to_channels_last


def fits_conv_weight_grad(layer: nn.Module, block: int = BLOCK) -> TypeGuard[nn.Conv2d | nn.ConvTranspose2d]:
    """Return whether `ConvWeightGrad` supports `layer`; numbers of channels must be multiples of `block`."""
    return (
        isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))
        and layer.in_channels % block == layer.out_channels % block == 0
        and not isinstance(layer.padding, str)
        and all(a == b for a, b in (layer.kernel_size, layer.stride, layer.padding))
        and (layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), 1, "zeros")
    )


class ConvWeightGrad:
    """Computes `conv` without bias, with a native weight gradient in the precision of `gemm`; no second derivatives."""

    def __init__(self, conv: nn.Conv2d | nn.ConvTranspose2d, gemm: Bf16Gemm | Fp32Gemm):
        self._conv, self._gemm = conv, gemm
        transposed = isinstance(conv, nn.ConvTranspose2d)
        self._geometry: list[Any] = [conv.stride, conv.padding, conv.dilation, transposed, conv.output_padding, 1]

    def __call__(self, x: Tensor) -> Tensor:
        if not self._gemm.computes(x):
            return torch.convolution(x, self._conv.weight, None, *self._geometry)
        return _ConvolutionOp.apply(x, self._conv.weight, self._gemm, self._geometry)  # pyright: ignore[reportReturnType]


class _ConvolutionOp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, gemm: Bf16Gemm | Fp32Gemm, geometry: list[Any]):
        image, weight = to_channels_last(x.to(gemm.dtype)), weight.to(gemm.dtype)
        ctx.save_for_backward(image, weight)
        ctx.gemm, ctx.geometry = gemm, geometry
        ctx.dtype = x.dtype
        return torch.convolution(image, weight, None, *geometry)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        image, weight = ctx.saved_tensors
        g, dx = to_channels_last(grads[0].to(ctx.gemm.dtype)), None
        dweight = None
        if ctx.needs_input_grad[0]:
            only_input = [True, False, False]
            dx = torch.ops.aten.convolution_backward(g, image, weight, None, *ctx.geometry, only_input)[0].to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            (stride, _), (padding, _), _, transposed, *_ = ctx.geometry
            pair = (g, image) if transposed else (image, g)
            dweight = ctx.gemm.weight_gradient(*pair, kernel=weight.shape[2], stride=stride, padding=padding)
        return dx, dweight, None, None
