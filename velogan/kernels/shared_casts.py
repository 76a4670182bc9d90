"""Compute convolutions in autocast's type with weights that are cast once per phase, or once for a frozen network.

Autocast casts each weight separately, and those of frozen networks in every pass; autograd casts each gradient back and
adds those of several passes one by one. Here one operation casts all weights of a network, and one casts the gradients
of all convolutions of a pass to float32, in which they are added, in the layout of their weights.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from velogan.types import has_hooks

Convolution = nn.Conv2d | nn.ConvTranspose2d


def fits_shared_cast(layer: nn.Module) -> TypeGuard[Convolution]:
    """Return whether `layer` is a convolution with weights of its own, and zero padding or none."""
    return (
        isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))
        and isinstance(layer._parameters.get("weight"), nn.Parameter)
        and not isinstance(layer.padding, str)
        and layer.padding_mode == "zeros"
    )


class FrozenBf16(nn.Module):
    """`net` with frozen weights: under an autocast to bfloat16 it uses a bfloat16, channels-last copy of them.

    Otherwise `net` itself runs. The results are the same bits as with the autocast, which casts frozen weights again in
    every pass.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        bf16_net = copy.deepcopy(net).to(torch.bfloat16).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self._nets = [net, bf16_net]  # in a list, so that their weights are not registered here

    def forward(self, images: Tensor) -> Any:
        device, (net, bf16_net) = images.device.type, self._nets
        in_bf16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
        if has_hooks(net) or not in_bf16:
            return net(images)
        return bf16_net(images.contiguous(memory_format=torch.channels_last))


class SharedCastConvolutions:
    """Builds steps of convolutions that share the casts of their weights.

    A cast is kept alive by the current forward pass or by an autograd graph that still needs it. Passes before the next
    weight update share it.
    """

    def __init__(self) -> None:
        self._weights: list[Tensor] = []
        self._last: Callable[[], _Cast | None] = lambda: None

    def step(self, layer: Convolution, *, has_bias: bool) -> Callable[[Tensor], Tensor]:
        """Return a function that computes `layer`, with its bias if `has_bias`."""
        indices: list[int | None] = []
        for parameter in (layer.weight, layer.bias if has_bias else None):
            indices.append(None if parameter is None else len(self._weights))
            self._weights += [] if parameter is None else [parameter]
        transposed = isinstance(layer, nn.ConvTranspose2d)
        geometry: list[Any] = [layer.stride, layer.padding, layer.dilation, transposed, layer.output_padding]
        geometry.append(layer.groups)

        def convolve(x: Tensor) -> Tensor:
            if not torch.is_autocast_enabled(x.device.type):
                return torch.convolution(x, layer.weight, layer.bias if has_bias else None, *geometry)
            cast = self._cast(torch.get_autocast_dtype(x.device.type), shared=True)
            return _Convolve.apply(x.to(cast.dtype), cast.autograd_anchor, cast, indices, geometry)  # pyright: ignore[reportReturnType]

        return convolve

    def hold_casts(self, x: Tensor) -> AbstractContextManager[object]:
        """Return a context that keeps the cast of the weights alive during the pass of `x`."""
        device = x.device.type
        is_cast = torch.is_autocast_enabled(device) and self._weights
        shared = torch.is_autocast_cache_enabled()  # streams do not share autocast's casts, nor these
        return nullcontext(self._cast(torch.get_autocast_dtype(device), shared=shared) if is_cast else None)

    def _cast(self, dtype: torch.dtype, *, shared: bool) -> _Cast:
        versions = [weight._version for weight in self._weights]
        key = dtype, versions, _needs_gradients(self._weights), _stream(self._weights)
        last = self._last()
        if shared and last is not None and last.cache_key == key:
            return last
        cast = _Cast(self._weights, dtype, key)
        self._last = weakref.ref(cast)
        return cast


def _needs_gradients(weights: Sequence[Tensor]) -> list[bool]:
    return [torch.is_grad_enabled() and weight.requires_grad for weight in weights]


def _stream(weights: Sequence[Tensor]) -> int:
    """Return the stream of a pass: passes on several streams must not share a cast, which does not synchronise them."""
    return torch.cuda.current_stream(weights[0].device).cuda_stream if weights[0].is_cuda else 0


class _Cast:
    """All weights of a network, cast to another type.

    autograd_anchor: an empty tensor that autograd takes for computed from the trained weights, so that `_Anchor` runs
        last in the backward pass
    gradients: by weight, those of the convolutions so far
    """

    def __init__(self, weights: Sequence[Tensor], dtype: torch.dtype, cache_key: object):
        self.dtype, self.cache_key = dtype, cache_key
        self.low_precision_weights = [torch.empty_like(weight, dtype=dtype, requires_grad=False) for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(self.low_precision_weights, list(weights))
        self.needs_gradients = _needs_gradients(weights)
        self.gradients: list[list[Tensor]] = [[] for _ in weights]
        trained = [weight for weight, needed in zip(weights, self.needs_gradients) if needed]
        gradients = [gradients for gradients, needed in zip(self.gradients, self.needs_gradients) if needed]
        self.autograd_anchor: Tensor | None = _Anchor.apply(gradients, *trained) if trained else None  # pyright: ignore[reportAttributeAccessIssue]


class _Anchor(torch.autograd.Function):
    """Runs last in the backward pass, when all convolutions have stored their gradients, and sums them."""

    @staticmethod
    def forward(ctx, gradients: list[list[Tensor]], *weights: Tensor):
        ctx.gradients = gradients  # not the cast, which holds the result: a cycle would keep both alive
        ctx.weights = weights
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=weights[0].device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *_: None):
        sums = _sum_over_passes(ctx.gradients, ctx.weights)
        for stored in ctx.gradients:
            stored.clear()
        return None, *sums


def _sum_over_passes(gradients: Sequence[list[Tensor]], weights: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the sums over all passes, in the type and layout of the weights; None if there is no gradient."""
    sums: list[Tensor | None] = [torch.empty_like(w) if stored else None for stored, w in zip(gradients, weights)]
    for index in range(max(map(len, gradients))):
        pairs = [
            (total, stored[index])
            for total, stored in zip(sums, gradients)
            if total is not None and index < len(stored)
        ]
        totals, parts = [total for total, _ in pairs], [_with_strides_of(total, part) for total, part in pairs]
        if index:
            cast_parts = [torch.empty_like(total) for total in totals]
            torch._foreach_copy_(cast_parts, parts)
            torch._foreach_add_(totals, cast_parts)
        else:
            torch._foreach_copy_(totals, parts)
    return sums


def _with_strides_of(total: Tensor, part: Tensor) -> Tensor:
    """Return `part` with the strides of `total`, so that one kernel processes both."""
    if part.stride() == total.stride():
        return part
    return torch.empty_like(total, dtype=part.dtype).copy_(part)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, anchor: Tensor | None, cast: _Cast, indices: list[int | None], geometry: list[Any]):
        ctx.save_for_backward(x)
        ctx.cast, ctx.indices, ctx.geometry = cast, indices, geometry
        weight, bias = (None if index is None else cast.low_precision_weights[index] for index in indices)
        return torch.convolution(x, weight, bias, *geometry)  # pyright: ignore[reportArgumentType, reportCallIssue]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        (x,) = ctx.saved_tensors
        weight = ctx.cast.low_precision_weights[ctx.indices[0]]
        bias_sizes = None if ctx.indices[1] is None else [grads[0].shape[1]]
        needed = [index is not None and ctx.cast.needs_gradients[index] for index in ctx.indices]
        dx, *parts = torch.ops.aten.convolution_backward(
            grads[0], x, weight, bias_sizes, *ctx.geometry, [ctx.needs_input_grad[0], *needed]
        )
        for index, part, is_needed in zip(ctx.indices, parts, needed):
            if is_needed:
                ctx.cast.gradients[index].append(part)
        return dx, None, None, None, None
