"""Decoding of PNG, WebP, PPM, BMP, GIF, AVIF, HEIC and JPEG 2000 files, and encoding; JPEG and TIFF are elsewhere.

Headers are read here, before a library sees the file: sizes are checked before pixels are allocated, and orientation
and colour profile are found without the libraries' warnings.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import imagecodecs
import numpy as np
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    Jpeg2KImagePlugin,
    PpmImagePlugin,
)

from velogan.data.pictures.notes import Notes, kept_exif, orientation_of, told
from velogan.data.pictures.picture import Picture, assemble, check_size, merged
from velogan.files import require

QUALITY = 95
"""Of JPEG and WebP."""

_MAX_PROFILE = 2**24  # bytes of a colour profile; real ones stay below 4 MiB
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # by colour type
_PNG_TRANSPARENCY = {0: (2,), 2: (6,), 3: range(1, 257)}  # bytes, by colour type
_PNG_COLOURS = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"cICP": 4}  # their bytes
_ROWS = 256


# PNG


def decode_png(data: bytes) -> Picture:
    """Decode a PNG file or an animation's first frame; palettes become RGB, transparent colours alpha, 1-4 bits 8."""
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    if depth not in _PNG_DEPTHS.get(colour, ()) or interlaced > 1:
        raise ValueError(f"damaged PNG: {depth} bits of colour type {colour}, interlace {interlaced}")
    channels = {0: 1, 2: 3, 3: 4, 4: 2, 6: 4}[colour]
    check_size(height, width, channels * (2 if depth == 16 else 1))
    orientation, icc, see_through, packed = 1, None, False, 0
    exif, notes, colours, frames = None, Notes(), [], 1
    needed: list[bytes | memoryview] = [memoryview(data)[:8]]
    for kind, start, stop in _png_chunks(data):
        body = memoryview(data)[start + 8 : stop - 4]
        if kind == b"eXIf":
            orientation, exif = orientation_of(bytes(body)), kept_exif(bytes(body))
        elif kind == b"pHYs" and len(body) == 9 and body[8] == 1:  # for a metre
            across, down = struct.unpack(">II", body[:8])
            notes = told((across, 100), (down, 100), 3)
        elif kind == b"iCCP":
            icc = _profile(bytes(body))
        elif kind == b"acTL" and len(body) == 8:
            (frames,) = struct.unpack(">I", body[:4])
        elif _PNG_COLOURS.get(kind) == len(body):
            colours.append((kind, bytes(body)))
        elif kind in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
            needed.append(memoryview(data)[start:stop])
            packed += len(body) * (kind == b"IDAT")
        elif kind == b"tRNS" and len(body) in _PNG_TRANSPARENCY.get(colour, ()):
            see_through = zlib.crc32(data[start + 4 : stop - 4]).to_bytes(4, "big") == data[stop - 4 : stop]
            needed += [memoryview(data)[start:stop]] * see_through
    if packed > 2 * height * (width * channels * 2 + 8) + 2**16:  # libpng would inflate all of it
        raise ValueError(f"{packed} bytes of packed pixels are too many for {width}x{height}")
    # libpng prints a warning for each interlaced file; spng does not, but it knows fewer kinds.
    quiet = interlaced and depth <= 8 and colour != 4 and not see_through
    try:
        pixels = (imagecodecs.spng_decode if quiet else imagecodecs.png_decode)(b"".join(needed))
    except (imagecodecs.PngError, imagecodecs.SpngError) as error:
        if needed[-1][4:8] == b"IEND":
            raise
        raise ValueError("the PNG file is truncated") from error
    notes = replace(notes, exif=exif, colours=tuple(colours), frames=frames)
    return _with_alpha(pixels, icc=icc, orientation=orientation, notes=notes)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and stop of each chunk."""
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        yield kind, at, at + 12 + length
        at += 12 + length


def _profile(body: bytes) -> bytes | None:
    _, _, packed = body.partition(b"\0")
    try:
        return zlib.decompressobj().decompress(packed[1:], _MAX_PROFILE) or None
    except zlib.error:
        return None


def encode_png(picture: Picture) -> bytes:
    """Encode 8- or 16-bit grey or RGB, with or without alpha."""
    # Level 1 of this encoder gives files as small as zlib's level 3, in two thirds of the time.
    pixels = merged(picture)
    pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    pixels = np.array(pixels) if 1 in pixels.shape else pixels  # it refuses an axis of length 1 with an odd stride
    data = bytes(imagecodecs.png_encode(pixels, level=1))
    chunks = [kind + body for kind, body in picture.notes.colours]
    chunks += [] if picture.icc is None else [b"iCCPicc\0\0" + zlib.compress(picture.icc)]
    if density := picture.notes.per_inch():
        chunks.append(b"pHYs" + struct.pack(">IIB", *(min(round(one / 0.0254), 2**31 - 1) for one in density), 1))
    if picture.notes.exif:
        chunks.append(b"eXIf" + picture.notes.exif)
    made = [struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) for body in chunks]
    return b"".join((data[:33], *made, data[33:]))


# WebP


def decode_webp(data: bytes) -> Picture:
    """Decode a WebP file: RGB or RGBA; an animation's first frame."""
    orientation, icc, size, exif, frames = 1, None, None, None, 0
    for kind, body in _webp_chunks(data):
        frames += kind == b"ANMF"
        if size is None:
            size = _webp_size(kind, body)
        if kind == b"EXIF":
            orientation, exif = orientation_of(body), kept_exif(body)
        elif kind == b"ICCP":
            icc = body or None
    if size is None:
        raise ValueError("the WebP header is damaged")
    check_size(*size, bytes_per_pixel=4, working=4)
    pixels = imagecodecs.webp_decode(data)
    return _with_alpha(pixels, icc=icc, orientation=orientation, notes=Notes(exif, frames=max(frames, 1)))


def _webp_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        whole = kind in (b"EXIF", b"ICCP")
        yield kind, data[at + 8 : at + 8 + (length if whole else min(length, 10))]
        at += 8 + length + length % 2


def _webp_size(kind: bytes, body: bytes) -> tuple[int, int] | None:
    """Give `(height, width)` from the first chunk."""
    if len(body) < 5:
        return None
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[7:10], "little"), 1 + int.from_bytes(body[4:7], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(body[8:10], "little") & 0x3FFF, int.from_bytes(body[6:8], "little") & 0x3FFF
    return None


def encode_webp(picture: Picture) -> bytes:
    """Encode 8-bit RGB, with or without alpha; grey becomes RGB. Raises `ValueError` for sides over 16383."""
    return encode_with_pillow(picture, "WEBP", quality=QUALITY)


# PPM

_PPM_HEADER = re.compile(rb"P([1-6])" + rb"(?:\s|#[^\n]*\n)+(\d{1,6})" * 3 + rb"\s")


def decode_ppm(data: bytes) -> Picture:
    """Decode a PBM, PGM or PPM file, binary or plain; its highest value becomes 255 or 65535."""
    header = _PPM_HEADER.match(data[:10_000])
    if data[1:2] not in b"56":
        if header and data[1:2] == b"3" and int(header[4]) > 255:
            raise ValueError("a plain PPM file deeper than 8 bits; save it as a binary one")
        return assemble(decode_with_pillow(PpmImagePlugin.PpmImageFile, data))
    if not header:
        raise ValueError("the PPM header is damaged")
    width, height, highest = (int(header[index]) for index in (2, 3, 4))
    if not 1 <= highest <= 65535:
        raise ValueError(f"a PPM file whose highest value is {highest}: it takes 1 to 65535")
    dtype = np.dtype(np.uint8 if highest <= 255 else ">u2")
    shape = (height, width, 3 if header[1] == b"6" else 1)
    count = height * width * shape[2]
    check_size(height, width, shape[2] * dtype.itemsize)
    if len(data) < header.end() + count * dtype.itemsize:
        raise ValueError("the PPM file is truncated")
    pixels = np.frombuffer(data, dtype, count, header.end()).astype(dtype.newbyteorder("=")).reshape(shape)
    full = 255 if highest <= 255 else 65535
    if highest != full:
        levels = np.minimum(np.arange(full + 1), highest) * full / highest
        pixels = np.round(levels).astype(pixels.dtype)[pixels]
    return assemble(pixels)


def encode_ppm(picture: Picture) -> bytes:
    """Encode 8- or 16-bit grey (as PGM) or RGB; the colour profile is left out."""
    height, width, channels = picture.pixels.shape
    deep = picture.pixels.dtype == np.uint16
    header = f"P{6 if channels == 3 else 5}\n{width} {height}\n{65535 if deep else 255}\n"
    return header.encode() + (picture.pixels.astype(">u2") if deep else picture.pixels).tobytes()


# BMP and GIF


def decode_bmp(data: bytes) -> Picture:
    """Decode a BMP file; a palette becomes RGB, or grey if all its colours are grey."""
    return _with_alpha(decode_with_pillow(BmpImagePlugin.BmpImageFile, data))


def encode_bmp(picture: Picture) -> bytes:
    """Encode 8-bit grey or RGB; the colour profile is left out."""
    return encode_with_pillow(Picture(picture.pixels), "BMP")


def decode_gif(data: bytes) -> Picture:
    """Decode the first frame of a GIF file, which often hides behind another suffix."""
    width, height = struct.unpack_from("<HH", data, 6)
    if height * width > 4096 * len(data):  # the most pixels that a code of 9 to 12 bits can stand for
        raise ValueError(f"the GIF file is truncated: {len(data)} bytes for {width}x{height} pixels")
    picture = _with_alpha(decode_with_pillow(GifImagePlugin.GifImageFile, data))
    return replace(picture, notes=Notes(frames=_frames(GifImagePlugin.GifImageFile, data)))


def _frames(kind: type[ImageFile.ImageFile], data: bytes) -> int:
    """How many pictures an animation has; of a damaged one 1."""
    try:
        with kind(io.BytesIO(data)) as picture:
            return getattr(picture, "n_frames", 1)
    except (EOFError, OSError, ValueError, SyntaxError):  # behind the first, which was read
        return 1


def decode_avif(data: bytes) -> Picture:
    """Decode an AVIF file, or a sequence's first picture, to 8 bits."""
    return _of_a_phone(AvifImagePlugin.AvifImageFile, data)


def knows_heic() -> bool:
    """Whether HEIC files are decoded here; what is kept of pictures says so, since without it they are left out."""
    return find_spec("pillow_heif") is not None


def decode_heic(data: bytes) -> Picture:
    """Decode a HEIC file's main picture to 8 bits. ValueError without the extra that knows them."""
    require("heic", "pillow_heif", user="a HEIC picture")
    from pillow_heif import HeifImageFile

    return _of_a_phone(HeifImageFile, data)


def _of_a_phone(kind: type[ImageFile.ImageFile], data: bytes) -> Picture:
    with kind(io.BytesIO(data)) as picture:
        icc, exif = picture.info.get("icc_profile"), picture.info.get("exif") or b""
    pixels = decode_with_pillow(kind, data)
    notes = Notes(kept_exif(exif), frames=_frames(kind, data) if kind is AvifImagePlugin.AvifImageFile else 1)
    return _with_alpha(pixels, icc=icc, orientation=orientation_of(exif), notes=notes)


def decode_jpeg2000(data: bytes) -> Picture:
    """Decode a JPEG 2000 file or codestream, at its own depth."""
    with Jpeg2KImagePlugin.Jpeg2KImageFile(io.BytesIO(data)) as picture:
        width, height = picture.size
        channels = len(picture.getbands())
    check_size(height, width, channels * 2, working=channels * 4)
    pixels = imagecodecs.jpeg2k_decode(data)
    if pixels.shape[:2] != (height, width):
        raise ValueError(f"pixels of shape {pixels.shape} behind a header of {width}x{height}")
    return _with_alpha(pixels)


def _with_alpha(pixels: np.ndarray, **said: Any) -> Picture:
    """A picture of `(H, W)` or `(H, W, C)` values; the last of two or four channels is alpha."""
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    return assemble(pixels, alpha=channels - 1 if channels in (2, 4) else None, **said)


def decode_with_pillow(kind: type[ImageFile.ImageFile], data: bytes) -> np.ndarray:
    """Decode with one of Pillow's readers; sizes are checked here, since a direct call checks none."""
    with kind(io.BytesIO(data)) as picture:
        check_size(picture.height, picture.width, 3, working=4)
        picture.load()
        mode = picture.mode
        if mode == "P":
            mode = "RGBA" if "transparency" in picture.info else "RGB"
        elif mode == "L" and "transparency" in picture.info:
            mode = "LA"
        elif mode not in ("1", "L", "LA", "RGB", "RGBA", "I", "I;16"):
            mode = "RGB"
        dtype = np.uint16 if mode.startswith("I") else bool if mode == "1" else np.uint8
        bands = len(Image.new(mode, (1, 1)).getbands())
        pixels = np.empty((picture.height, picture.width, bands), dtype)
        for top in range(0, picture.height, _ROWS):  # to convert it all at once would take three times its memory
            rows = picture.crop((0, top, picture.width, min(top + _ROWS, picture.height)))
            rows = rows if rows.mode == mode else rows.convert(mode)
            pixels[top : top + _ROWS] = np.asarray(rows).reshape(rows.height, rows.width, bands)
        return pixels


def encode_with_pillow(picture: Picture, name: str, **settings: int) -> bytes:
    """Encode 8 bits in the format that Pillow knows by `name`, with alpha, colour profile, EXIF and resolution."""
    pixels = merged(picture)
    file = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    kept: dict[str, Any] = {} if picture.icc is None else {"icc_profile": picture.icc}
    if picture.notes.exif:
        kept["exif"] = b"Exif\0\0" + picture.notes.exif
    if density := picture.notes.per_inch():
        kept["dpi"] = tuple(min(round(one), 65535) for one in density)
    (image.convert("RGBA") if image.mode == "LA" else image).save(file, name, **settings, **kept)
    return file.getvalue()
