"""Cut pictures into overlapping tiles, and blend the translated tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from velogan.networks.antialias import BlurDown, BlurUp
from velogan.networks.outputs import MaskGenerator

RAMP = 16
"""Number of pixels over which one tile blends into the next."""


@dataclass(frozen=True)
class TileAxis:
    """Tiles along one axis of `length` pixels: `size` pixels each, at `starts`, all multiples of `multiple`."""

    length: int
    size: int
    starts: tuple[int, ...]
    multiple: int

    @property
    def weights(self) -> list[Tensor]:
        """The blending weights of each tile along the axis, `(size,)`; the weights of all tiles sum to 1.

        The middle of an overlap is a linear ramp, `RAMP` pixels wide or a third of the overlap. Outside the ramp only
        the tile whose edge is farther away counts: near its own edges a tile shows the effect of padding.
        """
        inside = torch.arange(self.size) + 0.5
        overlap = min((a + self.size - b for a, b in pairwise(self.starts)), default=self.size)
        trim = (overlap - min(RAMP, overlap // 3)) // 2
        ramps, total = [], torch.zeros(self.length)
        for start in self.starts:
            from_edge = torch.full((self.size,), float(self.size))
            if start > 0:
                from_edge = torch.minimum(from_edge, inside - trim)
            if start + self.size < self.length:
                from_edge = torch.minimum(from_edge, self.size - inside - trim)
            ramps.append(from_edge.clamp(0, max(overlap - 2 * trim, 1)))
            total[start : start + self.size] += ramps[-1]
        return [ramp / total[start : start + self.size] for ramp, start in zip(ramps, self.starts)]

    @property
    def cores(self) -> list[tuple[float, float]]:
        """The part of each tile up to the middle of its overlaps, as fractions of its side; parts do not overlap."""
        borders = [
            (left + self.size + right) // 2 // self.multiple * self.multiple for left, right in pairwise(self.starts)
        ]
        spans = zip([0, *borders], [*borders, self.length])
        return [
            ((first - start) / self.size, (last - start) / self.size)
            for (first, last), start in zip(spans, self.starts)
        ]


def plan_axis(length: int, *, size: int, overlap: int, multiple: int) -> TileAxis:
    """Place the smallest number of tiles evenly over `length`; starts, `size` and `length` are multiples of `multiple`.

    Adjacent tiles overlap by at least `overlap` pixels. An axis not longer than `size` is a single tile.
    """
    if length <= size:
        return TileAxis(length, length, (0,), multiple)
    count = math.ceil((length - overlap) / (size - overlap))
    step = (length - size) / (count - 1)
    return TileAxis(length, size, tuple(round(i * step / multiple) * multiple for i in range(count)), multiple)


def receptive_radius(net: nn.Module) -> int:
    """Return the radius of the receptive field in input pixels, rounded up."""
    total, scale = 0.0, 1.0
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            total += scale * (layer.kernel_size[0] - 1) / 2 * layer.dilation[0]
            scale *= layer.stride[0]
        elif isinstance(layer, nn.ConvTranspose2d):
            scale /= layer.stride[0]
            total += scale * (layer.kernel_size[0] - 1) / 2
        elif isinstance(layer, BlurDown):
            total += scale
            scale *= 2
        elif isinstance(layer, BlurUp):
            total += scale  # a value depends on two pixels, at most one pixel away
            scale /= 2
        elif isinstance(layer, nn.Upsample):
            assert isinstance(layer.scale_factor, float)
            if layer.mode == "bilinear":
                total += scale  # a value depends on its neighbours
            scale /= layer.scale_factor
            total += scale * (layer.scale_factor - 1)  # the distance of a pixel's last copy
        elif isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)):
            total += scale * (layer.kernel_size - 1)  # pyright: ignore[reportOperatorIssue]
            scale *= layer.stride  # pyright: ignore[reportOperatorIssue]
        elif isinstance(layer, MaskGenerator):
            total += layer.extra_radius
    return math.ceil(total)


def blend_tiles(
    rows: TileAxis, columns: TileAxis, translate: Callable[[int, int], Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """Yield bands of blended rows from the top: the index of the first row, and `(C, h, W)`.

    `translate(top, left)` returns the tile at that position, `(C, rows.size, columns.size)`. Memory holds one row of
    tiles.
    """
    band: Tensor | None = None
    row_ends = [*rows.starts[1:], rows.length]
    for top, row_weights, end in zip(rows.starts, rows.weights, row_ends):
        for left, column_weights in zip(columns.starts, columns.weights):
            tile = translate(top, left)
            if band is None:
                band = torch.zeros(len(tile), rows.size, columns.length)
            weight = row_weights[:, None] * column_weights
            band[:, :, left : left + columns.size] += tile.mul_(weight)
        assert band is not None
        yield top, band[:, : end - top]
        band = torch.nn.functional.pad(band[:, end - top :], (0, 0, 0, end - top))


def reflect_indices(first: int, last: int, length: int) -> np.ndarray:
    """Return indices into an axis of `length` for the positions first to last - 1, reflected beyond its ends."""
    period = max(2 * (length - 1), 1)
    index = np.arange(first, last) % period
    return np.minimum(index, period - index) if length > 1 else np.zeros_like(index)
