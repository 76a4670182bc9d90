"""Decode and encode all formats but TIFF.

Pillow opens each file without decoding it: its metadata is read, and its size is checked before pixels are allocated.
simplejpeg and imagecodecs decode where Pillow would be several times slower, or lose bit depth.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import imagecodecs
import numpy as np
import simplejpeg
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    WebPImagePlugin,
)

from velogan.data.pictures.metadata import FileMetadata, compute_dpi, parse_exif
from velogan.data.pictures.picture import Picture, assemble, check_size, pixel_bytes, with_alpha_channel
from velogan.files import require

_JPEG = {"format": "JPEG", "quality": 95, "subsampling": 0}  # colour at full resolution (4:4:4)
PILLOW_FORMATS: dict[str, dict[str, Any]] = {
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".webp": {"format": "WEBP", "quality": 95},
    ".bmp": {"format": "BMP"},
    ".ppm": {"format": "PPM"},
}
"""The suffixes of the formats that Pillow encodes, each with arguments of Pillow's `save`."""

_PLUGINS: dict[str, type[ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "PPM": PpmImagePlugin.PpmImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
    "JPEG 2000": Jpeg2KImagePlugin.Jpeg2KImageFile,
}
_ANIMATED = ("PNG", "WebP", "GIF", "AVIF")
_ROWS = 256
_IHDR_END = 33  # offset in bytes of the second chunk of a PNG
_SMALL = 2**20  # pixels; smaller images are decoded fast, however many scans they have
_MAX_SCANS = 64  # each is a pass over the whole image; real files have about 10

warnings.filterwarnings("ignore", module=r"PIL\.")  # warnings quote flawed metadata


def decode_file(name: str, data: bytes) -> Picture:
    """Decode a file of the format `name`: the first frame of an animation, the primary image of HEIC.

    Palettes and CMYK become RGB, a transparent colour becomes alpha, and 1 to 4 bits become 8. Raises ValueError if the
    image is too large or the extra `heic` is not installed; any exception of the libraries if the file is damaged.
    """
    with _find_plugin(name)(io.BytesIO(data)) as image:
        if name == "PNG" and "exif" not in image.info and b"eXIf" in data:
            check_size(image.height, image.width, 4, working=4)
            image.load()  # the EXIF chunk follows the pixels
        pixels, has_alpha = _DECODERS.get(name, _decode_with_pillow)(image, data)
        icc = image.info.get("icc_profile") if image.mode != "CMYK" else None
        metadata = _read_metadata(name, image)
    has_gif_end = b"\0;" in data[-64:] or data.endswith(b"\0")  # some programs append bytes, or omit the trailer
    has_end = {"GIF": has_gif_end, "PNG": b"IEND" in data}
    if metadata.frames > 1 and not has_end.get(name, True):
        raise ValueError("the animation is truncated: its end is missing")
    return assemble(pixels, has_alpha=has_alpha, icc=icc or None, metadata=metadata)


def _find_plugin(name: str) -> type[ImageFile.ImageFile]:
    if name != "HEIC":
        return _PLUGINS[name]
    require("heic", "pillow_heif", feature="a HEIC picture")
    from pillow_heif import HeifImageFile

    return HeifImageFile


def decode_npy(data: bytes) -> Picture:
    """Decode the bytes of a `.npy` file, `(H, W)` or `(H, W, C)`. Raises ValueError for other shapes and types."""
    array = np.load(io.BytesIO(data), allow_pickle=False)
    sides, (value_bytes, original_bytes) = array.shape, pixel_bytes(array.dtype)
    if len(sides) not in (2, 3) or min(sides) < 1:
        raise ValueError(f"shape {sides}: a picture is (height, width) or (height, width, channels)")
    if len(sides) == 3 and 2 * sides[0] <= min(sides[1:]):
        fix = "channels come last: save it with np.moveaxis(array, 0, -1)"
        raise ValueError(f"shape {sides} looks like (channels, height, width); {fix}")
    check_size(sides[0], sides[1], math.prod(sides[2:]) * value_bytes, working=math.prod(sides[2:]) * original_bytes)
    return assemble(np.ascontiguousarray(array))


def can_read_heic() -> bool:
    """Return whether HEIC files can be decoded, which needs the extra `heic`."""
    return find_spec("pillow_heif") is not None


def _read_metadata(name: str, image: ImageFile.ImageFile) -> FileMetadata:
    info, frames = image.info, 1
    metadata = parse_exif(info["exif"]) if info.get("exif") else FileMetadata()
    if (name == "PNG" or info.get("jfif_unit")) and "dpi" in info:  # without a unit in a JPEG, Pillow guesses
        across, down = info["dpi"]
        metadata = replace(metadata, dpi=compute_dpi(across, down, 2))
    with suppress(EOFError, OSError, SyntaxError, ValueError):  # a later frame is damaged, but the first can be read
        frames = getattr(image, "n_frames", 1) if name in _ANIMATED else 1
    return replace(metadata, frames=frames)


# Decoders take an opened file and its bytes; they return `(H, W)` or `(H, W, C)`, and whether the last channel is alpha


def _decode_jpeg(image: ImageFile.ImageFile, data: bytes) -> tuple[np.ndarray, bool]:
    assert isinstance(image, JpegImagePlugin.JpegImageFile)
    if len(data) * 8 < math.ceil(image.height / 8) * math.ceil(image.width / 8):  # a block of 8x8 takes a bit or more
        raise ValueError(f"the JPEG file is truncated: {len(data)} bytes for {image.width}x{image.height} pixels")
    if image.height * image.width > _SMALL and data.count(b"\xff\xda") > _MAX_SCANS:
        raise ValueError(f"a JPEG of more than {_MAX_SCANS} scans")
    samples = [horizontal * vertical for _, horizontal, vertical, _ in image.layer]
    coefficients = 2 * sum(samples) / max(samples) if "progressive" in image.info else 0
    if image.mode in ("L", "RGB"):
        check_size(image.height, image.width, len(samples), working=coefficients)
        with suppress(ValueError):  # simplejpeg fails on harmless warnings, too; Pillow does not
            return simplejpeg.decode_jpeg(data, colorspace="GRAY" if image.mode == "L" else "RGB"), False
    return _decode_with_pillow(image, data, working=4 + coefficients)


def _decode_png(image: ImageFile.ImageFile, data: bytes) -> tuple[np.ndarray, bool]:
    channels, is_16_bit = len(image.getbands()), data[24] == 16
    check_size(image.height, image.width, channels * (2 if is_16_bit else 1))
    if is_16_bit:  # Pillow would reduce colours to 8 bits
        pixels = imagecodecs.png_decode(data)
        return pixels, pixels.shape[2:] in ((2,), (4,))
    if image.mode in ("L", "RGB", "RGBA") and "transparency" not in image.info:
        with suppress(imagecodecs.SpngError):
            return imagecodecs.spng_decode(data), channels == 4
    return _decode_with_pillow(image, data)


def _decode_jpeg2000(image: ImageFile.ImageFile, data: bytes) -> tuple[np.ndarray, bool]:
    channels = len(image.getbands())
    check_size(image.height, image.width, channels * 2, working=channels * 4)
    pixels = imagecodecs.jpeg2k_decode(data)
    return pixels, pixels.shape[2:] in ((2,), (4,))


def _decode_ppm(image: ImageFile.ImageFile, data: bytes) -> tuple[np.ndarray, bool]:
    settings = image.tile[0][3]
    if image.mode == "RGB" and isinstance(settings, tuple) and settings[1] > 255:  # Pillow would keep 8 bits
        raise ValueError("a PPM file in colour deeper than 8 bits: save it as PNG or TIFF")
    return _decode_with_pillow(image, data)


def _decode_with_pillow(image: ImageFile.ImageFile, data: bytes, *, working: float = 4) -> tuple[np.ndarray, bool]:
    check_size(image.height, image.width, 4, working=working)
    return from_pillow(image)


def from_pillow(image: Image.Image) -> tuple[np.ndarray, bool]:
    """Return `(H, W, C)` values of a PIL image, and whether the last channel is alpha.

    Integers of more than 8 bits become uint16 if they fit, else float32; floats become float32, 8 bits grey or RGB.
    """
    has_alpha = image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info
    if image.mode[0] in "IF":
        pixels = np.array(image)[..., None]
        fits_uint16 = image.mode != "F" and pixels.min() >= 0 and pixels.max() <= np.iinfo(np.uint16).max
        return pixels.astype(np.uint16 if fits_uint16 else np.float32), False
    image.load()  # before that, Pillow may not know the mode
    mode = ("LA" if has_alpha else "L") if image.mode in ("1", "L", "LA", "La") else ("RGBA" if has_alpha else "RGB")
    pixels = np.empty((image.height, image.width, len(mode)), np.uint8)
    for top in range(0, image.height, _ROWS):  # converting all rows at once would take three times the memory
        rows = image.crop((0, top, image.width, min(top + _ROWS, image.height)))
        pixels[top : top + _ROWS] = np.asarray(rows.convert(mode)).reshape(rows.height, rows.width, len(mode))
    return pixels, has_alpha


_DECODERS: dict[str, Callable[[ImageFile.ImageFile, bytes], tuple[np.ndarray, bool]]] = {
    "JPEG": _decode_jpeg,
    "PNG": _decode_png,
    "WebP": partial(_decode_with_pillow, working=12),  # Pillow holds two frames of an animation
    "PPM": _decode_ppm,
    "JPEG 2000": _decode_jpeg2000,
}
"""Decoders by format; `_decode_with_pillow` decodes the others."""


# Encoders


def encode_png(picture: Picture) -> bytes:
    """Encode 8- or 16-bit grey or RGB, with or without alpha, as PNG; pixels by imagecodecs, metadata by Pillow."""
    pixels, head = with_alpha_channel(picture), io.BytesIO()
    pixels = np.array(
        pixels[:, :, 0] if pixels.shape[2] == 1 else pixels, copy=1 in pixels.shape
    )  # sides of one pixel may have any strides; a copy has regular ones
    Image.new("L", (1, 1)).save(head, "PNG", **_metadata_arguments(picture))
    # Level 1 of this encoder gives files as small as zlib's level 3, in two thirds of the time.
    data, chunks = bytes(imagecodecs.png_encode(pixels, level=1)), head.getvalue()
    return data[:_IHDR_END] + chunks[_IHDR_END : chunks.rindex(b"IDAT") - 4] + data[_IHDR_END:]


def encode_npy(picture: Picture) -> bytes:
    """Encode a picture without alpha as `.npy`; one channel becomes `(H, W)`, and the colour profile is left out."""
    pixels = picture.pixels[..., 0] if picture.pixels.shape[2] == 1 else picture.pixels
    file = io.BytesIO()
    np.save(file, pixels, allow_pickle=False)
    return file.getvalue()


def encode_with_pillow(suffix: str, picture: Picture) -> bytes:
    """Encode 8-bit grey or RGB, in WebP also with alpha, in the format of `suffix`."""
    pixels, file = with_alpha_channel(picture), io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image = image.convert("RGBA") if image.mode == "LA" else image
    image.save(file, **PILLOW_FORMATS[suffix], **_metadata_arguments(picture))
    return file.getvalue()


def _metadata_arguments(picture: Picture) -> dict[str, Any]:
    """Return the colour profile, EXIF and resolution as arguments of Pillow's `save`."""
    metadata = picture.metadata
    density = metadata.dpi and tuple(min(round(each), 65535) for each in metadata.dpi)
    arguments = {"icc_profile": picture.icc, "exif": metadata.exif, "dpi": density}
    return {name: value for name, value in arguments.items() if value}
