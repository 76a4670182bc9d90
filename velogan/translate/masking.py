"""What masks keep of a picture: translations and their inputs, composed by a mask for each picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from velogan.data.pictures.images import read_picture
from velogan.data.pictures.values import to_channels
from velogan.data.sets.sources import list_by_stem, stem, without_picture
from velogan.files import pluralize

MaskSide = Literal["outside", "inside"]
"""What of a picture stays as it was: outside, what is black in its mask; inside, what is white. Grey mixes."""


@dataclass(frozen=True)
class Mask:
    """The mask of one picture."""

    file: Path
    keep: MaskSide

    def read(self, size: tuple[int, int]) -> np.ndarray:
        """What may change of a picture of `size` (H, W): `(H, W, 1)` uint8 or uint16, 0 where it stays as it was.

        ValueError for a mask of another size, of floats, in colours, with transparency, with 1 for white, or that is
        no picture; OSError where it cannot be read.
        """
        try:
            picture = read_picture(self.file, filled=False)
            pixels = picture.pixels
        except ValueError as error:
            raise ValueError(f"its mask {self.file}: {error}") from None
        if pixels.shape[:2] != size:
            given, wanted = (f"{width}x{height}" for height, width in (pixels.shape[:2], size))
            raise ValueError(f"its mask {self.file} is {given} pixels, and the picture {wanted}: give both one size")
        strange = {
            "floating-point or signed pixels": pixels.dtype.kind == "f",
            "transparency": picture.alpha is not None and picture.alpha.min() < picture.alpha.max(),
            "colours": (pixels != pixels[..., :1]).any(),
        }
        if wrong := next((what for what, there in strange.items() if there), None):
            raise ValueError(f"its mask {self.file} has {wrong}: save it in black and white, of 8 or 16 bits")
        white = np.iinfo(pixels.dtype).max
        if 0 < (brightest := int(pixels.max())) <= white // 255:
            raise ValueError(
                f"its mask {self.file} has no pixel above {brightest}, and white is {white}: save it with 0 and {white}"
            )
        mask = to_channels(pixels, 1)
        return np.invert(mask) if self.keep == "inside" else mask


def find_masks(path: Path, names: Sequence[str], *, keep: MaskSide, source: Path) -> tuple[list[Mask], str]:
    """The masks of the pictures `names` of `source`, under equal names with any suffix; a line on those of no picture.

    `path`: a folder, or the mask of the one picture that `source` is. ValueError where a picture has none, or two.
    """
    if not path.exists():
        raise ValueError(f"masks {path}: there is no such folder: name one with a mask for each picture")
    if path.is_file():
        if source.is_dir():
            raise ValueError(f"masks {path} is a file, but input {source} is a folder: name a folder")
        return [Mask(path, keep) for _ in names], ""
    there = list_by_stem(path)
    if lacking := [name for name in names if stem(name) not in there]:
        raise ValueError(
            f"masks {path} has none for {len(lacking)} of {pluralize(len(names), 'picture')}, for example "
            f"{lacking[0]}: add what is missing, or put pictures that may change everywhere into another folder"
        )
    alone = without_picture(path, there, names) if source.is_dir() else ""
    return [Mask(path / there[stem(name)], keep) for name in names], alone


def composite(made: np.ndarray, given: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`made` where `mask` is at its most, `given` exactly where it is 0, and a mixture by its share between.

    `made`, `given`: `(H, W, C)` of one type; `mask`: `(H, W, 1)` uint8 or uint16.
    """
    share = mask.astype(np.float32) / np.iinfo(mask.dtype).max
    mixed = made * share + given * (1 - share)
    return (np.rint(mixed) if made.dtype.kind == "u" else mixed).astype(made.dtype)
