"""Decoding of uploads within the limits, names of results, and previews for browsers."""

from __future__ import annotations

import base64
import io
from pathlib import PureWindowsPath

import numpy as np
import torch
from fastapi import HTTPException
from PIL import Image

from velogan.data.pictures.images import decode
from velogan.data.pictures.picture import Picture, TooManyPixels, pixel_limit
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
_SAME = {".jpeg": ".jpg", ".tif": ".tiff"}
_KINDS = "a whole JPEG, PNG, WebP, TIFF, BMP, PPM, GIF, AVIF, JPEG 2000 or .npy file"
_SIDE = 1600  # of a preview
_MAX_NAME = 255


def read(data: bytes, max_pixels: int, *, pages_are_channels: bool) -> Picture:
    """Return the picture of a file's bytes, as `decode` reads them. Raises HTTPException."""
    token = pixel_limit.set(max_pixels)
    try:
        return decode(data, pages_are_channels=pages_are_channels)
    except TooManyPixels as error:
        raise HTTPException(413, f"{error}: send a smaller picture") from None
    except ValueError as error:
        raise HTTPException(422, f"{error}; send {_KINDS}") from None
    finally:
        pixel_limit.reset(token)


def name_of(filename: str, suffix: str) -> str:
    """Return an upload's name, which is only sent back, for a result with `suffix`: no folders, no odd characters."""
    printable = "".join(filter(str.isprintable, filename))
    name = PureWindowsPath(PureWindowsPath(printable).name[-_MAX_NAME:] or "picture")  # splits at / and \\
    ending = name.suffix.lower()
    return str(name) if _SAME.get(ending, ending) == suffix else f"{name.stem}{suffix}"


def shown(picture: Picture, pixel_format: PixelFormat) -> str:
    """Return a data URL of the picture as browsers show it: 8 bits of grey or RGB, and not too large."""
    pixels = picture.pixels if picture.pixels.shape[2] in (1, 3) else picture.pixels[..., :1]
    layers = [_to_uint8(pixels, pixel_format.range)]
    if picture.alpha is not None:
        layers.append(_to_uint8(picture.alpha[..., None], None))
    icc = picture.icc if pixels is picture.pixels else None
    return _data_url(np.concatenate(layers, axis=2), icc=icc)


def overlay(levels: np.ndarray) -> str:
    """Return a data URL of a map `(H, W)` uint8 to lay over a picture: red, transparent if 0."""
    red = np.broadcast_to(np.array([255, 0, 60], np.uint8), (*levels.shape, 3))
    alpha = (levels * np.float32(0.7)).astype(np.uint8)  # what lies below stays visible
    return _data_url(np.dstack([red, alpha]))


def _to_uint8(pixels: np.ndarray, value_range: tuple[float, float] | None) -> np.ndarray:
    """Return `pixels` as uint8; without a range over all of their type, floats being shares of 1."""
    if pixels.dtype == np.uint8 and value_range is None:
        return pixels
    if pixels.dtype.kind == "f":
        value_range = value_range or (0.0, 1.0)
    return denormalize(normalize(torch.from_numpy(np.ascontiguousarray(pixels)), value_range), "uint8", None).numpy()


def _data_url(pixels: np.ndarray, *, icc: bytes | None = None) -> str:
    """Return a data URL of `(H, W, 1 to 4)` uint8: grey or RGB, with alpha after it; as PNG if there is alpha."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((_SIDE, _SIDE))
    kind, file = "png" if pixels.shape[2] in (2, 4) else "jpeg", io.BytesIO()
    image.save(file, kind, icc_profile=icc, quality=95)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
