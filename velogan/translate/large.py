"""Translate pictures too large for one pass: tile by tile, normalised by the statistics of the complete picture."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
"""Larger pictures are translated in tiles by default."""

DEFAULT_TILE = 768
"""Side of a tile in pixels."""

_SAMPLE = 256  # side in pixels of the samples that are measured if the scratch files of all tiles would fill the disk

ReadRegion = Callable[[tuple[int, int], tuple[int, int]], Tensor]
"""Reads the rows and columns (start, stop) as `(1, C, h, w)` in [-1, 1]; the picture is reflected beyond its edges."""

BeforeTile = Callable[[], object]
"""Called before each tile is computed; an exception ends the translation."""

Tiling = tuple[TileAxis, TileAxis]
"""The tiles along the height and along the width, both padded to the network's multiple."""


def plan_tiles(model: Translator, height: int, width: int, *, tile: int | None) -> Tiling | None:
    """Return the tiles of a picture, or None if it is translated in one pass.

    tile: side in pixels, rounded up to the network's multiple; 0: no tiles; None: `DEFAULT_TILE` for pictures of more
    than `MAX_UNTILED_PIXELS` pixels

    Tiles overlap by the receptive field, to hide the effects of their edges, but by at most a third of their side.
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
    """Yield the translated picture in bands of rows: the first row, and `(C, h, W)` in [-1, 1] on the CPU.

    Rows up to a band's end are not read again, so the caller may overwrite them. `scratch`: folder for temporary files
    of up to some hundred bytes per pixel, but no more than half of the free space there.
    """
    rows, columns = tiles
    moments: Sequence[Moments] = ()
    if has_per_image_norms(model.net):
        with tempfile.TemporaryDirectory(dir=scratch, prefix=".fresh-") as folder:
            moments = _measure_moments(
                model, tiles, read, rounded=rounded, scratch=Path(folder), before_tile=before_tile
            )
    net = model.maybe_accelerate(fold_norms(model.net, moments), rounded=rounded)

    def translate(top: int, left: int) -> Tensor:
        before_tile()
        images = read((top, top + rows.size), (left, left + columns.size)).to(model.device)
        with model.tf32_disabled(rounded=rounded):
            return net(images)[0].clamp(-1, 1).cpu()

    yield from blend_tiles(rows, columns, translate)


def _measure_moments(
    model: Translator, tiles: Tiling, read: ReadRegion, *, rounded: bool, scratch: Path, before_tile: BeforeTile
) -> list[Moments]:
    """Return the moments over all tiles, or over evenly spaced samples if the disk is too small for all tiles."""
    rows, columns = tiles
    dtype = model.dtype(rounded=rounded)
    values_per_pixel = max_spilled_values(model.net, model.input.channels)
    max_pixels = int(shutil.disk_usage(scratch).free / 2 / max(values_per_pixel * dtype.itemsize, 1))
    tiled_pixels = len(rows.starts) * rows.size * len(columns.starts) * columns.size

    def piece(top: int, left: int, height: int, width: int, core: tuple[float, float, float, float]) -> Piece:
        return Piece(lambda: read((top, top + height), (left, left + width)).to(model.device), core)

    if tiled_pixels <= max_pixels:
        column_tiles = list(zip(columns.starts, columns.cores))
        pieces = [
            piece(top, left, rows.size, columns.size, (*row_core, *column_core))
            for (top, row_core), (left, column_core) in product(zip(rows.starts, rows.cores), column_tiles)
        ]
    else:
        side = max(_SAMPLE, 2 * model.multiple)
        heights, widths = (_spaced_starts(axis, side, max_pixels / (rows.length * columns.length)) for axis in tiles)
        pieces = [piece(top, left, side, side, (0, 1, 0, 1)) for top, left in product(heights, widths)]
    with model.tf32_disabled(rounded=rounded):
        return measure_moments(model.net, pieces, scratch=scratch, dtype=dtype, before_piece=before_tile)


def _spaced_starts(axis: TileAxis, side: int, fraction: float) -> list[int]:
    """Return evenly spaced starts of samples along one axis; both axes together cover `fraction` of the picture."""
    count = max(1, int(axis.length / side * math.sqrt(fraction)))
    gap = (axis.length - side) / count
    return [int((i + 0.5) * gap / axis.multiple) * axis.multiple for i in range(count)]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
