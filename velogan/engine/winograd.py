"""A 3x3 convolution in bfloat16 with four ninths of the multiplications, for CPUs whose matrix units are busy with it.

Winograd's F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308): image and weights are transformed, multiplied place by
place, and transformed back. Rounding to bfloat16 costs it little more than the plain convolution.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor, nn

from velogan.engine.native import load_library

_TILES = 256  # at a time, so that what lies between the transforms stays in the cache


def load_transforms(cache: Path) -> Transforms | None:
    """The transforms, built into `cache` if they are not there yet; None where they cannot be."""
    library = load_library(Path(__file__).with_name("winograd.cpp"), cache)
    return None if library is None else Transforms(library)


def fits_winograd(layer: nn.Module) -> bool:
    """Whether `layer` is a convolution that `WinogradConv2d` can stand for and may be faster at."""
    return (
        isinstance(layer, nn.Conv2d)
        and (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == ((3, 3), (1, 1), (0, 0), (1, 1))
        and layer.groups == 1
        and min(layer.in_channels, layer.out_channels) >= 64
    )


class Transforms:
    """The compiled library. Images are dense channels-last bfloat16."""

    def __init__(self, library: ctypes.CDLL):
        pointer, whole, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        self._input, self._output = library.winograd_input, library.winograd_output
        self._input.argtypes = [pointer] * 3 + [whole] * 6 + [flag]
        self._output.argtypes = [pointer] * 4 + [whole] * 6 + [flag]

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """`(N, C, H, W)` to `(N, O, H - 2, W - 2)`; `weight` as `transform_weight` gives it, `bias` `(O,)` float32."""
        n, c, h, w = x.shape
        o = weight.shape[2]
        x = x.contiguous(memory_format=torch.channels_last)
        out = torch.empty((n, h - 2, w - 2, o), dtype=torch.bfloat16)
        down, across = (h - 1) // 2, (w - 1) // 2
        rows = min(down, max(1, _TILES // across))
        before, after = (torch.empty(16 * rows * across * k, dtype=torch.bfloat16) for k in (c, o))
        zeros, spare = torch.zeros(c, dtype=torch.bfloat16), torch.empty(4 * rows * o, dtype=torch.bfloat16)
        threads = torch.get_num_threads()
        for image in range(n):
            source, target = x[image].data_ptr(), out[image].data_ptr()
            for first in range(0, down, rows):
                count = min(rows, down - first)
                v, m = (flat[: 16 * count * across * k].view(16, -1, k) for flat, k in ((before, c), (after, o)))
                self._input(source, v.data_ptr(), zeros.data_ptr(), h, w, c, first, count, across, threads)
                torch.bmm(v, weight, out=m)
                edges = (h - 2, w - 2, o, first, count, across, threads)
                self._output(m.data_ptr(), bias.data_ptr(), target, spare.data_ptr(), *edges)
        return out.permute(0, 3, 1, 2)


class WinogradConv2d(nn.Module):
    """Stands for `conv` on bfloat16 images, without gradients."""

    def __init__(self, conv: nn.Conv2d, transforms: Transforms):
        super().__init__()
        self._transforms = transforms
        self.weight = transform_weight(conv.weight.detach())
        self.bias = torch.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        return self._transforms.convolve(x, self.weight, self.bias)


def transform_weight(weight: Tensor) -> Tensor:
    """G g G^T (Lavin & Gray 2016, equation 8) of `(O, C, 3, 3)` weights: `(16, C, O)` in bfloat16."""
    g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    whole = torch.einsum("ai,bj,ocij->aboc", g, g, weight.float()).flatten(0, 1)
    return whole.bfloat16().contiguous().transpose(1, 2)  # the products run faster with the inputs side by side
