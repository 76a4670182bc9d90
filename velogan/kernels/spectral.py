"""Heads of spectrally normalised convolutions as one operation of autograd, in bfloat16 (`spectral.cpp`).

Such a head is small: with torch's own layers most of its time goes into normalising weights and into overhead.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import is_parametrized

from velogan.kernels.bf16_gemm import Bf16Gemm, computes_half
from velogan.kernels.conv_weight_grad import fits_conv_weight_grad
from velogan.kernels.norms import dense, empty
from velogan.types import hooked


class SpectralHead(nn.Module):
    """`net`, a convolution, a leaky ReLU and a convolution, computed as one operation in bfloat16, otherwise as it is.

    In training each call improves the estimates of the singular values in `net`, as its own call does. No second
    derivatives.
    """

    def __init__(self, net: nn.Sequential, gemm: Bf16Gemm):
        super().__init__()
        self._net = [net]  # in a list, so that only the plain network registers the weights
        first, activation, second = (cast(Any, layer) for layer in net)
        one, two = _Spectral(first, gemm.library), _Spectral(second, gemm.library)
        self._layers = _Layers(one, activation.negative_slope, two, gemm)

    def forward(self, x: Tensor) -> Tensor:
        net = self._net[0]
        if not computes_half(x) or any(map(hooked, (net, *net))):
            return net(x)
        first, _, second, _ = self._layers
        weights = [first.original, first.conv.bias, second.original, second.conv.bias]
        return _Head.apply(x.bfloat16(), self._layers, *weights)  # pyright: ignore[reportReturnType]


def fits_head(net: nn.Module) -> bool:
    """Whether `SpectralHead` can compute `net`: its layers, spectrally normalised by torch, and no hook on them."""
    if not isinstance(net, nn.Sequential) or len(net) != 3 or any(map(hooked, (net, *net))):
        return False
    first, activation, second = net
    spectral = _is_spectral(first) and fits_conv_weight_grad(first) and _is_spectral(second)
    return spectral and type(activation) is nn.LeakyReLU


def _is_spectral(layer: nn.Module) -> bool:
    """Whether `layer` is a `Conv2d` with torch's `spectral_norm`, of zero padding, on the CPU, channels-last."""
    if not isinstance(layer, nn.Conv2d) or not is_parametrized(layer) or layer.padding_mode != "zeros":
        return False
    by_name: Any = layer.parametrizations
    if set(by_name) != {"weight"} or len(by_name["weight"]) != 1 or layer.groups != 1 or layer.bias is None:
        return False
    norm, weight = by_name["weight"][0], by_name["weight"].original
    return (
        isinstance(norm, _SpectralNorm)
        and (norm.dim, norm.n_power_iterations) == (0, 1)
        and not isinstance(layer.padding, str)
        and (weight.device.type, weight.dtype) == ("cpu", torch.float32)
        and weight.permute(0, 2, 3, 1).is_contiguous()
        and norm._u.is_contiguous()
        and norm._v.is_contiguous()
    )


class _Normalised(NamedTuple):
    """Weights over `sigma`, bfloat16, and what their gradient needs."""

    weight: Tensor
    u: Tensor
    v: Tensor
    sigma: Tensor


class _Spectral:
    """A spectrally normalised convolution."""

    def __init__(self, conv: nn.Conv2d, library: ctypes.CDLL):
        self.conv = conv
        self.geometry: list[Any] = [conv.stride, conv.padding, conv.dilation, False, [0, 0], 1]
        by_name: Any = conv.parametrizations
        self._list = by_name["weight"]
        self._forward, self._backward = library.spectral_weights, library.spectral_gradient
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        self._forward.argtypes = [pointer] * 7 + [whole] * 4 + [ctypes.c_float]
        self._backward.argtypes = [pointer] * 6 + [whole] * 2

    @property
    def original(self) -> Tensor:
        return self._list.original

    def normalised(self) -> _Normalised:
        weight, norm = self.original.detach(), self._list[0]
        outputs, channels, height, width = weight.shape
        half = empty(*weight.shape, dtype=torch.bfloat16)
        made = _Normalised(half, torch.empty_like(norm._u), torch.empty_like(norm._v), torch.empty(()))
        pointers = [one.data_ptr() for one in (weight, norm._u, norm._v, made.u, made.v, made.weight, made.sigma)]
        self._forward(*pointers, outputs, height * width, channels, norm.training, norm.eps)
        return made

    def gradient(self, g: Tensor, made: _Normalised, weight: Tensor) -> Tensor:
        """The gradient of `weight`, the original, from that of the normalised weights."""
        g, out = dense(g.float()), empty(*weight.shape, dtype=torch.float32)
        pointers = [one.data_ptr() for one in (g, weight, made.u, made.v, made.sigma, out)]
        self._backward(*pointers, len(g), g[0].numel())
        return out


class _Layers(NamedTuple):
    first: _Spectral
    slope: float
    second: _Spectral
    gemm: Bf16Gemm


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, layers: _Layers, *weights: Tensor):
        one, two = layers.first.normalised(), layers.second.normalised()
        x, bias, last_bias = dense(x), weights[1].bfloat16(), weights[3].bfloat16()
        inner = torch.convolution(x, one.weight, bias, *layers.first.geometry)
        inner = torch.nn.functional.leaky_relu_(inner, layers.slope)
        ctx.layers = layers
        ctx.save_for_backward(x, inner, weights[0], weights[2], *one, *two)
        return torch.convolution(inner, two.weight, last_bias, *layers.second.geometry)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        x, inner, weight, last_weight, *made = ctx.saved_tensors
        one, two = _Normalised(*made[:4]), _Normalised(*made[4:])
        (first, slope, second, gemm), (wants_x, _, *wanted) = ctx.layers, ctx.needs_input_grad
        backward = torch.ops.aten.convolution_backward
        g = dense(grads[0])
        g, last, last_bias = backward(g, inner, two.weight, [len(two.u)], *second.geometry, [True, *wanted[2:]])
        last = second.gradient(last, two, last_weight) if wanted[2] else None
        g = dense(torch.ops.aten.leaky_relu_backward(g, inner, slope, True))
        dweight = None
        if wanted[0]:
            (side, _), (stride, _), (padding, _) = first.conv.kernel_size, first.conv.stride, first.conv.padding
            found = gemm.weight_gradient(x, g, kernel=side, stride=stride, padding=padding)
            dweight = first.gradient(found, one, weight)
        bias = g.sum((0, 2, 3), dtype=torch.float32) if wanted[1] else None
        dx = backward(g, x, one.weight, None, *first.geometry, [True, False, False])[0] if wants_x else None
        return dx, None, dweight, bias, last, last_bias
