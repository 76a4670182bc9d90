"""A decoded picture, and the limits, types and orientation that all decoders share."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from velogan.data.pictures.metadata import EMPTY_METADATA, FileMetadata

MAX_BYTES = 2**30
"""Maximum number of bytes of decoded pixels; 16384x16384 pixels of 8-bit RGB take three quarters of it."""

MAX_HEADER_BYTES = 2**26
"""Maximum number of bytes of a file besides its pixels."""

_MAX_WORK = MAX_BYTES // 2 * 3 + MAX_HEADER_BYTES
"""Maximum number of bytes of an image's pixels and the decoder's working memory together."""

_WORK_PER_PIXEL = 32
"""Maximum bytes of pixels and working memory per pixel of `pixel_limit`, if it is set; float32 RGBA takes half."""

MAX_SIDE = 65535
"""Maximum number of pixels of a side."""

DICOM_MAGIC_OFFSET = 128
"""The position of `DICM` in a DICOM file."""

pixel_limit: ContextVar[int | None] = ContextVar("pixel_limit", default=None)
"""Maximum height times width that a file may decode to; None: only `MAX_SIDE` and `MAX_BYTES` apply."""


class TooManyPixelsError(ValueError):
    """Raised if a header states more pixels than `pixel_limit`."""


def check_file(path: Path | str) -> None:
    """Raise ValueError if a file has too many bytes to be read, or is not a regular file."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    if status.st_size > MAX_BYTES + MAX_HEADER_BYTES:
        raise ValueError(f"a file of {status.st_size >> 20} MiB; at most {MAX_BYTES + MAX_HEADER_BYTES >> 20} are read")


def read_first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; empty if it cannot be read, or is not a regular file."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return b""
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


@contextmanager
def convert_decode_errors(name: str) -> Iterator[None]:
    """Convert any exception of a decoder to ValueError with a printable reason; `name` is the file format."""
    try:
        yield
    except MemoryError:
        raise ValueError("too large for this machine's memory") from None
    except TooManyPixelsError:
        raise
    except Exception as error:  # a damaged file can make the libraries raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        reason = reason if reason.isprintable() else ascii(reason)[1:-1][:200]  # it may quote the file
        raise ValueError(reason if type(error) is ValueError else f"damaged or unsupported {name}: {reason}") from error


@dataclass(frozen=True)
class Picture:
    """A decoded picture at its native bit depth, upright.

    pixels: `(H, W, C)` uint8, uint16 or float32, without alpha
    alpha: `(H, W)` of the same type, or None
    icc: the bytes of the colour profile, or None
    metadata: other data of the file that a translation keeps

    The arrays are writable; both may be views of one array.
    """

    pixels: np.ndarray
    alpha: np.ndarray | None = None
    icc: bytes | None = None
    metadata: FileMetadata = EMPTY_METADATA

    @property
    def nbytes(self) -> int:
        """The number of bytes of pixels and alpha."""
        return sum(array.nbytes for array in (self.pixels, self.alpha) if array is not None)

    def as_read_only(self) -> Picture:
        """Return the picture with a read-only view of its pixels."""
        pixels = self.pixels.view()
        pixels.flags.writeable = False
        return replace(self, pixels=pixels)


def check_size(height: int, width: int, bytes_per_pixel: float, *, working: float = 0) -> None:
    """Check the size that a header states against the limits, before anything is allocated.

    `working`: bytes per pixel that the decoder needs besides its result. Raises ValueError, or its subclass
    TooManyPixelsError if the size exceeds `pixel_limit`.
    """
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ValueError(f"{width}x{height} pixels: each side takes 1 to {MAX_SIDE}")
    limit = pixel_limit.get()
    if limit is not None and height * width > limit:
        raise TooManyPixelsError(f"{width}x{height} pixels; at most {limit} are accepted")
    size, work = (math.ceil(height * width * each) for each in (bytes_per_pixel, bytes_per_pixel + working))
    for needed, max_bytes in ((size, MAX_BYTES), (work, min(_MAX_WORK, (limit or MAX_BYTES) * _WORK_PER_PIXEL))):
        if needed > max_bytes:
            raise ValueError(
                f"{width}x{height} pixels take {needed >> 20} MiB to decode; the limit is {max_bytes >> 20}"
            )


def pixel_bytes(dtype: np.dtype) -> tuple[int, int]:
    """Return the bytes per value after `to_supported_dtype`, and before it; the latter is 0 if nothing is converted."""
    converted = dtype.itemsize if dtype.kind == "u" and dtype.itemsize <= 2 else 1 if dtype.kind == "b" else 4
    return converted, 0 if dtype.kind in "uf" and dtype.itemsize == converted and dtype.isnative else dtype.itemsize


def to_supported_dtype(array: np.ndarray, *, finite: bool = True) -> np.ndarray:
    """Return an array of any numeric type as uint8, uint16 or float32.

    bool becomes 0 and 255; unsigned 32- and 64-bit values become uint16 if they fit; all other values become float32.
    Raises ValueError for complex and other types that are not real numbers; if `finite`, also for NaN and infinity.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if kind == "u" and size <= 2:
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    if kind == "u" and array.max() <= 65535:
        return array.astype(np.uint16)
    if kind not in "uif":
        raise ValueError(f"pixels of type {array.dtype} are not real numbers")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32, copy=False)
    invalid = array.size - int(np.count_nonzero(np.isfinite(array))) if finite else 0
    if invalid:
        raise ValueError(
            f"{invalid} of {array.size} pixel values are NaN or infinite: replace them, as by numpy.nan_to_num"
        )
    return array


def assemble(
    array: np.ndarray, *, has_alpha: bool = False, icc: bytes | None = None, metadata: FileMetadata = EMPTY_METADATA
) -> Picture:
    """Build an upright picture from decoded `(H, W)` or `(H, W, C)` values; `has_alpha`: the last channel is alpha."""
    array = to_supported_dtype(array if array.ndim == 3 else array[:, :, None])
    orientation = metadata.orientation
    if orientation > 1:
        turned = array.swapaxes(0, 1) if orientation >= 5 else array
        metadata = replace(metadata, dpi=metadata.dpi[::-1]) if orientation >= 5 and metadata.dpi else metadata
        down = -1 if orientation in (3, 4, 7, 8) else 1
        across = -1 if orientation in (2, 3, 6, 7) else 1
        array = np.ascontiguousarray(turned[::down, ::across])
    if not has_alpha:
        return Picture(array, icc=icc, metadata=metadata)
    return Picture(array[..., :-1], array[..., -1], icc, metadata)


def with_alpha_channel(picture: Picture) -> np.ndarray:
    """Return the pixels `(H, W, C)`, contiguous, with alpha, if there is any, as an additional last channel."""
    pixels, alpha = picture.pixels, picture.alpha
    return np.ascontiguousarray(pixels if alpha is None else np.concatenate([pixels, alpha[..., None]], axis=2))
