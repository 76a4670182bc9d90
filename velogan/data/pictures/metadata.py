"""The metadata of a picture file that a translation keeps: EXIF, resolution, colours, geography."""

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
_UNITS_PER_INCH = {2: 1.0, 3: 2.54}  # by the code of the unit of resolution: inch, centimetre
_MAX_EXIF = 2**16 - 64  # bytes that fit into a JPEG file; other files rarely have more


@dataclass(frozen=True)
class FileMetadata:
    """The metadata of a picture file.

    - `exif`: the EXIF block, adapted to the upright image and without its thumbnail, or None
    - `dpi`: pixels per inch across and down, or None
    - `geography`: the location of a GeoTIFF and its pixels without data
    - `frames`: the number of frames of an animation; the image is the first
    - `orientation`: the EXIF orientation of the stored image, 1 to 8; the decoded image is upright
    """

    exif: bytes | None = None
    dpi: tuple[float, float] | None = None
    geography: Geography = NO_GEOGRAPHY
    frames: int = 1
    orientation: int = 1


EMPTY_METADATA = FileMetadata()
"""The metadata of a file that has none."""


def parse_exif(exif: bytes) -> FileMetadata:
    """Return the undamaged parts of EXIF bytes: orientation, resolution, and the block adapted to the upright image."""
    metadata, tags = FileMetadata(), Image.Exif()
    with suppress(Exception):  # damaged EXIF makes Pillow raise anything
        tags.load(exif)
        orientation: Any = tags.get(_TAGS.Orientation)
        metadata = FileMetadata(orientation=orientation if orientation in range(1, 9) else 1)
        unit = tags.get(_TAGS.ResolutionUnit, 2)
        metadata = replace(metadata, dpi=compute_dpi(tags.get(_TAGS.XResolution), tags.get(_TAGS.YResolution), unit))
        if metadata.orientation >= 5:
            for ifd in (tags, tags.get_ifd(ExifTags.IFD.Exif)):
                for across, down in _ACROSS_DOWN:
                    if across in ifd and down in ifd:
                        ifd[across], ifd[down] = ifd[down], ifd[across]
        if _TAGS.Orientation in tags:
            tags[_TAGS.Orientation] = 1
        block = tags.tobytes()
        metadata = replace(metadata, exif=block if len(tags) and len(block) <= _MAX_EXIF else None)
    return metadata


def compute_dpi(across: Any, down: Any, unit: Any) -> tuple[float, float] | None:
    """Convert two resolutions per TIFF `unit`, 2 (inch) or 3 (centimetre), to pixels per inch; None if not possible."""
    with suppress(TypeError, ValueError, ZeroDivisionError):
        across, down = float(across), float(down)
        if 0 < across < 2**24 and 0 < down < 2**24 and unit in _UNITS_PER_INCH:
            return across * _UNITS_PER_INCH[unit], down * _UNITS_PER_INCH[unit]
    return None
