"""Compute frozen feature networks, made of inverted residual blocks, natively in bfloat16.

Weights are cast and packed once. Bias, ReLU6, residual add and the derivative of ReLU6 are part of the convolutions
(`frozen.cpp`), which need no padded copies. One autograd operation represents the complete network, and its backward
pass computes the gradient of the images only.
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

from velogan.kernels.bf16_gemm import Bf16Gemm, computes_in_bf16
from velogan.kernels.native import bind
from velogan.kernels.norms import data_pointer, empty_channels_last, to_channels_last
from velogan.types import forward_kind_of, has_hooks

_LANES = 16
_MAX_AREA = 49  # of a depthwise convolution
_MAX_STEM_INPUTS = 112  # inputs of each output of the first convolution


class FrozenExtractor(nn.Module):
    """Computes the feature network `net` natively under a bfloat16 autocast, else calls it; no second derivatives."""

    def __init__(self, net: nn.Module, gemm: Bf16Gemm):
        super().__init__()
        self._net = [net]  # in a list, so that its weights are not registered here
        self._network = _pack_network(net, gemm.library)

    def forward(self, images: Tensor) -> list[Tensor]:
        if not computes_in_bf16(images) or has_hooks(self._net[0]):
            return self._net[0](images)
        return list(_Maps.apply(images.float(), self._network))  # pyright: ignore[reportArgumentType]


class FrozenMix(nn.Module):
    """Mixes feature maps like `net`, natively under a bfloat16 autocast, else by calling it; no second derivatives."""

    def __init__(self, net: nn.Module, gemm: Bf16Gemm):
        super().__init__()
        self._net, self._library = [net], gemm.library  # in a list, so that its weights are not registered here
        self._packed = dict[tuple[str, int], tuple[object, _Pointwise]]()

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        finest, last = maps[0], len(maps) - 1
        if not computes_in_bf16(finest) or has_hooks(self._net[0]) or finest.device.type != "cpu":
            return self._net[0](maps)
        across = [self._pointwise("across", number) for number in range(last + 1)]
        down = [self._pointwise("down", number) for number in range(1, last + 1)]
        if any(point.inputs % 2 or point.outputs % 2 for point in across):
            return self._net[0](maps)
        return list(_Mix.apply(across, down, *(x.bfloat16() for x in maps)))  # pyright: ignore[reportArgumentType]

    def _pointwise(self, kind: Literal["across", "down"], number: int) -> _Pointwise:
        """Return the packed 1x1 convolution `kind` of map `number`; pack it again if its weights have changed."""
        weight = cast(Any, self._net[0]).weight(kind, number)
        version = (weight.data_ptr(), weight._version)
        entry = self._packed.get((kind, number))
        if entry is None or entry[0] != version:
            entry = self._packed[kind, number] = (version, _Pointwise(weight.flatten(1), None, self._library))
        return entry[1]


def fits_frozen(net: nn.Module) -> bool:
    """Return whether `FrozenExtractor` supports `net`: a frozen feature network with supported channels and kernels."""
    if forward_kind_of(net) != "maps" or any(weight.requires_grad or weight.is_meta for weight in net.parameters()):
        return False
    features = cast(Any, net).net
    points = [conv for block in features.blocks for conv in (block.expand, block.project) if conv is not None]
    return (
        all(conv.in_channels % 2 == conv.out_channels % 2 == 0 for conv in points)
        and all(b.depthwise.in_channels % _LANES == 0 and _area(b.depthwise) <= _MAX_AREA for b in features.blocks)
        and features.stem.out_channels % 2 == 0
        and features.stem.in_channels * _area(features.stem) <= _MAX_STEM_INPUTS
    )


def _area(conv: nn.Conv2d) -> int:
    return conv.kernel_size[0] * conv.kernel_size[1]


class _Pointwise:
    """A 1x1 convolution, with an optional ReLU6 or residual add after it, and the gradient of its input."""

    def __init__(self, weight: Tensor, bias: Tensor | None, library: ctypes.CDLL):
        """Pack the weights, `(outputs, inputs)`."""
        self.outputs, self.inputs = weight.shape
        self._weight, self._transposed = _pack(weight.T), _pack(weight)
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self._run = bind(library, "frozen_pointwise", 6, 4)

    def __call__(self, x: Tensor, *, relu6: bool = False, residual: Tensor | None = None) -> Tensor:
        return self._multiply(x, self._weight, self.outputs, bias=self._bias, addend=residual, relu6=relu6)

    def input_gradient(
        self, grad_out: Tensor, *, relu6_output: Tensor | None = None, accumulate: Tensor | None = None
    ) -> Tensor:
        """Return the gradient of the input.

        relu6_output: the input, if it is the output of a ReLU6, whose derivative is then included
        accumulate: another gradient of the input, which is added
        """
        return self._multiply(grad_out, self._transposed, self.inputs, relu6_output=relu6_output, addend=accumulate)

    def _multiply(
        self,
        x: Tensor,
        weight: Tensor,
        outputs: int,
        *,
        bias: Tensor | None = None,
        relu6_output: Tensor | None = None,
        addend: Tensor | None = None,
        relu6: bool = False,
    ) -> Tensor:
        n, inputs, h, w = x.shape
        out = empty_channels_last(n, outputs, h, w, dtype=torch.bfloat16)
        pointers = [data_pointer(tensor) for tensor in (x, weight, bias, relu6_output, addend, out)]
        self._run(*pointers, n * h * w, inputs, outputs, relu6, torch.get_num_threads())
        return out


class _Depthwise:
    """A depthwise convolution with a ReLU6 after it, and the gradient of its input."""

    def __init__(self, conv: nn.Conv2d, library: ctypes.CDLL):
        self.kernel, self.stride = conv.kernel_size[0], conv.stride[0]
        self._weight = conv.weight.detach().float()[:, 0].permute(1, 2, 0).contiguous()
        self._bias = None if conv.bias is None else conv.bias.detach().float()
        self._run = bind(library, "frozen_depthwise", 5, 11)

    def __call__(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        out = empty_channels_last(n, c, -(-h // self.stride), -(-w // self.stride), dtype=torch.bfloat16)
        self._launch(x, out, bias=self._bias, relu6_output=None, pads=self._pads(h, w))
        return out

    def input_gradient(self, grad_out: Tensor, *, relu6_output: Tensor) -> Tensor:
        """Return the gradient of the input `relu6_output`, the output of a ReLU6, whose derivative is included."""
        out = empty_channels_last(*relu6_output.shape, dtype=torch.bfloat16)
        self._launch(grad_out, out, bias=None, relu6_output=relu6_output, pads=self._pads(*relu6_output.shape[2:]))
        return out

    def _pads(self, h: int, w: int) -> tuple[int, int]:
        return _padding_before(h, self.kernel, self.stride), _padding_before(w, self.kernel, self.stride)

    def _launch(
        self, x: Tensor, out: Tensor, *, bias: Tensor | None, relu6_output: Tensor | None, pads: tuple[int, int]
    ) -> None:
        (n, c, h, w), (rows, columns) = x.shape, out.shape[2:]
        pointers = [data_pointer(tensor) for tensor in (x, self._weight, bias, relu6_output, out)]
        sizes = (n, h, w, c, rows, columns, self.kernel, self.stride, *pads, relu6_output is not None)
        self._run(*pointers, *sizes, torch.get_num_threads())


class _Stem:
    """The first convolution, of float32 images * `scale` + `shift`, with a ReLU6, and the gradient of the images."""

    def __init__(self, conv: nn.Conv2d, *, scale: float, shift: float, library: ctypes.CDLL):
        self.kernel, self.stride = conv.kernel_size[0], conv.stride[0]
        self.scale, self.shift = scale, shift
        flat = conv.weight.detach().permute(0, 2, 3, 1).flatten(1)
        flat = F.pad(flat, (0, flat.shape[1] % 2))  # matrix products read pairs
        self._pointwise, self._transposed = _Pointwise(flat, conv.bias, library), _pack(flat)
        self.depth = flat.shape[1]
        tensor, size = ctypes.c_void_p, ctypes.c_int64
        real, flag = ctypes.c_float, ctypes.c_int
        self._patches, self._gradient = library.frozen_patches, library.frozen_image_gradient
        self._patches.argtypes = [tensor] * 2 + [size] * 11 + [real] * 2 + [flag]
        self._gradient.argtypes = [tensor] * 3 + [size] * 12 + [real] + [flag]

    def __call__(self, images: Tensor) -> Tensor:
        n, _, h, w = images.shape
        patches = empty_channels_last(n, self.depth, -(-h // self.stride), -(-w // self.stride), dtype=torch.bfloat16)
        sizes = (*self._sizes(images.shape, patches.shape), self.depth, self.scale, self.shift)
        self._patches(images.data_ptr(), patches.data_ptr(), *sizes, torch.get_num_threads())
        return self._pointwise(patches, relu6=True)

    def input_gradient(self, grad_out: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradient of the images, which have `shape`."""
        out = empty_channels_last(*shape, dtype=torch.float32)
        sizes = (*self._sizes(shape, grad_out.shape), self.depth, grad_out.shape[1], self.scale)
        pointers = (grad_out.data_ptr(), self._transposed.data_ptr(), out.data_ptr())
        self._gradient(*pointers, *sizes, torch.get_num_threads())
        return out

    def _sizes(self, shape: torch.Size, out: torch.Size) -> tuple[int, ...]:
        (n, c, h, w), (rows, columns) = shape, out[2:]
        pads = (_padding_before(h, self.kernel, self.stride), _padding_before(w, self.kernel, self.stride))
        return n, h, w, c, rows, columns, self.kernel, self.stride, *pads


@dataclass(frozen=True)
class _InvertedBlock:
    expand: _Pointwise | None
    depthwise: _Depthwise
    project: _Pointwise
    skips: bool


@dataclass(frozen=True)
class _PackedNetwork:
    stem: _Stem
    blocks: tuple[_InvertedBlock, ...]
    map_blocks: tuple[int, ...]
    """Indices of the blocks whose outputs are the feature maps."""


@lru_cache(maxsize=2)
def _pack_network(net: nn.Module, library: ctypes.CDLL) -> _PackedNetwork:
    """Return the packed network, cached for all discriminators that share it."""
    maps: Any = net  # an `efficientnet_lite.FeatureExtractor`, or a module with its attributes
    features = maps.net

    def pointwise(conv: nn.Conv2d) -> _Pointwise:
        return _Pointwise(conv.weight.detach().flatten(1), conv.bias, library)

    blocks = [
        _InvertedBlock(
            expand=None if block.expand is None else pointwise(block.expand),
            depthwise=_Depthwise(block.depthwise, library),
            project=pointwise(block.project),
            skips=block.skips,
        )
        for block in features.blocks
    ]
    return _PackedNetwork(
        _Stem(features.stem, scale=maps.scale, shift=maps.shift, library=library), tuple(blocks), features.last_blocks
    )


def _pack(matrix: Tensor) -> Tensor:
    """Pack a matrix `(k, columns)` for `frozen_pointwise`: 16 columns at a time, with pairs of rows interleaved."""
    k, columns = matrix.shape
    wide = F.pad(matrix.detach().float(), (0, -columns % _LANES)).view(k // 2, 2, -1, _LANES)
    return wide.permute(2, 0, 3, 1).contiguous().bfloat16()


def _padding_before(side: int, kernel: int, stride: int) -> int:
    """Return the number of zeros before the first pixel of a side under TensorFlow's padding "same"."""
    return max((-(-side // stride) - 1) * stride + kernel - side, 0) // 2


class _Maps(torch.autograd.Function):
    """One operation for a packed network; it saves the output of every ReLU6 for the backward pass."""

    @staticmethod
    def forward(ctx, images: Tensor, network: _PackedNetwork):
        x = network.stem(to_channels_last(images))
        saved, maps = list[Tensor](), list[Tensor]()
        for number, block in enumerate(network.blocks):
            expanded = x if block.expand is None else block.expand(x, relu6=True)
            filtered = block.depthwise(expanded)
            saved += [expanded, filtered]
            x = block.project(filtered, residual=x if block.skips else None)
            if number in network.map_blocks:
                maps.append(x)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(*saved)
            ctx.network, ctx.shape = network, images.shape
        ctx.set_materialize_grads(False)
        return tuple(maps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        network, saved = ctx.network, list(ctx.saved_tensors)
        map_gradients = {
            number: None if g is None else to_channels_last(g.bfloat16())
            for number, g in zip(network.map_blocks, grads)
        }
        g: Tensor | None = None
        for number, block in reversed(list(enumerate(network.blocks))):
            filtered, expanded = saved.pop(), saved.pop()
            if (extra := map_gradients.get(number)) is not None:
                g = extra if g is None else g + extra
            if g is None:  # no map after this block has a gradient
                continue
            inner = block.project.input_gradient(g, relu6_output=filtered)
            inner = block.depthwise.input_gradient(inner, relu6_output=expanded)
            if block.expand is not None:
                inner = block.expand.input_gradient(inner, accumulate=g if block.skips else None)
            g = inner
        return None if g is None else network.stem.input_gradient(g, ctx.shape), None


class _Mix(torch.autograd.Function):
    """One operation for the mixing of maps: map i becomes across[i](map i) + upsampled down[i](mixed map i + 1)."""

    @staticmethod
    def forward(ctx, across: list[_Pointwise], down: list[_Pointwise], *maps: Tensor):
        mixed: list[Tensor] = []
        for point, feature_map in reversed(list(zip(across, maps))):
            coarser = None
            if mixed:
                coarser = down[len(maps) - 1 - len(mixed)](mixed[-1])
                coarser = to_channels_last(F.interpolate(coarser, size=feature_map.shape[2:], mode="nearest"))
            mixed.append(point(to_channels_last(feature_map), residual=coarser))
        ctx.across, ctx.down = across, down
        return tuple(reversed(mixed))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        gradients: list[Tensor] = []
        g = to_channels_last(grads[0])
        for number, point in enumerate(ctx.across):
            if number:
                size, coarse = g.shape[2:], grads[number].shape
                below = torch.ops.aten.upsample_nearest2d_backward(g, size, coarse)
                below = to_channels_last(below)
                g = ctx.down[number - 1].input_gradient(below, accumulate=to_channels_last(grads[number]))
            gradients.append(point.input_gradient(g))
        return None, None, *gradients
