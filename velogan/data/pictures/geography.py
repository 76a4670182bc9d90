"""Where a GeoTIFF or a picture with a world file lies on the Earth, and which of its pixels hold nothing.

A translation has the pixels of its input at the same places, so what says where they lie stays true of it. Tags: OGC
19-008r4, GeoTIFF 1.1, section 7.1; GDAL's tag of the value that means "no data".
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tifffile import DATATYPE, TiffPage

_PLACES = {
    33550: DATATYPE.DOUBLE,  # ModelPixelScale
    33922: DATATYPE.DOUBLE,  # ModelTiepoint
    34264: DATATYPE.DOUBLE,  # ModelTransformation
    34735: DATATYPE.SHORT,  # GeoKeyDirectory
    34736: DATATYPE.DOUBLE,  # GeoDoubleParams
    34737: DATATYPE.ASCII,  # GeoAsciiParams
    50844: DATATYPE.DOUBLE,  # RPCCoefficient
}
_NODATA = 42113

Tag = tuple[int, DATATYPE, int, str | tuple[float, ...], bool]
"""A tag as tifffile writes it: code, type, count, value, and whether it stands on the first page alone."""


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
        """`(H, W, C)` with the value that means "no data" where the input had it.

        Raises `ValueError` where the type of `pixels` does not hold it.
        """
        if self.empty is None or self.nodata is None:
            return pixels
        if not self._can_hold_nodata(pixels.dtype):
            raise ValueError(
                f"{self.nodata:g}, which means no data in the input, is no {pixels.dtype}, as which it is translated: "
                "give the target domain a range of floating-point values, or change the input's tag GDAL_NODATA"
            )
        return np.where(self.empty[..., None], pixels.dtype.type(self._nodata_as(pixels.dtype)), pixels)

    def avoid_nodata(self, pixels: np.ndarray) -> np.ndarray:
        """`(H, W, C)` with the next value in place of the one that means "no data": measured, it says something."""
        kind, held = pixels.dtype, self._nodata_as(pixels.dtype)
        if held is None or math.isnan(held) or not self._can_hold_nodata(kind):
            return pixels
        return np.where(pixels == kind.type(held), _next_value(held, kind), pixels)

    def _can_hold_nodata(self, kind: np.dtype) -> bool:
        nodata = self.nodata
        if nodata is None or kind.kind == "f":
            return nodata is not None
        return float(nodata).is_integer() and 0 <= nodata <= np.iinfo(kind).max

    def tags(self, kind: np.dtype) -> list[Tag]:
        """All tags of a file with pixels of `kind`, that of GDAL included."""
        nodata = self._nodata_as(kind)
        said = "" if nodata is None else "nan" if math.isnan(nodata) else f"{nodata:.17g}"
        return [*self.location_tags, *([(_NODATA, DATATYPE.ASCII, 0, said, True)] if said else [])]

    def _nodata_as(self, kind: np.dtype) -> float | None:
        """`nodata`, or NaN where it is a number too large for floats of `kind`."""
        if kind.kind != "f" or self.nodata is None or not math.isfinite(self.nodata):
            return self.nodata
        with np.errstate(over="ignore"):
            return self.nodata if np.isfinite(kind.type(self.nodata)) else math.nan


def _next_value(value: float, kind: np.dtype) -> np.generic:
    """The value of `kind` that follows `value`, or comes before it where none does; of floats the 16th, since GDAL
    takes the next two for equal."""
    if kind.kind == "f":
        return kind.type(value) + 16 * np.spacing(np.abs(kind.type(value)))
    return kind.type(value + 1 if value < np.iinfo(kind).max else value - 1)


NO_GEOGRAPHY = Geography()
"""Of a picture that does not say where it lies."""


def read_geography(page: TiffPage) -> Geography:
    """What the tags of `page` say, before its pixels are seen."""
    location_tags: list[Tag] = []
    for code, kind in _PLACES.items():
        value = page.tags.valueof(code)
        if isinstance(value, str) and kind == DATATYPE.ASCII:
            location_tags.append((code, kind, 0, value, True))
        elif (
            isinstance(value, tuple) and kind != DATATYPE.ASCII and all(isinstance(one, (int, float)) for one in value)
        ):
            location_tags.append((code, kind, len(value), value, True))
    said = str(page.tags.valueof(_NODATA) or "").strip("\0 ")
    try:
        return Geography(tuple(location_tags), nodata=float(said)) if said else Geography(tuple(location_tags))
    except ValueError:  # no number, so nothing can equal it
        return Geography((*location_tags, (_NODATA, DATATYPE.ASCII, 0, said, True)))


def fill_nodata(pixels: np.ndarray, known: Geography) -> tuple[np.ndarray, Geography]:
    """`(H, W, C)` with the mean of each channel where a pixel holds nothing, and `known` with these places.

    The mean is 0 where none holds anything. A pixel holds nothing where all its channels have the value for that, or
    one is NaN.
    """
    empty = np.zeros(pixels.shape[:2], bool)
    if pixels.dtype.kind == "f":
        empty[np.isnan(pixels).any(axis=2)] = True
    nodata = known.nodata
    if nodata is not None and not math.isnan(nodata):
        with np.errstate(over="ignore"):  # floats of 32 bits have a larger one as infinity
            empty[(pixels == nodata).all(axis=2)] = True
    elif empty.any():
        nodata = math.nan
    if not empty.any():
        return pixels, known
    mean = np.zeros(pixels.shape[2]) if empty.all() else pixels[~empty].mean(axis=0, dtype=np.float64)
    mean = mean if pixels.dtype.kind == "f" else mean.round()
    return np.where(empty[..., None], mean.astype(pixels.dtype), pixels), Geography(known.location_tags, empty, nodata)


def read_world_file(picture: Path) -> tuple[str, str] | None:
    """The text of the world file beside `picture`, and of its `.prj`, empty where there is none; None without any."""
    world, *projection = find_world_files(picture) or (None,)
    if world is None:
        return None
    return world.read_text("latin-1"), "".join(one.read_text("utf-8", "replace") for one in projection)


def orient_world_file(text: str, orientation: int, height: int, width: int) -> str:
    """The text of a world file for a picture `(height, width)` that was turned upright from an EXIF `orientation`."""
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
    return "".join(f"{one + 0.0!r}\n" for one in (x_across, y_across, x_down, y_down, x, y))


def find_world_files(picture: Path) -> tuple[Path, ...]:
    """The world file beside `picture`, and its `.prj` where there is one; empty without a world file.

    Names: photo.jgw or photo.jpgw beside photo.jpg, or photo.wld; in capitals, too.
    """
    for suffix in _suffixes(picture):
        file = _find_sibling(picture, suffix)
        if file is not None and file.stat().st_size < 2**12 and _is_world(file.read_text("latin-1")):
            prj = _find_sibling(picture, ".prj")
            return (file,) if prj is None or prj.stat().st_size >= 2**16 else (file, prj)
    return ()


def _find_sibling(picture: Path, suffix: str) -> Path | None:
    """The file beside `picture` with `suffix` in small letters, in capitals, or as in .Tfw and .TIFw."""
    capitals = suffix.upper()
    files = (picture.with_name(picture.stem + one) for one in (suffix, capitals, suffix.title(), f"{capitals[:-1]}w"))
    return next((file for file in files if os.path.isfile(file)), None)  # `os.path`: a name may become too long


def _is_world(text: str) -> bool:
    """Whether it is six numbers: a pixel's size and turn, and where the first one lies."""
    try:
        return len([float(number) for number in text.split()]) == 6
    except ValueError:
        return False


def world_suffix(picture: Path) -> str:
    """The suffix of a world file for `picture`: .jgw for .jpg."""
    return _suffixes(picture)[0]


def _suffixes(picture: Path) -> tuple[str, str, str]:
    suffix = picture.suffix.lower()
    return f".{suffix[1:2]}{suffix[-1:]}w", f"{suffix}w", ".wld"
