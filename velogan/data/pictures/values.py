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
_LUMA = np.array([19595, 38470, 7471])  # weights of Rec. 601 in units of 1/65536, rounded as in Pillow


@dataclass(frozen=True)
class PixelFormat:
    """Channels, type and range of a domain's pixels. Raises ValueError if a value is not valid.

    channels: number of channels
    dtype: uint8, uint16 or float32
    range: the pixel values that become -1 and +1; None: the full range of the type
    own_scale: whether each medical volume is scaled by its own range, see `data.sets.slices.OWN_RANGE`
    neighbours: number of slices below, and as many above, that are additional channels
    pages: the meaning of the pages of a TIFF, channels or slices; None: as the file states
    """

    channels: int = 3
    dtype: str = "uint8"
    range: Range | None = None
    own_scale: bool = False
    neighbours: int = 0
    pages: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.channels, int) or self.channels < 1:
            raise ValueError(f"channels={self.channels!r}: not valid in a pixel format; use an integer from 1")
        if self.dtype not in _TYPES:
            raise ValueError(f"dtype={self.dtype!r}: not valid in a pixel format; use one of {', '.join(_TYPES)}")
        if self.range is not None:
            low, high = self.range
            if not (isfinite(low) and isfinite(high) and low < high):
                raise ValueError(
                    f"range={self.range!r}: not valid for pixel values; use two finite numbers, the lower one first"
                )
            object.__setattr__(self, "range", (float(low), float(high)))  # JSON gives lists, not tuples


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Convert `(..., C)` pixels to `(..., channels)` of the same type.

    Grey is repeated; RGB becomes grey by Rec. 601 luma, rounded as in Pillow. Raises ValueError for any other change
    of the number of channels.
    """
    count = pixels.shape[-1]
    if count == channels:
        return pixels
    if count == 1:
        return np.repeat(pixels, channels, axis=-1)
    if count == 3 and channels == 1:
        if pixels.dtype.kind == "f":
            return (pixels @ (_LUMA / 65536).astype(pixels.dtype))[..., None]
        luma = (pixels.astype(np.uint32) * _LUMA.astype(np.uint32)).sum(axis=-1, keepdims=True, dtype=np.uint32)
        return ((luma + 32768) >> 16).astype(pixels.dtype)
    raise ValueError(
        f"a picture of {pluralize(count, 'channel')}, but {channels} are needed: only grey and RGB can be converted"
    )


def common_channels(counts: Sequence[int]) -> int:
    """Return the number of channels to which `to_channels` can convert most pictures; the largest of equally good ones.

    `counts`: the number of channels of each picture; if there are no pictures, the result is 1.
    """

    def count_convertible(channels: int) -> int:
        return sum(count in (channels, 1) or (count, channels) == (3, 1) for count in counts)

    return max(set(counts), key=lambda channels: (count_convertible(channels), channels), default=1)


def promote_dtype(pixels: np.ndarray, dtype: str, value_range: Range | None) -> np.ndarray:
    """Convert pixels to `dtype` (uint8, uint16, float32), which must be at least as deep as their type.

    With a `value_range`, values are unchanged; without it, uint8 is scaled to uint16, so that 255 becomes 65535.
    Raises ValueError if the type of `pixels` cannot hold the range, see `can_hold_range`.
    """
    if value_range is not None and not can_hold_range(pixels.dtype.name, value_range):
        kind = "8 bits, 0 to 255" if pixels.dtype == np.uint8 else "16 bits without a sign, 0 to 65535"
        raise ValueError(f"{kind}, but the declared range of values exceeds them: save it in the unit of the range")
    if pixels.dtype == np.uint8 and dtype == "uint16" and value_range is None:
        return pixels.astype(np.uint16) * 257
    return pixels.astype(dtype, copy=False)


def can_hold_range(dtype: str, value_range: Range) -> bool:
    """Return whether `dtype` can hold `value_range`: uint8 and uint16 hold no negative values, uint8 none above 255."""
    return dtype == "float32" or (value_range[0] >= 0 and (dtype == "uint16" or value_range[1] <= 255))


def normalize(pixels: Tensor, value_range: Range | None) -> Tensor:
    """Convert uint8, uint16 or float32 pixels of any shape to float32 in [-1, 1]; clip values outside `value_range`.

    `value_range`: None stands for the full range of the integer type, so that uint8 becomes exactly x / 127.5 - 1.
    Raises ValueError for floats without a range.
    """
    low, high = value_range or full_range(str(pixels.dtype).removeprefix("torch."))
    return ((pixels.float() - low) / ((high - low) / 2) - 1).clamp_(-1, 1)


def denormalize(images: Tensor, dtype: str, value_range: Range | None) -> Tensor:
    """Convert images in [-1, 1], of any shape, to pixels of `dtype` (uint8, uint16, float32) over `value_range`.

    Integers are rounded and clamped to the range and the type, floats clamped to the range. `value_range`: None stands
    for the full range of the integer type. Raises ValueError for floats without a range.
    """
    low, high = value_range or full_range(dtype)
    pixels = (images.float() + 1) * ((high - low) / 2) + low
    if dtype not in _DTYPE_RANGES:
        return pixels.clamp_(low, high)
    min_value, max_value = _DTYPE_RANGES[dtype]
    return pixels.round_().clamp_(max(low, min_value), min(high, max_value)).to(_TYPES[dtype])


def full_range(dtype: str) -> Range:
    """Return the full range of an integer type. Raises ValueError for float32."""
    if dtype not in _DTYPE_RANGES:
        raise ValueError(
            f"{dtype} pixels have no full range: declare the values of the darkest and the brightest pixel "
            "(data.range_a, data.range_b)"
        )
    return _DTYPE_RANGES[dtype]
