"""Single pictures: files to arrays at their own depth, and back. What becomes of what is in docs/formats.md.

8 or 16 bits become uint8 or uint16, 1 to 7 bits uint8, scaled to 0..255. 9 to 15 bits, and integers of 32 bits within
0..65535 (TIFF), become uint16, unchanged. Signed integers and floats become float32; infinity is refused, and NaN but
in TIFF. The first bytes of a file tell its format, not its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from velogan.data.pictures.formats import (
    decode_file,
    encode_bmp,
    encode_jpeg,
    encode_png,
    encode_ppm,
    encode_webp,
)
from velogan.data.pictures.npy import decode_npy, encode_npy
from velogan.data.pictures.picture import (
    DICOM_MAGIC_OFFSET,
    MAX_SIDE,
    Picture,
    check_file,
    convert_decode_errors,
    read_first_bytes,
)
from velogan.data.pictures.tiff import decode_tiff, encode_tiff
from velogan.files import pluralize

_FORMATS = (
    (re.compile(rb"\xff\xd8\xff"), "JPEG"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "PNG"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "WebP"),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), "TIFF"),
    (re.compile(rb"BM"), "BMP"),
    (re.compile(rb"P[1-6]\s"), "PPM"),
    (re.compile(rb"\x93NUMPY"), "npy"),
    (re.compile(rb"GIF8"), "GIF"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "AVIF"),
    (re.compile(rb"....ftyp(hei[cxms]|hev[cxms])", re.DOTALL), "HEIC"),
    (re.compile(rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"), "JPEG 2000"),
)
_WEAK = {"BMP": re.compile(rb"BM.{4}\0{4}", re.DOTALL), "PPM": re.compile(rb"P[1-6]\s+[#\d]")}
"""More of what such files begin with, for names that do not say that they are pictures."""
_CAMERAS = {".dng", ".nef", ".cr2", ".arw", ".orf", ".rw2", ".pef", ".srw"}  # raw sensor values behind a TIFF header
_ENCODERS: dict[str, Callable[[Picture], bytes]] = {
    ".jpg": encode_jpeg,
    ".jpeg": encode_jpeg,
    ".png": encode_png,
    ".ppm": encode_ppm,
    ".bmp": encode_bmp,
    ".webp": encode_webp,
    ".tif": encode_tiff,
    ".tiff": encode_tiff,
    ".npy": encode_npy,
}
SUFFIXES = frozenset(_ENCODERS)
"""Of files that are written."""
LOSSY = frozenset({".jpg", ".jpeg", ".webp"})
"""Of these, the ones that change pixels."""
READABLE_SUFFIXES = SUFFIXES | {
    ".jfif",
    ".jpe",
    ".gif",
    ".pgm",
    ".pbm",
    ".avif",
    ".heic",
    ".heif",
    ".jp2",
    ".j2k",
    ".jpf",
    ".jpx",
}
"""Of files that are read, too; a file of another name is looked into."""

_SPACES = {b"GRAY": 1, b"RGB ": 3, b"CMYK": 4}  # what a profile says, at its bytes 16 to 19, that it is of
_LONGEST_SIDE = {".jpg": 65500, ".jpeg": 65500, ".webp": 16383}


def read_picture(path: Path | str, *, pages_are_channels: bool = False, filled: bool = True) -> Picture:
    """Read a picture file upright and at its own depth; see `tiff.decode_tiff` for pages.

    `filled`: pixels without data have the mean. Not so of masks and label maps, whose whole numbers all say something.

    Raises `ValueError` with the reason if it is no picture, damaged, or larger than `MAX_BYTES` when decoded,
    `OSError` if it cannot be read at all.
    """
    check_file(path)
    with open(path, "rb") as file:
        return decode(file.read(), pages_are_channels=pages_are_channels, filled=filled)


def check_has_data(picture: Picture) -> Picture:
    """The same picture. ValueError where none of its pixels holds data, so that nothing can be learned from it."""
    empty = picture.metadata.geography.empty
    if empty is not None and empty.all():
        raise ValueError("no pixel holds data, as its tag GDAL_NODATA says, or NaN in each")
    return picture


def is_picture(path: Path) -> bool:
    """Whether a file is taken for a picture: by its name, or else by its first bytes. Raw files of cameras are none."""
    suffix = path.suffix.lower()
    if suffix in READABLE_SUFFIXES or suffix in _CAMERAS:
        return suffix in READABLE_SUFFIXES
    start = read_first_bytes(path, DICOM_MAGIC_OFFSET + 4)
    if start[DICOM_MAGIC_OFFSET:] == b"DICM":  # what stands before that may be the header of a TIFF
        return False
    try:
        name = _detect_format(start)
    except ValueError:
        return False
    return name not in _WEAK or _WEAK[name].match(start) is not None


def decode(data: bytes, *, pages_are_channels: bool = False, filled: bool = True) -> Picture:
    """Decode the bytes of a picture file as `read_picture`; raises `ValueError` with the reason, and nothing else."""
    if not data:
        raise ValueError("the file is empty")
    name = _detect_format(data)
    with convert_decode_errors(name):
        if name == "TIFF":
            return decode_tiff(data, channels=pages_are_channels, filled=filled)
        return decode_npy(data) if name == "npy" else decode_file(name, data)


def _detect_format(data: bytes) -> str:
    for pattern, name in _FORMATS:
        if pattern.match(data):
            return name
    raise ValueError("not a picture that can be read")


def save_picture(path: Path | str, picture: Picture) -> None:
    """Write a picture to a file; the suffix names the format, see `encode`. `OSError` if it cannot be written."""
    data = encode(Path(path).suffix.lower(), picture)
    Path(path).write_bytes(data)


def encode(suffix: str, picture: Picture) -> bytes:
    """Give the bytes of a picture file; `suffix` names the format.

    JPEG and WebP have quality 95, JPEG with colour at full resolution; the other formats are lossless. WebP turns grey
    into RGB. A colour profile is written where it is of the colours that the file has. Raises `ValueError` if the
    format cannot hold the picture (see `choose_suffix`).
    """
    if suffix not in SUFFIXES:
        raise ValueError(f"{suffix or 'no suffix'} names no picture format: name one of {', '.join(sorted(SUFFIXES))}")
    if not _can_hold(suffix, picture):
        height, width, channels = picture.pixels.shape
        what = f"{width}x{height} pixels of {picture.pixels.dtype}, {pluralize(channels, 'channel')}"
        what += " and alpha" if picture.alpha is not None else ""
        raise ValueError(f"{suffix} cannot hold {what}: save it as {choose_suffix(suffix, picture)}")
    colours = 3 if suffix == ".webp" else picture.pixels.shape[2]
    if picture.icc is not None and _SPACES.get(picture.icc[16:20], colours) != colours:
        picture = replace(picture, icc=None)
    return _ENCODERS[suffix](picture)


def detect_suffix(data: bytes) -> str:
    """Give the suffix for a translation of the picture file that begins with `data`; `.png` if that is no picture."""
    try:
        name = _detect_format(data)
    except ValueError:
        return ".png"
    return ".jpg" if name == "JPEG" else own if (own := f".{name.lower()}") in SUFFIXES else ".png"


def choose_suffix(suffix: str, picture: Picture) -> str:
    """Give `suffix` if its format can hold the picture, else `.png` if that can, else `.tiff`.

    Except for JPEG and WebP, reading the file gives back the same values.
    """
    return next((name for name in (suffix, ".png") if _can_hold(name.lower(), picture)), ".tiff")


def _can_hold(suffix: str, picture: Picture) -> bool:
    height, width, channels = picture.pixels.shape
    alpha = picture.alpha is not None
    if suffix in (".tif", ".tiff"):
        return True
    if suffix == ".npy":
        return not alpha
    depths = ("uint8", "uint16") if suffix in (".png", ".ppm") else ("uint8",)
    return (
        suffix in SUFFIXES
        and channels in (1, 3)
        and picture.pixels.dtype.name in depths
        and not (alpha and suffix not in (".png", ".webp"))
        and max(height, width) <= _LONGEST_SIDE.get(suffix, MAX_SIDE)
    )
