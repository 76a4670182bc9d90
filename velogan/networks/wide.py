"""Convolutions with kernels of 9x9, by Winograd's algorithm: a third of the multiplications.

A 9x9 kernel is 3x3 kernels of 3x3. Each is computed by F(3x3, 3x3) (Lavin and Gray 2016), which makes 3x3 results of 25
products; and since the small kernels lie three pixels apart, as the tiles do, all share the transformed input. What is
left between the transforms is one 3x3 convolution over tiles for each of the 25 products: 25 products for a result
instead of 81.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_INPUT = ((2, -1, -2, 1, 0), (0, -2, -1, 1, 0), (0, 2, -3, 1, 0), (0, -1, 0, 1, 0), (0, 2, -1, -2, 1))
_KERNEL = ((1 / 2, 0, 0), (-1 / 2, -1 / 2, -1 / 2), (-1 / 6, 1 / 6, -1 / 6), (1 / 6, 1 / 3, 2 / 3), (0, 0, 1))
_RESULT = ((1, 1, 1, 1, 0), (0, 1, -1, 2, 0), (0, 1, 1, 4, 1))
"""The transforms for the points 0, 1, -1, 2 and infinity."""


def direct(x: Tensor) -> bool:
    """Whether the library's convolutions are the better choice: on accelerators, and where bfloat16 would round."""
    return x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu")


def convolve9(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.conv2d(x, kernel, bias)` for kernels of 9x9, up to rounding, of `(B, C, H + 8, W + 8)` float32.

    For the gradient `x` and `kernel` are kept, and transformed again: their transforms are three times as large.
    """
    (batch, _, height, width), c_out = x.shape, len(kernel)
    rows, columns = (-(-(side - 8) // 3) for side in (height, width))
    kept, kept_kernel, tiles, taps = x.detach(), kernel.detach(), _tiles(x), _taps(kernel)

    def keep(value: Tensor) -> Callable[[], Tensor]:
        return (lambda: _tiles(kept)) if value.data_ptr() == tiles.data_ptr() else (lambda: _taps(kept_kernel))

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda again: again()):
        products = F.conv2d(tiles, taps, groups=25).view(batch, 5, 5, c_out, rows, columns)
    of_result = torch.tensor(_RESULT, device=x.device, dtype=x.dtype)
    result = torch.einsum("ki,lj,bijohw->bohkwl", of_result, of_result, products)
    result = result.reshape(batch, c_out, 3 * rows, 3 * columns)[:, :, : height - 8, : width - 8]
    return result if bias is None else result + bias.view(-1, 1, 1)


def _tiles(x: Tensor) -> Tensor:
    """The input's 5x5 tiles, 3 pixels apart, transformed: `(B, 25 C, rows + 2, columns + 2)`."""
    height, width = x.shape[2:]
    x = F.pad(x, (0, (8 - width) % 3, 0, (8 - height) % 3))
    tiles = x.permute(0, 2, 3, 1).unfold(1, 5, 3).unfold(2, 5, 3)  # (B, rows + 2, columns + 2, C, 5, 5)
    matrix = torch.tensor(_INPUT, device=x.device, dtype=x.dtype)
    return torch.einsum("ik,jl,bhwckl->bijchw", matrix, matrix, tiles).flatten(1, 3)


def _taps(kernel: Tensor) -> Tensor:
    """The nine 3x3 kernels in one of 9x9, transformed: `(25 c_out, c_in, 3, 3)`."""
    c_out, c_in = kernel.shape[:2]
    matrix = torch.tensor(_KERNEL, device=kernel.device, dtype=kernel.dtype)
    small = kernel.reshape(c_out, c_in, 3, 3, 3, 3)
    return torch.einsum("iu,jv,ocaubv->ijocab", matrix, matrix, small).flatten(0, 2)
