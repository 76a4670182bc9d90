"""The location of georeferenced images (GeoTIFF), and their pixels without data.

A translation has the pixels of its input at the same places, so the georeference of the input stays valid. Tags: OGC
19-008r4, GeoTIFF 1.1, section 7.1; GDAL's tag of the value that means "no data".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
        """Return `(H, W, C)` pixels with `empty` ones set to nodata. Raises ValueError if the dtype cannot hold it."""
        if self.empty is None or self.nodata is None:
            return pixels
        if not self._can_hold_nodata(pixels.dtype):
            raise ValueError(
                f"the nodata value {self.nodata:g} of the input cannot be stored as {pixels.dtype}, the result's type: "
                "give the target domain a range of floating-point values, or change the input's tag GDAL_NODATA"
            )
        return np.where(self.empty[..., None], pixels.dtype.type(self._nodata_as(pixels.dtype)), pixels)

    def avoid_nodata(self, pixels: np.ndarray) -> np.ndarray:
        """Return `(H, W, C)` pixels with the nodata value replaced by the next value, so that all count as data."""
        dtype, nodata = pixels.dtype, self._nodata_as(pixels.dtype)
        if nodata is None or math.isnan(nodata) or not self._can_hold_nodata(dtype):
            return pixels
        return np.where(pixels == dtype.type(nodata), _next_value(nodata, dtype), pixels)

    def _can_hold_nodata(self, dtype: np.dtype) -> bool:
        """Return whether there is a nodata value and `dtype` can represent it."""
        nodata = self.nodata
        if nodata is None or dtype.kind == "f":
            return nodata is not None
        return float(nodata).is_integer() and 0 <= nodata <= np.iinfo(dtype).max

    def tags(self, dtype: np.dtype) -> list[Tag]:
        """Return the TIFF tags to write with pixels of `dtype`: the location, and GDAL's tag of the nodata value."""
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
    """Return an integer 1 above `value` (below it at the maximum), or a float 16 steps above it, since GDAL rounds."""
    if dtype.kind == "f":
        return dtype.type(value) + 16 * np.spacing(np.abs(dtype.type(value)))
    return dtype.type(value + 1 if value < np.iinfo(dtype).max else value - 1)


NO_GEOGRAPHY = Geography()
"""The geography of a picture without a georeference."""


def read_geography(page: TiffPage) -> Geography:
    """Read the location and nodata value from the tags of a page; `fill_nodata` adds `empty`."""
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
    """Set `(H, W, C)` pixels without data to each channel's mean; return all pixels, and the geography with `empty`.

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
