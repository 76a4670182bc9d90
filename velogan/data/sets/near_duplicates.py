"""Near duplicates: equal pictures, or one picture saved twice, found by comparing tiny thumbnails."""

from __future__ import annotations

import numpy as np
from PIL import Image

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


def near_duplicates(asked: np.ndarray, known: np.ndarray, *, dtype: str) -> list[tuple[int, int]]:
    """Pair each of `asked` that has a near duplicate in `known` with the nearest; both are thumbnails, `(N, 192)`.

    Returns pairs of indices. `dtype`: the pictures' type; above 8 bits, the range of values is that of `known`.
    """
    if not len(known):
        return []
    near = _NEAR * (1 if dtype == "uint8" else known.max() - known.min())
    found = []
    for number, one in enumerate(asked):
        distance = np.abs(known - one).max(axis=1)
        nearest = int(distance.argmin())
        if distance[nearest] <= near:
            found.append((number, nearest))
    return found
