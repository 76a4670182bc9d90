"""Compute convolutions between an image of few channels and many features, for which PyTorch is slow on CPUs.

In bfloat16 they are native if possible (`thin.cpp`). Otherwise a float32 convolution to an image is the sum of one
convolution for each row of its kernel; the gradient of the input is a convolution with mirrored weights; and the
gradient of the weights exchanges the roles of image and features. For 64 features, 3 channels and 7x7 kernels both
gradients together are four times as fast as PyTorch's (benchmarks/LOG.md).
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import BLOCK, Bf16Gemm, computes_in_bf16
from velogan.kernels.norms import to_channels_last

MAX_IMAGE_CHANNELS = 8
"""An input or output with at most this many channels counts as an image."""

MAX_NATIVE_IMAGE_CHANNELS = 4
"""Maximum number of image channels that the native code supports."""


def is_few_channel_conv(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether `layer` is a convolution that `few_channel_conv2d` computes faster."""
    return (
        isinstance(layer, nn.Conv2d)
        and min(layer.in_channels, layer.out_channels) <= MAX_IMAGE_CHANNELS
        and layer.kernel_size[0] == layer.kernel_size[1] >= 5
        and (layer.stride, layer.dilation, layer.groups) == ((1, 1), (1, 1), 1)
        and layer.padding == (0, 0)
    )


def few_channel_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, gemm: Bf16Gemm | None = None) -> Tensor:
    """Return `F.conv2d(x, weight, bias)`, also under autocast, by `gemm` if possible. No second derivatives."""
    dtype = torch.bfloat16 if computes_in_bf16(x) else x.dtype
    image_channels, features = sorted(weight.shape[:2])
    if dtype != torch.bfloat16 or image_channels > MAX_NATIVE_IMAGE_CHANNELS or features % BLOCK:
        gemm = None
    return _FewChannelConv.apply(x.to(dtype), weight, bias, gemm)  # pyright: ignore[reportReturnType]


class _FewChannelConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, gemm: Bf16Gemm | None):
        x = to_channels_last(x)
        ctx.save_for_backward(x, weight)
        ctx.gemm = gemm
        if gemm is not None and _outputs_image(weight):
            return gemm.few_channel_convolve(x, weight, None if bias is None else bias.float())
        if _outputs_image(weight) and x.dtype == torch.float32:
            return _convolve_rows(x, weight, bias)
        return F.conv2d(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        x, weight = ctx.saved_tensors
        g, dx = to_channels_last(grads[0]), None
        dweight, dbias = None, None
        mirrored, reach = weight.flip(2, 3).transpose(0, 1), weight.shape[2] - 1
        if ctx.needs_input_grad[0]:
            if ctx.gemm and _outputs_image(mirrored):
                dx = ctx.gemm.few_channel_convolve(g, mirrored, pad=reach)
            elif _outputs_image(mirrored) and g.dtype == torch.float32:
                dx = _convolve_rows(g, mirrored, pad=reach)
            else:
                dx = F.conv2d(g, mirrored.to(g.dtype), padding=reach)
        if ctx.needs_input_grad[1]:
            gradient = ctx.gemm.few_channel_gradient if ctx.gemm else _torch_gradient
            if _outputs_image(weight):
                dweight = gradient(x, g, kernel=reach + 1, pad=reach).permute(2, 3, 0, 1).flip(2, 3)
            else:
                dweight = gradient(g, x, kernel=reach + 1, pad=0).permute(3, 2, 0, 1)
        if ctx.needs_input_grad[2]:
            dbias = g.sum((0, 2, 3), dtype=torch.float32)
        return dx, dweight, dbias, None


def _outputs_image(weight: Tensor) -> bool:
    return weight.shape[0] < weight.shape[1]


def _convolve_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, pad: int = 0) -> Tensor:
    """Return `F.conv2d(x, weight, bias, padding=pad)`, the sum of one convolution for each row of the kernel.

    From many features to few channels this takes half the time of PyTorch's convolution.
    """
    out, features, count, width = weight.shape
    rows = weight.permute(2, 0, 1, 3).reshape(count * out, features, 1, width)
    sums = F.conv2d(x, rows.contiguous(memory_format=torch.channels_last), padding=pad)
    height = sums.shape[2] - count + 1
    result = sums[:, :out, :height].contiguous()
    for i in range(1, count):
        result += sums[:, i * out : (i + 1) * out, i : i + height]
    return result if bias is None else result.add_(bias[:, None, None])


def _torch_gradient(features: Tensor, image: Tensor, *, kernel: int, pad: int) -> Tensor:
    """Compute the same as `Bf16Gemm.few_channel_gradient` by PyTorch, in the dtype of `features`."""
    weight = features.new_empty(features.shape[1], image.shape[1], kernel, kernel)
    only_weight, padding = [False, True, False], [pad, pad]
    _, gradient, _ = torch.ops.aten.convolution_backward(
        features, image, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1, only_weight
    )
    return gradient.permute(2, 3, 1, 0)
