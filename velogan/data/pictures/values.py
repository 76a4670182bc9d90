"""Pixel values: channels, types and ranges, converted to the networks' [-1, 1] and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from velogan.files import pluralize

Range = tuple[float, float]

_DTYPE_RANGES: dict[str, Range] = {"uint8": (0, 255), "uint16": (0, 65535)}
_TYPES = {"uint8": torch.uint8, "uint16": torch.uint16, "float32": torch.float32}
_LUMA = np.array([19595, 38470, 7471])  # of 65536: Rec. 601, rounded as Pillow has it


@dataclass(frozen=True)
class PixelFormat:
    """Channels, type and range of a domain's pixels.

    `channels` of `dtype` (uint8, uint16, float32); `range`: the pixel values that stand for -1 and +1; None means
    the type's whole range. `own_scale`: values are those of a medical volume on its own scale, see
    `data.sets.slices`; `neighbours`: of the channels, so many belong to the slices below and as many to those above;
    `pages`: what several pages of a TIFF are, channels or slices; None: what the file says.
    Raises `ValueError` for anything else.
    """

    channels: int = 3
    dtype: str = "uint8"
    range: Range | None = None
    own_scale: bool = False
    neighbours: int = 0
    pages: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.channels, int) or self.channels < 1:
            raise ValueError(f"channels={self.channels!r} of a pixel format: it takes a whole number from 1")
        if self.dtype not in _TYPES:
            raise ValueError(f"dtype={self.dtype!r} of a pixel format: it takes one of {', '.join(_TYPES)}")
        if self.range is not None:
            low, high = self.range
            if not (isfinite(low) and isfinite(high) and low < high):
                raise ValueError(f"range={self.range!r} of pixel values: it takes two numbers, the lower one first")
            object.__setattr__(self, "range", (float(low), float(high)))  # JSON gives lists, not tuples


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Give `(..., C)` pixels as `(..., channels)` of the same type.

    Grey is repeated; RGB becomes grey by Rec. 601 luma, rounded as Pillow does. Raises `ValueError` for any other
    change of the count.
    """
    have = pixels.shape[-1]
    if have == channels:
        return pixels
    if have == 1:
        return np.repeat(pixels, channels, axis=-1)
    if have == 3 and channels == 1:
        if pixels.dtype.kind == "f":
            return (pixels @ (_LUMA / 65536).astype(pixels.dtype))[..., None]
        luma = (pixels.astype(np.uint32) * _LUMA.astype(np.uint32)).sum(axis=-1, keepdims=True, dtype=np.uint32)
        return ((luma + 32768) >> 16).astype(pixels.dtype)
    raise ValueError(
        f"a picture of {pluralize(have, 'channel')} where {channels} are wanted: only grey and RGB can be converted"
    )


def common_channels(counts: Sequence[int]) -> int:
    """The channels that most of some pictures can be brought to, see `to_channels`; of several, the most. 1 of none."""

    def fit(wanted: int) -> int:
        return sum(have in (wanted, 1) or (have, wanted) == (3, 1) for have in counts)

    return max(set(counts), key=lambda wanted: (fit(wanted), wanted), default=1)


def promote_dtype(pixels: np.ndarray, dtype: str, range: Range | None) -> np.ndarray:
    """Converts pixels to the same or a deeper `dtype` (uint8, uint16, float32), as training and translation read them.

    Without a declared `range`, 255 of 8 bits becomes 65535 of 16. With one, values are what they are, in its unit;
    ValueError where their type cannot have it, see `can_hold_range`.
    """
    if range is not None and not can_hold_range(pixels.dtype.name, range):
        kind = "8 bits, 0 to 255" if pixels.dtype == np.uint8 else "16 bits without a sign, 0 to 65535"
        raise ValueError(
            f"{kind}, where the declared range of values goes beyond them: save it in the unit of the range"
        )
    if pixels.dtype == np.uint8 and dtype == "uint16" and range is None:
        return pixels.astype(np.uint16) * 257
    return pixels.astype(dtype, copy=False)


def can_hold_range(dtype: str, range: Range) -> bool:
    """Whether values of `dtype` can be in the unit of a range: not below 0 without a sign, nor above 255 in 8 bits,
    which hold pictures and no units."""
    return dtype == "float32" or (range[0] >= 0 and (dtype == "uint16" or range[1] <= 255))


def normalize(pixels: Tensor, range: Range | None) -> Tensor:
    """Give uint8, uint16 or float32 pixels of any shape as float32 in [-1, 1]; values outside `range` are clipped.

    None takes the integer type's whole range, which makes uint8 exactly x / 127.5 - 1. Raises `ValueError` for
    floats without a range.
    """
    low, high = range or _dtype_range(str(pixels.dtype).removeprefix("torch."))
    return ((pixels.float() - low) / ((high - low) / 2) - 1).clamp_(-1, 1)


def denormalize(images: Tensor, dtype: str, range: Range | None) -> Tensor:
    """Give images in [-1, 1], of any shape, as pixels of `dtype` (uint8, uint16, float32) over `range`.

    Integers are rounded and clamped to the range and the type, floats clamped to the range. None takes the integer
    type's whole range. Raises `ValueError` for floats without a range.
    """
    low, high = range or _dtype_range(dtype)
    pixels = (images.float() + 1) * ((high - low) / 2) + low
    if dtype not in _DTYPE_RANGES:
        return pixels.clamp_(low, high)
    least, most = _DTYPE_RANGES[dtype]
    return pixels.round_().clamp_(max(low, least), min(high, most)).to(_TYPES[dtype])


def _dtype_range(dtype: str) -> Range:
    if dtype not in _DTYPE_RANGES:
        raise ValueError(
            f"{dtype} pixels have no whole range: declare the two values that stand for darkest and brightest "
            "(data.range_a, data.range_b)"
        )
    return _DTYPE_RANGES[dtype]
