"""Pictures too large to be translated at once: tile by tile, with the whole picture's statistics."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from velogan.translate.model import Translator
from velogan.translate.norm_statistics import (
    Moments,
    Piece,
    fold_norms,
    has_per_image_norms,
    max_spilled_values,
    measure_moments,
)
from velogan.translate.tiles import RAMP, TileAxis, blend_tiles, plan_axis, receptive_radius

MAX_UNTILED_PIXELS = 2**21
"""Pictures of more pixels are tiled, unless the user says otherwise."""

DEFAULT_TILE = 768
"""Side of a tile in pixels, unless the user says otherwise."""

_SAMPLE = 256  # side in pixels of samples to measure, if the scratch files of all tiles would take too much disk

ReadRegion = Callable[[tuple[int, int], tuple[int, int]], Tensor]
"""Rows and columns (first, last) to `(1, C, h, w)` in [-1, 1]; beyond the picture it is reflected."""

BeforeTile = Callable[[], object]
"""Called before each tile is computed; an exception that it raises ends the translation."""


Tiling = tuple[TileAxis, TileAxis]
"""How a picture is tiled: rows and columns, over sides extended to the network's multiple."""


@dataclass(frozen=True)
class Settings:
    """Settings of all files of a call: `tile` is that of `plan_tiles`, `batch_pixels` the most pixels of one pass."""

    overwrite: bool
    tile: int | None
    batch_pixels: int

    def together(self, tiles: Tiling | None, pixels: int) -> int:
        """How many pictures of so many pixels share a pass."""
        return 1 if tiles else max(1, self.batch_pixels // pixels)


def plan_tiles(model: Translator, height: int, width: int, *, tile: int | None) -> Tiling | None:
    """The tiles for a picture, or None if it is translated whole.

    `tile`: their side in pixels, rounded up to what the network takes; 0: never tiled; None: `DEFAULT_TILE`, for
    pictures of more than `MAX_UNTILED_PIXELS`. They overlap far enough to hide what the network makes of their
    edges, but by no more than a third.
    """
    if tile == 0 or (tile is None and height * width <= MAX_UNTILED_PIXELS):
        return None
    multiple = model.multiple
    size = max(_round_up(tile or DEFAULT_TILE, multiple), 2 * multiple)
    if max(height, width) <= size:
        return None
    overlap = _round_up(min(2 * receptive_radius(model.net) + RAMP, size // 3), multiple)
    sides = (max(_round_up(side, multiple), 2 * multiple) for side in (height, width))
    rows, columns = (plan_axis(side, size=size, overlap=overlap, multiple=multiple) for side in sides)
    return rows, columns


@torch.inference_mode()
def translate_large(
    model: Translator,
    tiles: Tiling,
    read: ReadRegion,
    *,
    rounded: bool,
    scratch: Path,
    before_tile: BeforeTile = lambda: None,
) -> Iterator[tuple[int, Tensor]]:
    """Give the translated picture in bands of rows: each one's first row, and `(C, h, W)` in [-1, 1] on the CPU.

    Rows up to a band's end are not read again, so the caller may overwrite them. `scratch` is a folder for temporary
    files: up to some hundred bytes for each pixel, but no more than half of the free space there.
    """
    rows, columns = tiles
    moments: Sequence[Moments] = ()
    if has_per_image_norms(model.net):
        with tempfile.TemporaryDirectory(dir=scratch, prefix=".fresh-") as folder:
            moments = _measure_moments(
                model, tiles, read, rounded=rounded, scratch=Path(folder), before_tile=before_tile
            )
    net = model.accelerated(fold_norms(model.net, moments), rounded=rounded)

    def translate(top: int, left: int) -> Tensor:
        before_tile()
        piece = read((top, top + rows.size), (left, left + columns.size)).to(model.device)
        with model.tf32_disabled(rounded=rounded):
            return net(piece)[0].cpu()

    yield from blend_tiles(rows, columns, translate)


def _measure_moments(
    model: Translator, tiles: Tiling, read: ReadRegion, *, rounded: bool, scratch: Path, before_tile: BeforeTile
) -> list[Moments]:
    """The moments over all tiles; over evenly spread samples if the disk has no room for all tiles."""
    rows, columns = tiles
    dtype = model.dtype(rounded=rounded)
    values = max_spilled_values(model.net, model.input.channels)
    most = int(shutil.disk_usage(scratch).free / 2 / max(values * dtype.itemsize, 1))
    covered = len(rows.starts) * rows.size * len(columns.starts) * columns.size

    def piece(top: int, left: int, height: int, width: int, core: tuple[float, float, float, float]) -> Piece:
        return Piece(lambda: read((top, top + height), (left, left + width)).to(model.device), core)

    if covered <= most:
        across = list(zip(columns.starts, columns.cores))
        pieces = [
            piece(top, left, rows.size, columns.size, (*down, *right))
            for (top, down), (left, right) in product(zip(rows.starts, rows.cores), across)
        ]
    else:
        side = max(_SAMPLE, 2 * model.multiple)
        heights, widths = (_spaced_starts(whole, side, most / (rows.length * columns.length)) for whole in tiles)
        pieces = [piece(top, left, side, side, (0, 1, 0, 1)) for top, left in product(heights, widths)]
    with model.tf32_disabled(rounded=rounded):
        return measure_moments(model.net, pieces, scratch=scratch, dtype=dtype, before_piece=before_tile)


def _spaced_starts(whole: TileAxis, side: int, share: float) -> list[int]:
    """Starts of evenly spread samples along one side; with those along the other they cover `share` of a picture."""
    count = max(1, int(whole.length / side * math.sqrt(share)))
    gap = (whole.length - side) / count
    return [int((i + 0.5) * gap / whole.multiple) * whole.multiple for i in range(count)]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
