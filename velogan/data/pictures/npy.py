"""NumPy's `.npy` files as pictures: `(H, W)` or `(H, W, C)`, channels last; nothing is unpickled."""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.lib import format as npy

from velogan.data.pictures.picture import Picture, assemble, check_size, pixel_bytes

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def decode_npy(data: bytes) -> Picture:
    """Decode the bytes of a `.npy` file; raises `ValueError` for other shapes and types, and for false headers."""
    file = io.BytesIO(data)
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"a .npy file of version {version[0]}.{version[1]}; arrays of numbers have 1.0 or 2.0")
    sides, fortran, dtype = _HEADERS[version](file)
    if dtype.kind not in "buif":
        raise ValueError(f"pixels of type {dtype} are no real numbers")
    if len(sides) not in (2, 3) or min(sides) < 1:
        raise ValueError(f"shape {sides}: a picture is (height, width) or (height, width, channels)")
    if len(sides) == 3 and 2 * sides[0] <= min(sides[1:]):
        mend = "channels come last: save it with np.moveaxis(array, 0, -1)"
        raise ValueError(f"shape {sides} looks like (channels, height, width); {mend}")
    own, before = pixel_bytes(dtype)
    check_size(sides[0], sides[1], math.prod(sides[2:]) * own, working=math.prod(sides[2:]) * before)
    count = math.prod(sides)
    body = memoryview(data)[file.tell() :]
    if len(body) < count * dtype.itemsize:
        raise ValueError(f"the .npy file is truncated: {len(body)} bytes of {count * dtype.itemsize}")
    values = np.frombuffer(body, dtype, count).reshape(sides, order="F" if fortran else "C")
    return assemble(np.array(values, order="C"))


def encode_npy(picture: Picture) -> bytes:
    """Encode a picture without alpha; one channel becomes `(H, W)`, and the colour profile is left out."""
    pixels = picture.pixels[..., 0] if picture.pixels.shape[2] == 1 else picture.pixels
    file = io.BytesIO()
    np.save(file, pixels, allow_pickle=False)
    return file.getvalue()
