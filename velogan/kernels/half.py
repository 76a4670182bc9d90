"""The convolutions of a network in autocast's type, with weights that are cast once for all passes of a phase; those of
a frozen network once for all.

Autocast casts each weight by itself, those of frozen networks in every pass, and autograd casts each gradient back and
adds up those of several passes one by one. Here all weights of a network are cast by one operation, and the gradients
of all passes become float32 by one, are added in float32, and have the layout of their weights.
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


def fits_half(layer: nn.Module) -> TypeGuard[Convolution]:
    """Whether `layer` is a convolution with weights of its own, and zeros or nothing around its input."""
    return (
        isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))
        and isinstance(layer._parameters.get("weight"), nn.Parameter)
        and not isinstance(layer.padding, str)
        and layer.padding_mode == "zeros"
    )


class FrozenHalf(nn.Module):
    """`net`, whose weights are frozen, over a copy of them in bfloat16, channels-last, under an autocast to bfloat16.

    Otherwise `net` itself. The bits are those of the autocast, which casts frozen weights again in every pass.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        half = copy.deepcopy(net).to(torch.bfloat16).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self._nets = [net, half]  # in a list, so that nobody takes their weights for this module's

    def forward(self, images: Tensor) -> Any:
        kind, (net, half) = images.device.type, self._nets
        if has_hooks(net) or not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.bfloat16:
            return net(images)
        return half(images.contiguous(memory_format=torch.channels_last))


class HalfConvolutions:
    """Makes steps of convolutions that share the casts of their weights.

    A cast lives as long as a pass, or a graph of a pass that autograd still needs: so all passes before a backward pass
    share it, and none after an update of the weights sees it.
    """

    def __init__(self) -> None:
        self._weights: list[Tensor] = []
        self._last: Callable[[], _Cast | None] = lambda: None

    def step(self, layer: Convolution, *, biased: bool) -> Callable[[Tensor], Tensor]:
        """`layer`, without its bias where not `biased`."""
        places: list[int | None] = []
        for parameter in (layer.weight, layer.bias if biased else None):
            places.append(None if parameter is None else len(self._weights))
            self._weights += [] if parameter is None else [parameter]
        transposed = isinstance(layer, nn.ConvTranspose2d)
        geometry: list[Any] = [layer.stride, layer.padding, layer.dilation, transposed, layer.output_padding]
        geometry.append(layer.groups)

        def convolve(x: Tensor) -> Tensor:
            if not torch.is_autocast_enabled(x.device.type):
                return torch.convolution(x, layer.weight, layer.bias if biased else None, *geometry)
            cast = self._cast(torch.get_autocast_dtype(x.device.type), shared=True)
            return _Convolve.apply(x.to(cast.dtype), cast.trigger, cast, places, geometry)  # pyright: ignore[reportReturnType]

        return convolve

    def for_a_pass(self, x: Tensor) -> AbstractContextManager[object]:
        """Keeps the cast of the weights until the pass of `x` is over."""
        kind = x.device.type
        autocast = torch.is_autocast_enabled(kind) and self._weights
        shared = torch.is_autocast_cache_enabled()  # streams do not share what autocast casts, nor this
        return nullcontext(self._cast(torch.get_autocast_dtype(kind), shared=shared) if autocast else None)

    def _cast(self, dtype: torch.dtype, *, shared: bool) -> _Cast:
        asked = dtype, [weight._version for weight in self._weights], _trained(self._weights), _stream(self._weights)
        last = self._last()
        if shared and last is not None and last.asked == asked:
            return last
        made = _Cast(self._weights, dtype, asked)
        self._last = weakref.ref(made)
        return made


def _trained(weights: Sequence[Tensor]) -> list[bool]:
    return [torch.is_grad_enabled() and weight.requires_grad for weight in weights]


def _stream(weights: Sequence[Tensor]) -> int:
    """The stream of a pass: nothing else orders gradients that passes on several streams leave in one cast."""
    return torch.cuda.current_stream(weights[0].device).cuda_stream if weights[0].is_cuda else 0


class _Cast:
    """All weights in another type. `trigger` has, for autograd, been computed from those that are trained."""

    def __init__(self, weights: Sequence[Tensor], dtype: torch.dtype, asked: object):
        self.dtype, self.asked = dtype, asked
        self.halves = [torch.empty_like(weight, dtype=dtype, requires_grad=False) for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(self.halves, list(weights))
        self.trained = _trained(weights)
        self.gradients: list[list[Tensor]] = [[] for _ in weights]
        given = [weight for weight, trained in zip(weights, self.trained) if trained]
        mine = [gradients for gradients, trained in zip(self.gradients, self.trained) if trained]
        self.trigger: Tensor | None = _Begin.apply(mine, *given) if given else None  # pyright: ignore[reportAttributeAccessIssue]


class _Begin(torch.autograd.Function):
    """Comes last in the backward pass, when all convolutions have left their gradients."""

    @staticmethod
    def forward(ctx, gradients: list[list[Tensor]], *weights: Tensor):
        ctx.gradients = gradients  # not the cast, which holds the result: its end is that of the graph
        ctx.weights = weights
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=weights[0].device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *_: None):
        summed = _summed(ctx.gradients, ctx.weights)
        for left in ctx.gradients:
            left.clear()
        return None, *summed


def _summed(gradients: Sequence[list[Tensor]], weights: Sequence[Tensor]) -> list[Tensor | None]:
    """The sums over all passes, in the type and layout of the weights; None where there is no gradient."""
    sums: list[Tensor | None] = [torch.empty_like(w) if left else None for left, w in zip(gradients, weights)]
    for number in range(max(map(len, gradients))):
        those = [
            (total, left[number]) for total, left in zip(sums, gradients) if total is not None and number < len(left)
        ]
        totals, parts = [total for total, _ in those], [_like(part, total) for total, part in those]
        if number:
            more = [torch.empty_like(total) for total in totals]
            torch._foreach_copy_(more, parts)
            torch._foreach_add_(totals, more)
        else:
            torch._foreach_copy_(totals, parts)
    return sums


def _like(part: Tensor, total: Tensor) -> Tensor:
    """`part` with the strides of `total`, so that both are walked by one kernel."""
    if part.stride() == total.stride():
        return part
    return torch.empty_like(total, dtype=part.dtype).copy_(part)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, trigger: Tensor | None, cast: _Cast, places: list[int | None], geometry: list[Any]):
        ctx.save_for_backward(x)
        ctx.cast, ctx.places, ctx.geometry = cast, places, geometry
        weight, bias = (None if place is None else cast.halves[place] for place in places)
        return torch.convolution(x, weight, bias, *geometry)  # pyright: ignore[reportArgumentType, reportCallIssue]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        (x,) = ctx.saved_tensors
        weight = ctx.cast.halves[ctx.places[0]]
        sizes = None if ctx.places[1] is None else [grads[0].shape[1]]
        wanted = [place is not None and ctx.cast.trained[place] for place in ctx.places]
        dx, *parts = torch.ops.aten.convolution_backward(
            grads[0], x, weight, sizes, *ctx.geometry, [ctx.needs_input_grad[0], *wanted]
        )
        for place, part, asked in zip(ctx.places, parts, wanted):
            if asked:
                ctx.cast.gradients[place].append(part)
        return dx, None, None, None, None
