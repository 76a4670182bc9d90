"""Near duplicates: equal pictures, or one picture saved twice, found by comparing tiny thumbnails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 192
"""Values of a thumbnail: 8x8 pixels of three channels."""

_NEAR = 4 / 255
"""Thumbnails of near duplicates differ by at most this share of the range of values."""
_FULL = {"uint8": 255, "uint16": 65535}


def thumbnail(pixels: np.ndarray) -> np.ndarray:
    """Reduce `(H, W, C)` to the means of 8x8 boxes in three channels, `(192,)` float32.

    Integers are divided by their type's maximum; floats stay as they are.
    """
    full = _FULL.get(pixels.dtype.name, 1)
    if pixels.shape[2] not in (1, 3):
        pixels = pixels.mean(axis=2, keepdims=True, dtype=np.float32)
    small = []
    for channel in range(pixels.shape[2]):  # one at a time, since each is a copy
        plane = np.ascontiguousarray(pixels[..., channel], dtype="u1" if pixels.dtype == np.uint8 else "f4")
        small.append(np.asarray(Image.fromarray(plane).resize((8, 8), Image.Resampling.BOX), np.float32))
    return np.stack(small * (3 // len(small)), axis=-1).reshape(-1) / np.float32(full)


class ThumbnailFiles:
    """Thumbnails `(N, 192)` that stay in files: `rows[i]` are those wanted of the i-th of `paths`."""

    def __init__(self, paths: Sequence[Path], rows: Sequence[np.ndarray]):
        self._files = list(zip(paths, rows, strict=True))

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._files)

    def blocks(self) -> Iterator[np.ndarray]:
        """Give them in parts."""
        for path, rows in self._files:
            yield np.fromfile(path, "<f4").reshape(-1, SIZE)[rows]


def near_duplicates(asked: np.ndarray, known: np.ndarray | ThumbnailFiles, *, dtype: str) -> list[tuple[int, int]]:
    """Pair each of `asked` that has a near duplicate in `known` with the nearest; both are thumbnails, `(N, 192)`.

    Returns pairs of indices. `dtype`: the pictures' type; above 8 bits, the range of values is that of `known`.
    """
    if not len(known):
        return []
    blocks = known.blocks if isinstance(known, ThumbnailFiles) else lambda: iter([known])
    near = _NEAR
    if dtype != "uint8":
        ends = [(block.min(), block.max()) for block in blocks() if len(block)]
        near *= max(high for _, high in ends) - min(low for low, _ in ends)
    least, nearest, start = np.full(len(asked), np.inf), np.zeros(len(asked), np.int64), 0
    for block in blocks():
        for number, one in enumerate(asked) if len(block) else ():
            distance = np.abs(block - one).max(axis=1)
            place = int(distance.argmin())
            if distance[place] < least[number]:
                least[number], nearest[number] = distance[place], start + place
        start += len(block)
    return [(number, int(nearest[number])) for number in np.flatnonzero(least <= near).tolist()]
