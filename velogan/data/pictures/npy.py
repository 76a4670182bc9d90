"""NumPy's `.npy` files as pictures: `(H, W)` or `(H, W, C)`, channels last; nothing is unpickled."""

from __future__ import annotations

import math
import re

import numpy as np

from velogan.data.pictures.picture import Picture, assemble, check_size, pixel_bytes

_MAGIC = b"\x93NUMPY"

_FIELDS = re.compile(
    rb"""\{(?=.*'descr'\s*:\s*'([^']*)')(?=.*'fortran_order'\s*:\s*(True|False))(?=.*'shape'\s*:\s*\(([\d,\s]*)\))""",
    re.DOTALL,
)
_LONGEST_HEADER = 10_000


def decode_npy(data: bytes) -> Picture:
    """Decode the bytes of a `.npy` file; raises `ValueError` for other shapes, types, and lying headers."""
    length_size = 2 if data[6:7] == b"\1" else 4
    start = 8 + length_size
    length = int.from_bytes(data[8:start], "little")
    if len(data) < start + length or length > _LONGEST_HEADER:
        raise ValueError("the .npy header is truncated or too long")
    found = _FIELDS.match(data[start : start + length])
    if not found:
        raise ValueError("the .npy file holds no plain array of numbers")
    dtype = np.dtype(found[1].decode("ascii"))
    if dtype.kind not in "buif":
        raise ValueError(f"pixels of type {dtype} are no real numbers")
    shape = _shape([int(side) for side in found[3].split(b",") if side.strip()])
    own, before = pixel_bytes(dtype)
    check_size(shape[0], shape[1], math.prod(shape[2:]) * own, working=math.prod(shape[2:]) * before)
    count = math.prod(shape)
    body = memoryview(data)[start + length :]
    if len(body) < count * dtype.itemsize:
        raise ValueError(f"the .npy file is truncated: {len(body)} bytes of {count * dtype.itemsize}")
    values = np.frombuffer(body, dtype, count).reshape(shape, order="F" if found[2] == b"True" else "C")
    return assemble(np.array(values, order="C"))


def _shape(sides: list[int]) -> list[int]:
    if len(sides) not in (2, 3) or 0 in sides:
        raise ValueError(f"shape {tuple(sides)}: a picture is (height, width) or (height, width, channels)")
    if len(sides) == 3 and 2 * sides[0] <= min(sides[1:]):
        mend = "channels come last: save it with np.moveaxis(array, 0, -1)"
        raise ValueError(f"shape {tuple(sides)} looks like (channels, height, width); {mend}")
    return sides


def encode_npy(picture: Picture) -> bytes:
    """Encode a picture without alpha; one channel becomes `(H, W)`, and the colour profile is left out."""
    pixels = picture.pixels[..., 0] if picture.pixels.shape[2] == 1 else picture.pixels
    header = repr({"descr": pixels.dtype.str, "fortran_order": False, "shape": pixels.shape}).encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return _MAGIC + b"\1\0" + len(header).to_bytes(2, "little") + header + pixels.tobytes()
