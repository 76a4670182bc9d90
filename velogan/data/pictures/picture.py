"""A picture in memory, and what every decoder does to one: limits, types, orientation."""

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
"""The most bytes of decoded pixels; 16384x16384 pixels of 8-bit RGB take three quarters of it."""

MAX_HEADER_BYTES = 2**26
"""The most bytes that a file may have beside its pixels."""

_MAX_WORK = MAX_BYTES // 2 * 3 + MAX_HEADER_BYTES
"""The most bytes of an image's pixels and the decoder's working memory together."""

_WORK_PER_PIXEL = 32
"""The same for each pixel where `pixel_limit` is set: float32 RGBA and as much again."""

MAX_SIDE = 65535
"""The most pixels of a side."""

DICOM_MAGIC_OFFSET = 128
"""Where a DICOM file says DICM."""

pixel_limit: ContextVar[int | None] = ContextVar("pixel_limit", default=None)
"""The most pixels, height times width, that a file may decode to; None: what `MAX_SIDE` and `MAX_BYTES` leave."""


class TooManyPixels(ValueError):
    """The header states more than `pixel_limit`."""


def check_file(path: Path | str) -> None:
    """Raise ValueError if a file about to be read has too many bytes or is not a regular file."""
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("not a regular file")
    if facts.st_size > MAX_BYTES + MAX_HEADER_BYTES:
        raise ValueError(f"a file of {facts.st_size >> 20} MiB; at most {MAX_BYTES + MAX_HEADER_BYTES >> 20} are read")


def read_first_bytes(path: Path, count: int) -> bytes:
    """What a file begins with; nothing where it cannot be read, or is no regular file."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return b""
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


@contextmanager
def convert_decode_errors(name: str) -> Iterator[None]:
    """Turn whatever a decoder raises into `ValueError` with a printable reason."""
    try:
        yield
    except MemoryError:
        raise ValueError("too large for this machine's memory") from None
    except TooManyPixels:
        raise
    except Exception as error:  # a damaged file can make the libraries raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        reason = reason if reason.isprintable() else ascii(reason)[1:-1][:200]  # it may quote the file
        raise ValueError(reason if type(error) is ValueError else f"damaged {name}: {reason}") from error


@dataclass(frozen=True)
class Picture:
    """A picture at its own depth, upright.

    `pixels`: `(H, W, C)` uint8, uint16 or float32 (floats and signed integers unchanged), colours without alpha;
    `alpha`: `(H, W)` of the same type, or None; `icc`: the colour profile's bytes, or None;
    `metadata`: what else the file says that a translation keeps. The arrays are writable and may be views of one block.
    `mask`: `(H, W, 1)` uint8 or uint16, 0 where a translation leaves it as it is, or None.
    """

    pixels: np.ndarray
    alpha: np.ndarray | None = None
    icc: bytes | None = None
    metadata: FileMetadata = EMPTY_METADATA
    mask: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(array.nbytes for array in (self.pixels, self.alpha, self.mask) if array is not None)

    def read_only(self) -> Picture:
        """Return the same picture with a read-only view of its pixels."""
        pixels = self.pixels.view()
        pixels.flags.writeable = False
        return replace(self, pixels=pixels)


def check_size(height: int, width: int, bytes_per_pixel: float, *, working: float = 0) -> None:
    """Check the size that a header states against the limits, before anything is allocated.

    `working`: bytes per pixel that the decoder needs beside the result. Raises `ValueError`, which is
    `TooManyPixels` for more than `pixel_limit`.
    """
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ValueError(f"{width}x{height} pixels: each side takes 1 to {MAX_SIDE}")
    most = pixel_limit.get()
    if most is not None and height * width > most:
        raise TooManyPixels(f"{width}x{height} pixels; at most {most} are taken")
    size, work = (math.ceil(height * width * each) for each in (bytes_per_pixel, bytes_per_pixel + working))
    for need, limit in ((size, MAX_BYTES), (work, min(_MAX_WORK, (most or MAX_BYTES) * _WORK_PER_PIXEL))):
        if need > limit:
            raise ValueError(f"{width}x{height} pixels take {need >> 20} MiB to decode; the limit is {limit >> 20}")


def pixel_bytes(dtype: np.dtype) -> tuple[int, int]:
    """Return the bytes of a value after `to_supported_dtype`, and of the original if it must be converted, else 0."""
    own = dtype.itemsize if dtype.kind == "u" and dtype.itemsize <= 2 else 1 if dtype.kind == "b" else 4
    return own, 0 if dtype.kind in "uf" and dtype.itemsize == own and dtype.isnative else dtype.itemsize


def to_supported_dtype(array: np.ndarray, *, finite: bool = True) -> np.ndarray:
    """Give an array of any number type as uint8, uint16 or float32.

    bool becomes 0 and 255; unsigned 32- and 64-bit values become uint16 if they fit; signed integers and other
    floats become float32. Raises `ValueError` for NaN and infinities, unless not `finite`, and for types that are no
    numbers.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if kind == "u" and size <= 2:
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    if kind == "u" and array.max() <= 65535:
        return array.astype(np.uint16)
    if kind not in "uif":
        raise ValueError(f"pixels of type {array.dtype} are no real numbers")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32, copy=False)
    wrong = array.size - int(np.count_nonzero(np.isfinite(array))) if finite else 0
    if wrong:
        raise ValueError(f"{wrong} of {array.size} pixel values are NaN or infinite")
    return array


def assemble(
    array: np.ndarray, *, has_alpha: bool = False, icc: bytes | None = None, metadata: FileMetadata = EMPTY_METADATA
) -> Picture:
    """Make a picture of `(H, W)` or `(H, W, C)` decoded values, turned upright by the orientation of `metadata`.

    `has_alpha`: the last channel is alpha.
    """
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
    """Give `(H, W, C)` with alpha as the last channel, in one block."""
    pixels, alpha = picture.pixels, picture.alpha
    return np.ascontiguousarray(pixels if alpha is None else np.concatenate([pixels, alpha[..., None]], axis=2))
