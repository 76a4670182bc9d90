"""Decoding and encoding of JPEG files; the header is read here, before a library sees the file."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import simplejpeg
from PIL import JpegImagePlugin

from velogan.data.pictures.formats import QUALITY, decode_with_pillow, encode_with_pillow
from velogan.data.pictures.notes import Notes, kept_exif, orientation_of, resolution_of, told
from velogan.data.pictures.picture import Picture, assemble, check_size

_SMALL = 2**20  # pixels: any number of scans of so small a picture is fast
_MAX_SCANS = 64  # each is a pass over the whole picture; real files have about 10


def decode_jpeg(data: bytes) -> Picture:
    """Decode a JPEG file: grey or RGB; CMYK and YCCK become RGB."""
    header = read_jpeg_header(data)
    height, width, colours = header.height, header.width, header.components
    check_size(height, width, min(colours, 3), working=header.working + (4 if colours == 4 else 0))
    if colours == 4:
        pixels = decode_with_pillow(JpegImagePlugin.JpegImageFile, header.plain)
        return assemble(pixels, orientation=header.orientation, notes=header.notes)
    try:
        pixels = simplejpeg.decode_jpeg(data, colorspace="GRAY" if colours == 1 else "RGB")
    except ValueError:  # it fails on harmless warnings too; Pillow fails on damage only
        check_size(height, width, colours, working=header.working + 4)
        pixels = decode_with_pillow(JpegImagePlugin.JpegImageFile, header.plain)
    return assemble(pixels, icc=header.icc, orientation=header.orientation, notes=header.notes)


@dataclass(frozen=True)
class JpegHeader:
    """The header of a JPEG file; `plain`: the file without its metadata.

    `working`: bytes per pixel that a decoder needs for the coefficients of several scans.
    """

    height: int
    width: int
    components: int
    working: float
    orientation: int
    icc: bytes | None
    plain: bytes
    notes: Notes


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Read a JPEG's header; raises `ValueError` if the file is too short for its pixels, or has too many scans."""
    orientation, profile, frame, rest = 1, {}, None, [data[:2]]
    exif, notes = None, Notes()
    for marker, start, stop in _jpeg_segments(data):
        if marker == 0xE1 and data.startswith(b"Exif\0\0", start + 4):
            orientation, exif = orientation_of(data[start + 4 : stop]), kept_exif(data[start + 4 : stop])
            notes = notes if notes.resolution else resolution_of(data[start + 4 : stop])
        elif (
            marker == 0xE0
            and data.startswith(b"JFIF\0", start + 4)
            and stop >= start + 16
            and data[start + 11] in (1, 2)
        ):
            notes = told(*struct.unpack_from(">HH", data, start + 12), data[start + 11] + 1)
        elif marker == 0xE2 and data.startswith(b"ICC_PROFILE\0", start + 4):
            profile[data[start + 16]] = data[start + 18 : stop]
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame = (marker, *struct.unpack_from(">HHB", data, start + 5), data[start + 11 : stop : 3])
        if not 0xE1 <= marker <= 0xED:
            rest.append(data[start:stop])
    if frame is None or frame[0] > 0xC2:
        raise ValueError("a JPEG without pixels, or of a kind that is not supported (lossless, arithmetic coding)")
    kind, height, width, components, factors = frame
    if len(data) * 8 < math.ceil(height / 8) * math.ceil(width / 8):  # each block of 8x8 takes a bit or more
        raise ValueError(f"the JPEG file is truncated: {len(data)} bytes for {width}x{height} pixels")
    scans = rest[-1].count(b"\xff\xda") if height * width > _SMALL else 1
    if scans > _MAX_SCANS:
        raise ValueError(f"a JPEG of {scans} scans; at most {_MAX_SCANS} are read")
    icc = b"".join(profile[key] for key in sorted(profile)) or None
    samples = [(factor >> 4) * (factor & 15) for factor in factors]
    working = 2 * sum(samples) / max([1, *samples]) if kind == 0xC2 or scans > 1 else 0
    return JpegHeader(height, width, components, working, orientation, icc, b"".join(rest), replace(notes, exif=exif))


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and stop of the segments before the pixels, then of all that follows as one."""
    at = data.find(b"\xff", 2)
    while at > 0 and at + 4 <= len(data) and data[at + 1] != 0xDA:
        if data[at + 1] == 0xFF:  # padding
            at += 1
            continue
        stop = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], at, stop
        at = data.find(b"\xff", stop)  # libraries skip bytes between segments
    yield 0xDA, at if at > 0 else len(data), len(data)


def encode_jpeg(picture: Picture) -> bytes:
    """Encode 8-bit grey or RGB, colour at full resolution (4:4:4); raises `ValueError` for sides over 65500."""
    return encode_with_pillow(picture, "JPEG", quality=QUALITY, subsampling=0)
