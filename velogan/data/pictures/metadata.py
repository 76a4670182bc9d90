"""What a file says of its image beside the pixels, and what a translation keeps: EXIF, resolution, geography."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from PIL import ExifTags, Image

from velogan.data.pictures.geography import NO_GEOGRAPHY, Geography

_TAGS = ExifTags.Base
_ACROSS_DOWN = (
    (_TAGS.ImageWidth, _TAGS.ImageLength),
    (_TAGS.XResolution, _TAGS.YResolution),
    (_TAGS.ExifImageWidth, _TAGS.ExifImageHeight),
    (_TAGS.FocalPlaneXResolution, _TAGS.FocalPlaneYResolution),
)
_INCHES = {2: 1.0, 3: 2.54}  # to a unit of resolution
_MAX_EXIF = 2**16 - 64  # bytes: of a JPEG file; others rarely have more


@dataclass(frozen=True)
class FileMetadata:
    """What a file says beside the pixels.

    - `exif`: the block for an upright image, without its thumbnail, or None
    - `dpi`: pixels per inch across and down, or None
    - `colours`: what a PNG says of its colours beside a profile, as its chunks
    - `geography`: of a TIFF alone
    - `frames`: number of frames of an animation, of which the first is the image
    - `orientation`: as in EXIF, 1 to 8, how the file stores what is upright here
    """

    exif: bytes | None = None
    dpi: tuple[float, float] | None = None
    colours: tuple[tuple[bytes, bytes], ...] = ()
    geography: Geography = NO_GEOGRAPHY
    frames: int = 1
    orientation: int = 1


EMPTY_METADATA = FileMetadata()
"""Of a file that says nothing."""


def parse_exif(exif: bytes) -> FileMetadata:
    """Return orientation and resolution of EXIF bytes, and the block for an upright image: what is not damaged."""
    metadata, tags = FileMetadata(), Image.Exif()
    with suppress(Exception):  # damaged EXIF makes Pillow raise anything
        tags.load(exif)
        orientation: Any = tags.get(_TAGS.Orientation)
        metadata = FileMetadata(orientation=orientation if orientation in range(1, 9) else 1)
        unit = tags.get(_TAGS.ResolutionUnit, 2)
        metadata = replace(metadata, dpi=compute_dpi(tags.get(_TAGS.XResolution), tags.get(_TAGS.YResolution), unit))
        if metadata.orientation >= 5:
            for directory in (tags, tags.get_ifd(ExifTags.IFD.Exif)):
                for across, down in _ACROSS_DOWN:
                    if across in directory and down in directory:
                        directory[across], directory[down] = directory[down], directory[across]
        if _TAGS.Orientation in tags:
            tags[_TAGS.Orientation] = 1
        block = tags.tobytes()
        metadata = replace(metadata, exif=block if len(tags) and len(block) <= _MAX_EXIF else None)
    return metadata


def compute_dpi(across: Any, down: Any, unit: Any) -> tuple[float, float] | None:
    """Return pixels per inch of two positive numbers per TIFF's `unit`, 2 (inch) or 3 (centimetre); None of others."""
    with suppress(TypeError, ValueError, ZeroDivisionError):
        across, down = float(across), float(down)
        if 0 < across < 2**24 and 0 < down < 2**24 and unit in _INCHES:
            return across * _INCHES[unit], down * _INCHES[unit]
    return None
