"""NumPy's `.npy` files as pictures: `(H, W)` or `(H, W, C)`, channels last; nothing is unpickled."""

from __future__ import annotations

import io
import math

import numpy as np

from velogan.data.pictures.picture import Picture, assemble, check_size, pixel_bytes


def decode_npy(data: bytes) -> Picture:
    """Decode the bytes of a `.npy` file; raises ValueError for other shapes and types, and for invalid headers."""
    array = np.load(io.BytesIO(data), allow_pickle=False)
    sides, (own_bytes, original_bytes) = array.shape, pixel_bytes(array.dtype)
    if len(sides) not in (2, 3) or min(sides) < 1:
        raise ValueError(f"shape {sides}: a picture is (height, width) or (height, width, channels)")
    if len(sides) == 3 and 2 * sides[0] <= min(sides[1:]):
        fix = "channels come last: save it with np.moveaxis(array, 0, -1)"
        raise ValueError(f"shape {sides} looks like (channels, height, width); {fix}")
    check_size(sides[0], sides[1], math.prod(sides[2:]) * own_bytes, working=math.prod(sides[2:]) * original_bytes)
    return assemble(np.ascontiguousarray(array))


def encode_npy(picture: Picture) -> bytes:
    """Encode a picture without alpha; one channel becomes `(H, W)`, and the colour profile is left out."""
    pixels = picture.pixels[..., 0] if picture.pixels.shape[2] == 1 else picture.pixels
    file = io.BytesIO()
    np.save(file, pixels, allow_pickle=False)
    return file.getvalue()
