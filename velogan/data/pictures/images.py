"""Read and write picture files at their native bit depth. Conversions are listed in docs/formats.md.

8 or 16 bits become uint8 or uint16, 1 to 7 bits uint8, scaled to 0..255. 9 to 15 bits, and unsigned 32-bit integers
within 0..65535 (in TIFF also signed ones), become uint16, unchanged. Other integers and floats become float32;
infinity is rejected, and NaN too, except in TIFF. A file's format is detected by its first bytes, not its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from velogan.data.pictures.formats import (
    PILLOW_FORMATS,
    decode_file,
    decode_npy,
    encode_npy,
    encode_png,
    encode_with_pillow,
)
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
_STRICT_FORMATS = {"BMP": re.compile(rb"BM.{4}\0{4}", re.DOTALL), "PPM": re.compile(rb"P[1-6]\s+[#\d]")}
"""Stricter patterns of these formats, for files without the suffix of a picture."""
_CAMERAS = {".dng", ".nef", ".cr2", ".arw", ".orf", ".rw2", ".pef", ".srw"}  # raw sensor values behind a TIFF header
_ENCODERS: dict[str, Callable[[Picture], bytes]] = {
    ".png": encode_png,
    ".tif": encode_tiff,
    ".tiff": encode_tiff,
    ".npy": encode_npy,
    **{suffix: partial(encode_with_pillow, suffix) for suffix in PILLOW_FORMATS},
}
SUFFIXES = frozenset(_ENCODERS)
"""The suffixes of files that can be written."""
LOSSY = frozenset({".jpg", ".jpeg", ".webp"})
"""The suffixes of lossy formats."""
READABLE_SUFFIXES = SUFFIXES.union(
    (".jfif", ".jpe", ".gif", ".pgm", ".pbm", ".avif", ".heic", ".heif", ".jp2", ".j2k", ".jpf", ".jpx")
)
"""The suffixes of files that can be read; for other names the first bytes decide."""

_PROFILE_CHANNELS = {b"GRAY": 1, b"RGB ": 3, b"CMYK": 4}  # by bytes 16 to 19 of a colour profile
_MAX_SIDES = {".jpg": 65500, ".jpeg": 65500, ".webp": 16383}


def read_picture(path: Path | str, *, pages_are_channels: bool = False, filled: bool = True) -> Picture:
    """Read a picture file, upright and at its native bit depth.

    pages_are_channels: whether several grey pages of a TIFF are channels if the file does not state their meaning
    filled: whether to replace pixels without data by the mean; False for masks and label maps, where every value counts

    Raises ValueError with the reason if the file is not a picture, damaged, or larger than `MAX_BYTES` when decoded;
    OSError if it cannot be read.
    """
    check_file(path)
    with open(path, "rb") as file:
        return decode(file.read(), pages_are_channels=pages_are_channels, filled=filled)


def check_has_data(picture: Picture) -> Picture:
    """Return `picture`. Raises ValueError if none of its pixels has data, since nothing can be learned from it."""
    empty = picture.metadata.geography.empty
    if empty is not None and empty.all():
        raise ValueError("no pixel has data: all have the value of its tag GDAL_NODATA, or NaN")
    return picture


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture, by its suffix or, if unknown, its first bytes; camera raw files are not."""
    suffix = path.suffix.lower()
    if suffix in READABLE_SUFFIXES or suffix in _CAMERAS:
        return suffix in READABLE_SUFFIXES
    start = read_first_bytes(path, DICOM_MAGIC_OFFSET + 4)
    if start[DICOM_MAGIC_OFFSET:] == b"DICM":  # the bytes before that may be the header of a TIFF
        return False
    try:
        name = _detect_format(start)
    except ValueError:
        return False
    return name not in _STRICT_FORMATS or _STRICT_FORMATS[name].match(start) is not None


def decode(data: bytes, *, pages_are_channels: bool = False, filled: bool = True) -> Picture:
    """Decode the bytes of a picture file; arguments as for `read_picture`. Raises only ValueError, with the reason."""
    if not data:
        raise ValueError("the file is empty")
    name = _detect_format(data)
    with convert_decode_errors(name):
        if name == "TIFF":
            return decode_tiff(data, pages_are_channels=pages_are_channels, filled=filled)
        return decode_npy(data) if name == "npy" else decode_file(name, data)


def _detect_format(data: bytes) -> str:
    """Return the format of a file by its first bytes. Raises ValueError if it is unknown."""
    for pattern, name in _FORMATS:
        if pattern.match(data):
            return name
    raise ValueError("not a picture that can be read")


def save_picture(path: Path | str, picture: Picture) -> None:
    """Write a picture to a file in the format of its suffix, see `encode`. Raises OSError if it cannot be written."""
    data = encode(Path(path).suffix.lower(), picture)
    Path(path).write_bytes(data)


def encode(suffix: str, picture: Picture) -> bytes:
    """Encode a picture in the format of `suffix`; return the bytes of the file.

    JPEG and WebP have quality 95, JPEG without chroma subsampling; the other formats are lossless. WebP converts grey
    to RGB. A colour profile is written if it matches the channels. Raises ValueError if the format cannot hold the
    picture (see `choose_suffix`).
    """
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{suffix or 'no suffix'} is not the suffix of a picture format: use one of {', '.join(sorted(SUFFIXES))}"
        )
    if not _can_hold(suffix, picture):
        height, width, channels = picture.pixels.shape
        description = f"{width}x{height} pixels of {picture.pixels.dtype}, {pluralize(channels, 'channel')}"
        description += " and alpha" if picture.alpha is not None else ""
        raise ValueError(f"{suffix} cannot hold {description}: save it as {choose_suffix(suffix, picture)}")
    colours = 3 if suffix == ".webp" else picture.pixels.shape[2]
    if picture.icc is not None and _PROFILE_CHANNELS.get(picture.icc[16:20], colours) != colours:
        picture = replace(picture, icc=None)
    return _ENCODERS[suffix](picture)


def detect_suffix(data: bytes) -> str:
    """Return the suffix for the translation of a file that begins with `data`; `.png` if its format is not writable."""
    try:
        name = _detect_format(data)
    except ValueError:
        return ".png"
    return ".jpg" if name == "JPEG" else suffix if (suffix := f".{name.lower()}") in SUFFIXES else ".png"


def choose_suffix(suffix: str, picture: Picture) -> str:
    """Return `suffix` if its format can hold the picture, else `.png` if PNG can, else `.tiff`.

    All formats but JPEG and WebP preserve the values.
    """
    return next((name for name in (suffix, ".png") if _can_hold(name.lower(), picture)), ".tiff")


def _can_hold(suffix: str, picture: Picture) -> bool:
    """Return whether a format can hold the size, type and channels of the picture."""
    height, width, channels = picture.pixels.shape
    has_alpha = picture.alpha is not None
    if suffix in (".tif", ".tiff"):
        return True
    if suffix == ".npy":
        return not has_alpha
    depths = ("uint8", "uint16") if suffix == ".png" else ("uint8",)
    return (
        suffix in SUFFIXES
        and channels in (1, 3)
        and picture.pixels.dtype.name in depths
        and not (has_alpha and suffix not in (".png", ".webp"))
        and max(height, width) <= _MAX_SIDES.get(suffix, MAX_SIDE)
    )
