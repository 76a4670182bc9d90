"""Feature networks of inverted residual blocks with frozen weights, computed natively in bfloat16.

Weights are cast and laid out once; bias, ReLU6, residual add and the derivative of ReLU6 are part of the convolutions
(`frozen.cpp`), which make no padded copies; one operation of autograd stands for the whole network, and its backward
pass computes the gradient of the images alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm, computes_half
from velogan.kernels.native import bind
from velogan.kernels.norms import dense, empty, pointer
from velogan.types import forward_kind_of, has_hooks

_LANES = 16
_MOST_TAPS = 49  # of a depthwise convolution
_MOST_DEPTH = 112  # inputs of an output of the first convolution


class FrozenMaps(nn.Module):
    """`net`, of the form "maps", computed natively in bfloat16 under a bfloat16 autocast, otherwise as it is.

    Its results have no second derivatives.
    """

    def __init__(self, net: nn.Module, gemm: Bf16Gemm):
        super().__init__()
        self._net = [net]  # in a list, so that nobody takes its weights for this module's
        self._plan = _planned(net, gemm.library)

    def forward(self, images: Tensor) -> list[Tensor]:
        if not computes_half(images) or has_hooks(self._net[0]):
            return self._net[0](images)
        return list(_Maps.apply(images.float(), self._plan))  # pyright: ignore[reportArgumentType]


class FrozenMix(nn.Module):
    """`net`, of the form "mix", computed natively in bfloat16 under a bfloat16 autocast, otherwise as it is.

    Its results have no second derivatives.
    """

    def __init__(self, net: nn.Module, gemm: Bf16Gemm):
        super().__init__()
        self._net, self._library = [net], gemm.library  # in a list, so that nobody takes its weights for this module's
        self._packed = dict[tuple[str, int], tuple[object, _Pointwise]]()

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        finest, last = maps[0], len(maps) - 1
        if not computes_half(finest) or has_hooks(self._net[0]) or finest.device.type != "cpu":
            return self._net[0](maps)
        across = [self._point("across", number) for number in range(last + 1)]
        down = [self._point("down", number) for number in range(1, last + 1)]
        if any(point.inputs % 2 or point.outputs % 2 for point in across):
            return self._net[0](maps)
        return list(_Mix.apply(across, down, *(part.bfloat16() for part in maps)))  # pyright: ignore[reportArgumentType]

    def _point(self, way: Literal["across", "down"], number: int) -> _Pointwise:
        """Packed anew where a checkpoint has changed the weights."""
        weight = cast(Any, self._net[0]).weight(way, number)
        stamp = (weight.data_ptr(), weight._version)
        found = self._packed.get((way, number))
        if found is None or found[0] != stamp:
            found = self._packed[way, number] = (stamp, _Pointwise(weight.flatten(1), None, self._library))
        return found[1]


def fits_frozen(net: nn.Module) -> bool:
    """Whether `FrozenMaps` can compute `net`: frozen, of the form "maps", with numbers of channels that fit."""
    if forward_kind_of(net) != "maps" or any(weight.requires_grad or weight.is_meta for weight in net.parameters()):
        return False
    seen = cast(Any, net).net
    points = [conv for block in seen.blocks for conv in (block.expand, block.project) if conv is not None]
    return (
        all(conv.in_channels % 2 == conv.out_channels % 2 == 0 for conv in points)
        and all(b.depthwise.in_channels % _LANES == 0 and _taps(b.depthwise) <= _MOST_TAPS for b in seen.blocks)
        and seen.stem.out_channels % 2 == 0
        and seen.stem.in_channels * _taps(seen.stem) <= _MOST_DEPTH
    )


def _taps(conv: nn.Conv2d) -> int:
    return conv.kernel_size[0] * conv.kernel_size[1]


class _Pointwise:
    """A 1x1 convolution and what follows it; and the gradient of its input."""

    def __init__(self, weight: Tensor, bias: Tensor | None, library: ctypes.CDLL):
        """`weight`: `(outputs, inputs)`."""
        self.outputs, self.inputs = weight.shape
        self._weight, self._mirrored = _packed(weight.T), _packed(weight)
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self._run = bind(library, "frozen_pointwise", 6, 4)

    def __call__(self, x: Tensor, *, clip: bool = False, added: Tensor | None = None) -> Tensor:
        return self._product(x, self._weight, self.outputs, bias=self._bias, added=added, clip=clip)

    def back(self, g: Tensor, *, gate: Tensor | None = None, added: Tensor | None = None) -> Tensor:
        """`gate`: the input, where a ReLU6 made it; `added`: what else is a gradient of the input."""
        return self._product(g, self._mirrored, self.inputs, gate=gate, added=added)

    def _product(
        self,
        x: Tensor,
        weight: Tensor,
        outputs: int,
        *,
        bias: Tensor | None = None,
        gate: Tensor | None = None,
        added: Tensor | None = None,
        clip: bool = False,
    ) -> Tensor:
        n, inputs, h, w = x.shape
        made = empty(n, outputs, h, w, dtype=torch.bfloat16)
        pointers = [pointer(one) for one in (x, weight, bias, gate, added, made)]
        self._run(*pointers, n * h * w, inputs, outputs, clip, torch.get_num_threads())
        return made


class _Depthwise:
    """A convolution of each channel alone, with ReLU6; and the gradient of its input."""

    def __init__(self, conv: nn.Conv2d, library: ctypes.CDLL):
        self.kernel, self.stride = conv.kernel_size[0], conv.stride[0]
        self._weight = conv.weight.detach().float()[:, 0].permute(1, 2, 0).contiguous()
        self._bias = None if conv.bias is None else conv.bias.detach().float()
        self._run = bind(library, "frozen_depthwise", 5, 11)

    def __call__(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        made = empty(n, c, -(-h // self.stride), -(-w // self.stride), dtype=torch.bfloat16)
        self._go(x, made, bias=self._bias, gate=None, pads=self._pads(h, w))
        return made

    def back(self, g: Tensor, *, gate: Tensor) -> Tensor:
        """`gate`: the input, which a ReLU6 made."""
        made = empty(*gate.shape, dtype=torch.bfloat16)
        self._go(g, made, bias=None, gate=gate, pads=self._pads(*gate.shape[2:]))
        return made

    def _pads(self, h: int, w: int) -> tuple[int, int]:
        return _before(h, self.kernel, self.stride), _before(w, self.kernel, self.stride)

    def _go(self, x: Tensor, made: Tensor, *, bias: Tensor | None, gate: Tensor | None, pads: tuple[int, int]) -> None:
        (n, c, h, w), (rows, across) = x.shape, made.shape[2:]
        pointers = [pointer(one) for one in (x, self._weight, bias, gate, made)]
        sizes = (n, h, w, c, rows, across, self.kernel, self.stride, *pads, gate is not None)
        self._run(*pointers, *sizes, torch.get_num_threads())


class _Stem:
    """The first convolution, of float32 images times `scale` plus `shift`, with ReLU6; and the images' gradient."""

    def __init__(self, conv: nn.Conv2d, *, scale: float, shift: float, library: ctypes.CDLL):
        self.kernel, self.stride, self.scale, self.shift = conv.kernel_size[0], conv.stride[0], scale, shift
        flat = conv.weight.detach().permute(0, 2, 3, 1).flatten(1)
        flat = F.pad(flat, (0, flat.shape[1] % 2))  # products take pairs
        self._point, self._back, self.depth = _Pointwise(flat, conv.bias, library), _packed(flat), flat.shape[1]
        tensor, whole, real, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
        self._patches, self._gradient = library.frozen_patches, library.frozen_image_gradient
        self._patches.argtypes = [tensor] * 2 + [whole] * 11 + [real] * 2 + [flag]
        self._gradient.argtypes = [tensor] * 3 + [whole] * 12 + [real] + [flag]

    def __call__(self, images: Tensor) -> Tensor:
        n, _, h, w = images.shape
        patches = empty(n, self.depth, -(-h // self.stride), -(-w // self.stride), dtype=torch.bfloat16)
        sizes = (*self._sizes(images.shape, patches.shape), self.depth, self.scale, self.shift)
        self._patches(images.data_ptr(), patches.data_ptr(), *sizes, torch.get_num_threads())
        return self._point(patches, clip=True)

    def back(self, g: Tensor, shape: torch.Size) -> Tensor:
        made = empty(*shape, dtype=torch.float32)
        sizes = (*self._sizes(shape, g.shape), self.depth, g.shape[1], self.scale)
        self._gradient(g.data_ptr(), self._back.data_ptr(), made.data_ptr(), *sizes, torch.get_num_threads())
        return made

    def _sizes(self, shape: torch.Size, out: torch.Size) -> tuple[int, ...]:
        (n, c, h, w), (rows, across) = shape, out[2:]
        pads = (_before(h, self.kernel, self.stride), _before(w, self.kernel, self.stride))
        return n, h, w, c, rows, across, self.kernel, self.stride, *pads


@dataclass(frozen=True)
class _Inverted:
    expand: _Pointwise | None
    depthwise: _Depthwise
    project: _Pointwise
    skips: bool


@dataclass(frozen=True)
class _Plan:
    stem: _Stem
    blocks: tuple[_Inverted, ...]
    ends: tuple[int, ...]


@lru_cache(maxsize=2)
def _planned(net: nn.Module, library: ctypes.CDLL) -> _Plan:
    """Once for all discriminators that share a network."""
    images: Any = net  # an `efficientnet_lite.FeatureMaps`, or what has its attributes
    seen = images.net

    def pointwise(conv: nn.Conv2d) -> _Pointwise:
        return _Pointwise(conv.weight.detach().flatten(1), conv.bias, library)

    blocks = [
        _Inverted(
            expand=None if block.expand is None else pointwise(block.expand),
            depthwise=_Depthwise(block.depthwise, library),
            project=pointwise(block.project),
            skips=block.skips,
        )
        for block in seen.blocks
    ]
    return _Plan(_Stem(seen.stem, scale=images.scale, shift=images.shift, library=library), tuple(blocks), seen.ends)


def _packed(matrix: Tensor) -> Tensor:
    """A matrix `(k, columns)` as `frozen_pointwise` reads it: columns in vectors, of two rows each."""
    k, columns = matrix.shape
    wide = F.pad(matrix.detach().float(), (0, -columns % _LANES)).view(k // 2, 2, -1, _LANES)
    return wide.permute(2, 0, 3, 1).contiguous().bfloat16()


def _before(side: int, kernel: int, stride: int) -> int:
    """Zeros before a side in TensorFlow's padding "same"."""
    return max((-(-side // stride) - 1) * stride + kernel - side, 0) // 2


class _Maps(torch.autograd.Function):
    """Kept for the backward pass: the results of every ReLU6."""

    @staticmethod
    def forward(ctx, images: Tensor, plan: _Plan):
        x, kept, maps = plan.stem(dense(images)), list[Tensor](), list[Tensor]()
        for number, block in enumerate(plan.blocks):
            wide = x if block.expand is None else block.expand(x, clip=True)
            seen = block.depthwise(wide)
            kept += [wide, seen]
            x = block.project(seen, added=x if block.skips else None)
            if number in plan.ends:
                maps.append(x)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(*kept)
            ctx.plan, ctx.shape = plan, images.shape
        ctx.set_materialize_grads(False)
        return tuple(maps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        plan, kept = ctx.plan, list(ctx.saved_tensors)
        arriving = {end: None if g is None else dense(g.bfloat16()) for end, g in zip(plan.ends, grads)}
        g: Tensor | None = None
        for number in reversed(range(len(plan.blocks))):
            block, seen, wide = plan.blocks[number], kept.pop(), kept.pop()
            g = _sum(g, arriving.get(number))
            if g is None:  # no map after this block has a gradient
                continue
            inner = block.depthwise.back(block.project.back(g, gate=seen), gate=wide)
            g = inner if block.expand is None else block.expand.back(inner, added=g if block.skips else None)
        return None if g is None else plan.stem.back(g, ctx.shape), None


class _Mix(torch.autograd.Function):
    """`down[i]` leads from map i + 1 to map i."""

    @staticmethod
    def forward(ctx, across: list[_Pointwise], down: list[_Pointwise], *maps: Tensor):
        mixed: list[Tensor] = []
        for point, part in reversed(list(zip(across, maps))):
            above = None
            if mixed:
                above = F.interpolate(down[len(maps) - 1 - len(mixed)](mixed[-1]), size=part.shape[2:], mode="nearest")
            mixed.append(point(dense(part), added=None if above is None else dense(above)))
        ctx.across, ctx.down = across, down
        return tuple(reversed(mixed))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        made: list[Tensor] = []
        g = dense(grads[0])
        for number, point in enumerate(ctx.across):
            if number:
                size, coarse = g.shape[2:], grads[number].shape
                below = torch.ops.aten.upsample_nearest2d_backward(g, size, coarse)
                g = ctx.down[number - 1].back(dense(below), added=dense(grads[number]))
            made.append(point.back(g))
        return None, None, *made


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other
