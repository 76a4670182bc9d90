"""Decode uploads within the limits, name the results, and encode previews for browsers."""

from __future__ import annotations

import base64
import io
from pathlib import PureWindowsPath

import numpy as np
import torch
from fastapi import HTTPException
from PIL import Image

from velogan.data.pictures.images import decode
from velogan.data.pictures.picture import Picture, TooManyPixelsError, pixel_limit
from velogan.data.pictures.values import PixelFormat, denormalize, normalize

MEDIA_TYPES = {
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".tiff": "image/tiff",
    ".bmp": "image/bmp",
    ".ppm": "image/x-portable-pixmap",
    ".npy": "application/octet-stream",
}
_ALIASES = {".jpeg": ".jpg", ".tif": ".tiff"}
_SUPPORTED = "a complete JPEG, PNG, WebP, TIFF, BMP, PPM, GIF, AVIF, JPEG 2000 or .npy file"
_MAX_PREVIEW_SIDE = 1600
_MAX_NAME_LENGTH = 255


def decode_upload(data: bytes, max_pixels: int, *, pages_are_channels: bool) -> Picture:
    """Decode a file of at most `max_pixels`. Raises HTTPException if it is larger, damaged or of another format."""
    token = pixel_limit.set(max_pixels)
    try:
        return decode(data, pages_are_channels=pages_are_channels)
    except TooManyPixelsError as error:
        raise HTTPException(413, f"{error}: send a smaller picture") from None
    except ValueError as error:
        raise HTTPException(422, f"{error}; send {_SUPPORTED}") from None
    finally:
        pixel_limit.reset(token)


def result_name(filename: str, suffix: str) -> str:
    """Return `filename` with `suffix`, without folders and unprintable characters."""
    printable = "".join(filter(str.isprintable, filename))
    name = PureWindowsPath(PureWindowsPath(printable).name[-_MAX_NAME_LENGTH:] or "picture")  # splits at / and \\
    ending = name.suffix.lower()
    return str(name) if _ALIASES.get(ending, ending) == suffix else f"{name.stem}{suffix}"


def preview_data_url(picture: Picture, pixel_format: PixelFormat) -> str:
    """Return a data URL of the picture for browsers: 8-bit grey or RGB, alpha kept, sides up to `_MAX_PREVIEW_SIDE`."""
    pixels = picture.pixels if picture.pixels.shape[2] in (1, 3) else picture.pixels[..., :1]
    layers = [_to_uint8(pixels, pixel_format.range)]
    if picture.alpha is not None:
        layers.append(_to_uint8(picture.alpha[..., None], None))
    icc = picture.icc if pixels is picture.pixels else None
    return _data_url(np.concatenate(layers, axis=2), icc=icc)


def overlay_data_url(levels: np.ndarray) -> str:
    """Return a data URL of an uncertainty map `(H, W)` uint8 as an overlay: red, transparent where it is 0."""
    red = np.broadcast_to(np.array([255, 0, 60], np.uint8), (*levels.shape, 3))
    alpha = (levels * np.float32(0.7)).astype(np.uint8)  # the picture below stays visible
    return _data_url(np.dstack([red, alpha]))


def _to_uint8(pixels: np.ndarray, value_range: tuple[float, float] | None) -> np.ndarray:
    """Convert `pixels` from `value_range` to uint8; None means the full range of their dtype, [0, 1] for floats."""
    if pixels.dtype == np.uint8 and value_range is None:
        return pixels
    if pixels.dtype.kind == "f":
        value_range = value_range or (0.0, 1.0)
    return denormalize(normalize(torch.from_numpy(np.ascontiguousarray(pixels)), value_range), "uint8", None).numpy()


def _data_url(pixels: np.ndarray, *, icc: bytes | None = None) -> str:
    """Return a data URL of `(H, W, C)` uint8, grey or RGB with optional alpha: PNG with alpha, else JPEG."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((_MAX_PREVIEW_SIDE, _MAX_PREVIEW_SIDE))
    kind, file = "png" if pixels.shape[2] in (2, 4) else "jpeg", io.BytesIO()
    image.save(file, kind, icc_profile=icc, quality=95)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
