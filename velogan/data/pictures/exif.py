"""The one thing that is read of a picture's EXIF: how its rows and columns must be turned."""

from __future__ import annotations

import struct

_ORIENTATION, _SHORT, _ENTRY = 0x0112, 3, 12


def orientation_of(exif: bytes) -> int:
    """Returns the orientation, 1 to 8, from the first directory of EXIF bytes; 1 where there is none."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, start)
        for at in range(start + 2, start + 2 + _ENTRY * count, _ENTRY):
            if struct.unpack_from(order + "HH", exif, at) == (_ORIENTATION, _SHORT):
                (value,) = struct.unpack_from(order + "H", exif, at + 8)
                return value if value in range(1, 9) else 1
    except struct.error:  # a picture with damaged metadata can still be read
        pass
    return 1
