"""The location of georeferenced images (GeoTIFF, world files), and their pixels without data.

A translation has the pixels of its input at the same tags, so the georeference of the input stays valid. Tags: OGC
19-008r4, GeoTIFF 1.1, section 7.1; GDAL's tag of the value that means "no data".
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tifffile import DATATYPE, TiffPage

_LOCATION_TAGS = (33550, 33922, 34264, 34735, 34736, 34737, 50844)
"""ModelPixelScale, ModelTiepoint, ModelTransformation, GeoKeyDirectory, Double- and AsciiParams, RPCCoefficient."""
_NODATA = 42113

Tag = tuple[int, DATATYPE, int, str | tuple[float, ...], bool]
"""A tag as tifffile writes it: code, type, count, value, and whether only the first page has it."""


@dataclass(frozen=True)
class Geography:
    """The location of an image on the Earth, and which of its pixels hold no data.

    - `location_tags`: the tags of the TIFF file that georeference it
    - `empty`: `(H, W)` bool, True if a pixel holds no data; None if all pixels hold data
    - `nodata`: the pixel value that means "no data" (may be NaN), or None
    """

    location_tags: tuple[Tag, ...] = ()
    empty: np.ndarray | None = field(default=None, compare=False)
    nodata: float | None = None

    def restore_nodata(self, pixels: np.ndarray) -> np.ndarray:
        """Restore the input's nodata value in `(H, W, C)` pixels. Raises ValueError if their type cannot hold it."""
        if self.empty is None or self.nodata is None:
            return pixels
        if not self._can_hold_nodata(pixels.dtype):
            raise ValueError(
                f"the nodata value {self.nodata:g} of the input cannot be stored as {pixels.dtype}, the result's type: "
                "give the target domain a range of floating-point values, or change the input's tag GDAL_NODATA"
            )
        return np.where(self.empty[..., None], pixels.dtype.type(self._nodata_as(pixels.dtype)), pixels)

    def avoid_nodata(self, pixels: np.ndarray) -> np.ndarray:
        """Return `(H, W, C)` pixels in which the nodata value is replaced by the next value."""
        dtype, nodata = pixels.dtype, self._nodata_as(pixels.dtype)
        if nodata is None or math.isnan(nodata) or not self._can_hold_nodata(dtype):
            return pixels
        return np.where(pixels == dtype.type(nodata), _next_value(nodata, dtype), pixels)

    def _can_hold_nodata(self, dtype: np.dtype) -> bool:
        """Return whether there is a nodata value that `dtype` can represent."""
        nodata = self.nodata
        if nodata is None or dtype.kind == "f":
            return nodata is not None
        return float(nodata).is_integer() and 0 <= nodata <= np.iinfo(dtype).max

    def tags(self, dtype: np.dtype) -> list[Tag]:
        """Return the tags for a file with pixels of `dtype`, including GDAL's."""
        nodata = self._nodata_as(dtype)
        text = "" if nodata is None else "nan" if math.isnan(nodata) else f"{nodata:.17g}"
        return [*self.location_tags, *([(_NODATA, DATATYPE.ASCII, 0, text, True)] if text else [])]

    def _nodata_as(self, dtype: np.dtype) -> float | None:
        """Return `nodata`, or NaN if it is too large for the float `dtype`."""
        if dtype.kind != "f" or self.nodata is None or not math.isfinite(self.nodata):
            return self.nodata
        with np.errstate(over="ignore"):
            return self.nodata if np.isfinite(dtype.type(self.nodata)) else math.nan


def _next_value(value: float, dtype: np.dtype) -> np.generic:
    """Return the value of `dtype` after `value`, or before if that is the maximum; the 16th of floats (GDAL rounds)."""
    if dtype.kind == "f":
        return dtype.type(value) + 16 * np.spacing(np.abs(dtype.type(value)))
    return dtype.type(value + 1 if value < np.iinfo(dtype).max else value - 1)


NO_GEOGRAPHY = Geography()
"""The geography of a picture without a georeference."""


def read_geography(page: TiffPage) -> Geography:
    """Return what the tags of `page` state; `empty` is set later, by `fill_nodata`."""
    stated = [tag for code in _LOCATION_TAGS if (tag := page.tags.get(code)) is not None]
    location_tags: list[Tag] = [
        (tag.code, DATATYPE(tag.dtype), 0 if isinstance(tag.value, str) else tag.count, tag.value, True)
        for tag in stated
        if isinstance(tag.value, (str, tuple))
    ]
    text = str(page.tags.valueof(_NODATA) or "").strip("\0 ")
    try:
        return Geography(tuple(location_tags), nodata=float(text)) if text else Geography(tuple(location_tags))
    except ValueError:  # not a number, so no pixel equals it
        return Geography((*location_tags, (_NODATA, DATATYPE.ASCII, 0, text, True)))


def fill_nodata(pixels: np.ndarray, geography: Geography) -> tuple[np.ndarray, Geography]:
    """Return `(H, W, C)` pixels with the mean of each channel in pixels without data, and the geography with `empty`.

    The mean is 0 if no pixel has data. A pixel has no data if all its channels have the nodata value, or one is NaN.
    """
    empty = np.zeros(pixels.shape[:2], bool)
    if pixels.dtype.kind == "f":
        empty[np.isnan(pixels).any(axis=2)] = True
    nodata = geography.nodata
    if nodata is not None and not math.isnan(nodata):
        with np.errstate(over="ignore"):  # a larger value is infinity in float32
            empty[(pixels == nodata).all(axis=2)] = True
    elif empty.any():
        nodata = math.nan
    if not empty.any():
        return pixels, geography
    mean = np.zeros(pixels.shape[2]) if empty.all() else pixels[~empty].mean(axis=0, dtype=np.float64)
    mean = mean if pixels.dtype.kind == "f" else mean.round()
    return np.where(empty[..., None], mean.astype(pixels.dtype), pixels), Geography(
        geography.location_tags, empty, nodata
    )


def read_world_file(picture: Path) -> tuple[str, str] | None:
    """Return the text of the world file of `picture`, and of its `.prj` or ""; None if it has no world file."""
    world, *projection = find_world_files(picture) or (None,)
    if world is None:
        return None
    return world.read_text("latin-1"), "".join(file.read_text("utf-8", "replace") for file in projection)


def orient_world_file(text: str, orientation: int, height: int, width: int) -> str:
    """Return the text of a world file for a picture `(height, width)` that was turned upright from `orientation`."""
    if orientation not in range(2, 9):
        return text
    x_across, y_across, x_down, y_down, x, y = map(float, text.split())
    if orientation >= 5:
        x_across, y_across, x_down, y_down = x_down, y_down, x_across, y_across
    if orientation in (2, 3, 6, 7):  # columns are numbered from the other end
        x, y = x + (width - 1) * x_across, y + (width - 1) * y_across
        x_across, y_across = -x_across, -y_across
    if orientation in (3, 4, 7, 8):
        x, y = x + (height - 1) * x_down, y + (height - 1) * y_down
        x_down, y_down = -x_down, -y_down
    return "".join(f"{number + 0.0!r}\n" for number in (x_across, y_across, x_down, y_down, x, y))


def find_world_files(picture: Path) -> tuple[Path, ...]:
    """Return the world file next to `picture` (photo.jgw, .jpgw or .wld for photo.jpg) with its `.prj`; else empty."""
    for suffix in _suffixes(picture):
        file = _find_sibling(picture, suffix)
        if file is not None and file.stat().st_size < 2**12 and _is_world(file.read_text("latin-1")):
            prj = _find_sibling(picture, ".prj")
            return (file,) if prj is None or prj.stat().st_size >= 2**16 else (file, prj)
    return ()


def _find_sibling(picture: Path, suffix: str) -> Path | None:
    """Return the file next to `picture` with `suffix` in lower or upper case, or as in .Tfw and .TIFw, or None."""
    upper = suffix.upper()
    spellings = (suffix, upper, suffix.title(), f"{upper[:-1]}w")
    files = (picture.with_name(picture.stem + spelling) for spelling in spellings)
    return next((file for file in files if os.path.isfile(file)), None)  # `os.path`: a name may become too long


def _is_world(text: str) -> bool:
    """Return whether `text` is six numbers: the size and rotation of a pixel, and the position of the first."""
    try:
        return len([float(number) for number in text.split()]) == 6
    except ValueError:
        return False


def world_suffix(picture: Path) -> str:
    """Return the suffix of a world file for `picture`: .jgw for .jpg."""
    return _suffixes(picture)[0]


def _suffixes(picture: Path) -> tuple[str, str, str]:
    suffix = picture.suffix.lower()
    return f".{suffix[1:2]}{suffix[-1:]}w", f"{suffix}w", ".wld"
