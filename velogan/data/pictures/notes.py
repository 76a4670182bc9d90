"""What a file says of its picture beside the pixels, and what a translation keeps: EXIF, resolution, geography.

EXIF is kept byte for byte, so that what makers put there by offset stays whole, but for three things: the orientation
is 1, since pictures are read upright; what is told of rows and of columns changes places where these do; and the
thumbnail, which shows the original, is blanked and no longer named.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from velogan.data.pictures.geography import NOWHERE, Geography

ORIENTATION = 0x0112
_THUMBNAIL = (0x0201, 0x0202)  # where it is, and how many bytes
_CAMERA = 0x8769  # where the directory of the camera's settings is
_ACROSS_DOWN = ((0x0100, 0x0101), (0x011A, 0x011B), (0xA002, 0xA003), (0xA20E, 0xA20F))  # sides and resolutions
_PER, _UNIT = (0x011A, 0x011B), 0x0128
_SHORT, _RATIONAL, _ENTRY = 3, 5, 12
_CENTIMETRES = Fraction(254, 100)  # of an inch
_MOST_EXIF = 2**16 - 64  # of a JPEG file; others rarely have more

_Whole = tuple[str, int, int]  # byte order, where the first directory begins, its entries


@dataclass(frozen=True)
class Notes:
    """`exif`: a block that begins with `II` or `MM`, or None; `resolution`: pixels across and down for `unit`.

    `unit`: that of TIFF: 2 is an inch, 3 a centimetre, 1 none, so that only the pixels' shape is told.
    `colours`: what a PNG says of its colours beside a profile, as its chunks. `geography`: of a TIFF alone. `frames`:
    those of an animation, of which the first one is the picture. `orientation`: as in EXIF, how the file has what is
    upright here.
    """

    exif: bytes | None = None
    resolution: tuple[Fraction, Fraction] | None = None
    unit: int = 2
    colours: tuple[tuple[bytes, bytes], ...] = ()
    geography: Geography = NOWHERE
    frames: int = 1
    orientation: int = 1

    def turned(self) -> Notes:
        """As it is of the picture with rows and columns exchanged."""
        return self if self.resolution is None else replace(self, resolution=self.resolution[::-1])

    def per_inch(self) -> tuple[float, float] | None:
        """Pixels for an inch across and down; None where no unit is told."""
        if self.resolution is None or self.unit not in (2, 3):
            return None
        by = _CENTIMETRES if self.unit == 3 else Fraction(1)
        return float(self.resolution[0] * by), float(self.resolution[1] * by)


NOTHING = Notes()
"""Of a file that says nothing."""


def told(across: object, down: object, unit: int) -> Notes:
    """Notes with a resolution of two positive numbers, or pairs of them that are fractions; else without."""
    values = []
    for value in (across, down):
        top, bottom = value if isinstance(value, tuple) and len(value) == 2 else (value, 1)
        if not (isinstance(top, int) and isinstance(bottom, int) and 0 < top < 2**32 and 0 < bottom < 2**32):
            return Notes()
        values.append(Fraction(top, bottom))
    return Notes(resolution=(values[0], values[1]), unit=unit) if unit in (1, 2, 3) else Notes()


def resolution_of(exif: bytes) -> Notes:
    """Notes with the resolution that the first directory of EXIF bytes tells; without, where it tells none."""
    try:
        found = _values(exif, dict.fromkeys(_PER, _RATIONAL) | {_UNIT: _SHORT})
    except struct.error:  # the unit may be in what is damaged
        return Notes()
    return told(found.get(_PER[0]), found.get(_PER[1]), found.get(_UNIT, 2))


def orientation_of(exif: bytes) -> int:
    """Give the orientation, 1 to 8, from the first directory of EXIF bytes; 1 if there is none."""
    try:
        value = _values(exif, {ORIENTATION: _SHORT}).get(ORIENTATION, 1)
    except struct.error:  # a picture with damaged metadata can still be read
        return 1
    return value if value in range(1, 9) else 1


def _values(exif: bytes, kinds: Mapping[int, int]) -> dict[int, Any]:
    """What the first directory of EXIF bytes says, by tag, of these kinds: a number, or two for a fraction.

    struct.error where it is damaged.
    """
    exif, found = exif.removeprefix(b"Exif\0\0"), {}
    order, start, count = _first(exif)
    for at, tag, kind in _entries(exif, order, start, count):
        if kinds.get(tag) != kind:
            continue
        if kind == _SHORT:
            found[tag] = struct.unpack_from(order + "H", exif, at + 8)[0]
        else:
            found[tag] = struct.unpack_from(order + "II", exif, struct.unpack_from(order + "I", exif, at + 8)[0])
    return found


def kept_exif(exif: bytes) -> bytes | None:
    """EXIF for the translation: upright, without a thumbnail; None where it is damaged, or too long for a JPEG."""
    made = bytearray(exif.removeprefix(b"Exif\0\0"))
    try:
        order, start, count = _first(made)
        if orientation_of(exif) >= 5:
            _exchange(made, order, start, count)
        for at, tag, kind in _entries(made, order, start, count):
            if (tag, kind) == (ORIENTATION, _SHORT):
                struct.pack_into(order + "H", made, at + 8, 1)
        after = start + 2 + _ENTRY * count
        second = struct.unpack_from(order + "I", made, after)[0] if after + 4 <= len(made) else 0
        if second:
            _blank(made, order, second)
            struct.pack_into(order + "I", made, after, 0)
    except struct.error:
        return None
    return bytes(made) if count and len(made) <= _MOST_EXIF else None


def _exchange(made: bytearray, order: str, start: int, count: int) -> None:
    """What is told of rows for columns, and the other way round, in a directory and that of the camera."""
    places = {tag: at for at, tag, _ in _entries(made, order, start, count)}
    if _CAMERA in places:
        inner = struct.unpack_from(order + "I", made, places[_CAMERA] + 8)[0]
        places |= {
            tag: at for at, tag, _ in _entries(made, order, inner, struct.unpack_from(order + "H", made, inner)[0])
        }
    for one, other in ((places[one], places[other]) for one, other in _ACROSS_DOWN if {one, other} <= places.keys()):
        first, second = (slice(at + 2, at + _ENTRY) for at in (one, other))
        made[first], made[second] = made[second], made[first]


def _blank(made: bytearray, order: str, second: int) -> None:
    """Zeros for the thumbnail that the second directory names, and for the directory."""
    count = struct.unpack_from(order + "H", made, second)[0]
    place = dict.fromkeys(_THUMBNAIL, 0)
    for at, tag, _ in _entries(made, order, second, count):
        if tag in place:
            place[tag] = struct.unpack_from(order + "I", made, at + 8)[0]
    for start, length in ((place[_THUMBNAIL[0]], place[_THUMBNAIL[1]]), (second, 2 + _ENTRY * count)):
        stop = min(start + length, len(made))
        if start >= 8:
            made[start:stop] = bytes(max(0, stop - start))


def _first(exif: bytes | bytearray) -> _Whole:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(exif[:4]))
    if order is None:
        return "<", 0, 0
    start = struct.unpack_from(order + "I", exif, 4)[0]
    return order, start, struct.unpack_from(order + "H", exif, start)[0]


def _entries(exif: bytes | bytearray, order: str, start: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Place, tag and type of each entry of a directory."""
    for at in range(start + 2, start + 2 + _ENTRY * count, _ENTRY):
        yield at, *struct.unpack_from(order + "HH", exif, at)
