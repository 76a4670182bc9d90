"""Convolutions between an image and many features, whose gradients CPU libraries compute slowly.

Both gradients of a stride-1 convolution are convolutions themselves. Written as the forward pass of the mirrored
weights, and as the weight gradient with image and features in exchanged roles, they run at forward speed: together
four times as fast as the library's own for 64 features and 3 channels at 7x7 (benchmarks/LOG.md).
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

THIN = 8
"""Channels up to which a side counts as an image."""


def is_thin(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether `layer` is a convolution that `thin_convolution` computes faster."""
    return (
        isinstance(layer, nn.Conv2d)
        and min(layer.in_channels, layer.out_channels) <= THIN
        and layer.kernel_size[0] == layer.kernel_size[1] >= 5
        and (layer.stride, layer.dilation, layer.groups) == ((1, 1), (1, 1), 1)
        and layer.padding == (0, 0)
    )


def thin_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.conv2d(x, weight, bias)` with faster gradients, in autocast's type where it is on; no second derivatives."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype) if bias is not None else None
    return _Thin.apply(x, weight, bias)  # pyright: ignore[reportReturnType]


class _Thin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        x, weight = ctx.saved_tensors
        g = grads[0].contiguous(memory_format=torch.channels_last)
        mirrored = weight.flip(2, 3).transpose(0, 1)
        reach = weight.shape[2] - 1
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = F.conv2d(g, mirrored, padding=reach)
        if ctx.needs_input_grad[1]:
            dweight = _weight_gradient(g, x, mirrored, reach)
        if ctx.needs_input_grad[2]:
            dbias = g.sum((0, 2, 3), dtype=torch.float32).to(g.dtype)
        return dx, dweight, dbias


def _weight_gradient(g: Tensor, x: Tensor, mirrored: Tensor, reach: int) -> Tensor:
    """Of `(out, in, k, k)` weights, from the gradient `g` of the output and the input `x`."""
    thin_output = g.shape[1] < x.shape[1]
    image, features, weight, padding = (g, x, mirrored, reach) if thin_output else (x, g, mirrored.transpose(0, 1), 0)
    only_weight = [False, True, False]
    _, dweight, _ = torch.ops.aten.convolution_backward(
        features, image, weight, None, [1, 1], [padding, padding], [1, 1], False, [0, 0], 1, only_weight
    )
    return dweight.flip(2, 3).transpose(0, 1) if thin_output else dweight
