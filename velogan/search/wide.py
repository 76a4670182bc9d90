"""Convolutions with kernels of 9x9, by Winograd's algorithm: a third of the multiplications.

A 9x9 kernel is 3x3 kernels of 3x3. Each is computed by F(3x3, 3x3) (Lavin and Gray 2016), which makes 3x3 results of 25
products; and since the small kernels lie three pixels apart, as the tiles do, all share the transformed input. What is
left between the transforms is one 3x3 convolution over tiles for each of the 25 products: 25 products for a result
instead of 81.

Transforms and convolutions are products of matrices here, which libraries compute as fast on small pictures as on
large ones; their convolutions they do not. Tiles lie row by row over all pictures, channels last, so that those which
one row of a 3x3 kernel reads are a matrix as they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """`F.conv2d(x, kernel, bias)` for kernels of 9x9, up to rounding, of `(B, C, H + 8, W + 8)` float32."""
    result: Tensor = _WideConvolution.apply(x, kernel)  # pyright: ignore[reportAssignmentType]
    return result if bias is None else result + bias.view(-1, 1, 1)


class _WideConvolution(torch.autograd.Function):
    """`x` and `kernel` are kept, and transformed again: their transforms are several times as large."""

    @staticmethod
    def forward(ctx, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        batch, _, height, width = x.shape
        products = _row(tiles := _tiles(x), 0) @ _taps(kernel, 0).mT
        for row in (1, 2):
            products.baddbmm_(_row(tiles, row), _taps(kernel, row).mT)
        rows, columns = len(tiles[0]) - 2, tiles.shape[3]
        result = (_both(_RESULT, x) @ products.flatten(1)).view(3, 3, rows, batch, columns, -1)
        result = result.permute(3, 2, 0, 4, 1, 5).reshape(batch, 3 * rows, 3 * columns, -1)
        return result[:, : height - 8, : width - 8].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (x, kernel), (g,) = ctx.saved_tensors, grads
        of_products, dx, dkernel = _of_products(g), None, None
        if ctx.needs_input_grad[0]:
            dx = _of_image(of_products, kernel, x)
        if ctx.needs_input_grad[1]:
            dkernel = _of_kernel(of_products, _tiles(x))
        return dx, dkernel


def _both(matrix: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    """The transform in both directions, of squares as columns."""
    one = like.new_tensor(matrix)
    return torch.kron(one, one)


def _row(tiles: Tensor, row: int) -> Tensor:
    """What a row of a 3x3 kernel reads for all results: `(25, rows * B * columns, 3 C)`."""
    return tiles[:, row : tiles.shape[1] - 2 + row].flatten(1, 3)


def _tiles(x: Tensor) -> Tensor:
    """The input's 5x5 tiles, 3 pixels apart, transformed, each beside its two neighbours to the right.

    `(25, rows + 2, B, columns, 3 C)`.
    """
    batch, channels, height, width = x.shape
    x = F.pad(x, (0, (8 - width) % 3, 0, (8 - height) % 3)).permute(0, 2, 3, 1)
    tiles = x.unfold(1, 5, 3).unfold(2, 5, 3).permute(4, 5, 1, 0, 2, 3)
    rows, columns = tiles.shape[2], tiles.shape[4]
    made = (_both(_INPUT, x) @ tiles.reshape(25, -1)).view(25, rows, batch, columns, channels)
    return made.unfold(3, 3, 1).movedim(-1, -2).flatten(-2)


def _of_image(of_products: Tensor, kernel: Tensor, x: Tensor) -> Tensor:
    """The gradient of the image `x` from that of the products: `_tiles` backwards."""
    batch, channels, height, width = x.shape
    rows, columns = (-(-(side - 8) // 3) for side in (height, width))
    of_three = x.new_zeros(25, rows + 2, batch, columns, 3, channels)
    for row in range(3):
        of_three[:, row : row + rows].view(25, -1, 3 * channels).baddbmm_(of_products, _taps(kernel, row))
    of_tiles = x.new_zeros(25, rows + 2, batch, columns + 2, channels)
    for column in range(3):
        of_tiles[:, :, :, column : column + columns] += of_three[..., column, :]
    pixels = (_both(_INPUT, x).mT @ of_tiles.flatten(1)).view(5, 5, rows + 2, batch, columns + 2, channels)
    pixels = pixels.permute(3, 2, 0, 4, 1, 5)
    made = x.new_zeros(batch, rows + 3, 3, columns + 3, 3, channels)
    own, other = (slice(3), slice(0, -1), slice(3)), (slice(3, 5), slice(1, None), slice(2))
    for taken, down, inner in (own, other):  # a tile has two rows and two columns of the next one
        for across, right, within in (own, other):
            made[:, down, inner, right, within] += pixels[:, :, taken, :, across]
    made = made.view(batch, 3 * rows + 9, 3 * columns + 9, channels)
    return made[:, :height, :width].permute(0, 3, 1, 2)


def _of_products(g: Tensor) -> Tensor:
    """The gradient of the products from that of the result: `(25, rows * B * columns, c_out)`."""
    batch, c_out, height, width = g.shape
    g = F.pad(g, (0, -width % 3, 0, -height % 3)).permute(0, 2, 3, 1)
    g = g.reshape(batch, -(-height // 3), 3, -(-width // 3), 3, c_out).permute(2, 4, 1, 0, 3, 5)
    return (_both(_RESULT, g).mT @ g.reshape(9, -1)).view(25, -1, c_out)


def _taps(kernel: Tensor, row: int) -> Tensor:
    """Three of the nine 3x3 kernels in one of 9x9, those of a row, transformed: `(25, c_out, 3 c_in)`.

    A row at a time, as all are too many numbers for a processor's second cache.
    """
    c_out, c_in = kernel.shape[:2]
    small = kernel.permute(2, 3, 0, 1)[3 * row : 3 * row + 3].unflatten(1, (3, 3)).permute(0, 2, 3, 1, 4)
    return (_both(_KERNEL, kernel) @ small.reshape(9, -1)).view(25, c_out, 3 * c_in)


def _of_kernel(of_products: Tensor, tiles: Tensor) -> Tensor:
    """The gradient of the kernel from that of the products."""
    c_out, c_in = of_products.shape[2], tiles.shape[4] // 3
    made = tiles.new_empty(c_out, 9, 9, c_in)
    for row in range(3):
        of_taps = of_products.mT @ _row(tiles, row)
        small = (_both(_KERNEL, tiles).mT @ of_taps.flatten(1)).view(3, 3, c_out, 3, c_in)
        made[:, 3 * row : 3 * row + 3].view(c_out, 3, 3, 3, c_in).copy_(small.permute(2, 0, 3, 1, 4))
    return made.permute(0, 3, 1, 2)
