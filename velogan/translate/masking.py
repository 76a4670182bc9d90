"""Composite translations with their inputs by a mask for each picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from velogan.data.pictures.images import read_picture
from velogan.data.pictures.values import to_channels
from velogan.data.sets.sources import describe_unmatched_files, list_by_stem, stem
from velogan.files import pluralize

MaskSide = Literal["outside", "inside"]
"""The side of a mask where the input is kept: outside, its black pixels, or inside, its white ones; grey mixes."""


@dataclass(frozen=True)
class Mask:
    """The mask of one picture."""

    file: Path
    keep: MaskSide

    def read(self, size: tuple[int, int]) -> np.ndarray:
        """Return the mask of a picture of `size` (H, W): `(H, W, 1)` uint8 or uint16, 0 where the input is kept.

        Raises ValueError if the mask has another size, floats, colours, transparency or 1 for white, or is not a
        picture; OSError if it cannot be read.
        """
        try:
            picture = read_picture(self.file, filled=False)
            pixels = picture.pixels
        except ValueError as error:
            raise ValueError(f"its mask {self.file}: {error}") from None
        if pixels.shape[:2] != size:
            actual, expected = (f"{width}x{height}" for height, width in (pixels.shape[:2], size))
            raise ValueError(f"its mask {self.file} is {actual} pixels, but the picture {expected}: use equal sizes")
        unsupported = {
            "floating-point or signed pixels": pixels.dtype.kind == "f",
            "transparency": picture.alpha is not None and picture.alpha.min() < picture.alpha.max(),
            "colours": (pixels != pixels[..., :1]).any(),
        }
        if problem := next((name for name, is_present in unsupported.items() if is_present), None):
            raise ValueError(f"its mask {self.file} has {problem}: save it in black and white, of 8 or 16 bits")
        white = np.iinfo(pixels.dtype).max
        if 0 < (brightest := int(pixels.max())) <= white // 255:
            raise ValueError(
                f"its mask {self.file} has no pixel above {brightest}, and white is {white}: save it with 0 and {white}"
            )
        mask = to_channels(pixels, 1)
        return np.invert(mask) if self.keep == "inside" else mask


def find_masks(path: Path, names: Sequence[str], *, keep: MaskSide, source: Path) -> tuple[list[Mask], str]:
    """Return the masks of the pictures `names` of `source`, and a line on masks without a picture, or "".

    `path`: a folder with masks of equal names and any suffix, or the mask of the single picture `source`.
    Raises ValueError if a picture has no mask, or two.
    """
    if not path.exists():
        raise ValueError(f"masks={path}: no such folder; name a folder with one mask per picture")
    if path.is_file():
        if source.is_dir():
            raise ValueError(f"masks={path}: a file, but input {source} is a folder; name a folder")
        return [Mask(path, keep) for _ in names], ""
    files = list_by_stem(path)
    if missing := [name for name in names if stem(name) not in files]:
        raise ValueError(
            f"masks={path}: no mask for {len(missing)} of {pluralize(len(names), 'picture')}, "
            f"for example {missing[0]}; add them, or move pictures that may change everywhere to another folder"
        )
    unmatched = describe_unmatched_files(path, files, names) if source.is_dir() else ""
    return [Mask(path / files[stem(name)], keep) for name in names], unmatched


def composite(translated: np.ndarray, original: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return `original` exactly where `mask` is 0, `translated` where it is at its maximum, and a mixture between.

    `translated`, `original`: `(H, W, C)` of one type; `mask`: `(H, W, 1)` uint8 or uint16.
    """
    alpha = mask.astype(np.float32) / np.iinfo(mask.dtype).max
    mixed = translated * alpha + original * (1 - alpha)
    return (np.rint(mixed) if translated.dtype.kind == "u" else mixed).astype(translated.dtype)
