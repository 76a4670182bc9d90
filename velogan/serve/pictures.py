"""Decoding of uploads within the limits, encoding of results as `velogan translate` does, and previews for browsers."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np
import torch
from PIL import Image

from velogan.data.pictures.images import decode, encode, suffix_for, suffix_of
from velogan.data.pictures.picture import Picture, TooManyPixels, most_pixels
from velogan.data.pictures.values import PixelFormat, from_unit, to_unit
from velogan.serve import schema
from velogan.serve.limits import Limits, Refusal
from velogan.translate.doubt import Doubt

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


@dataclass(frozen=True)
class File:
    """A translated picture's file; `kept`: whether its format is that of the upload."""

    name: str
    suffix: str
    data: bytes
    kept: bool


def read(data: bytes, limits: Limits, *, pages_are_channels: bool) -> Picture:
    """The picture of a file's bytes, as `decode` reads them. Raises `Refusal`."""
    token = most_pixels.set(limits.pixels)
    try:
        return decode(data, pages_are_channels=pages_are_channels)
    except TooManyPixels as error:
        raise Refusal(413, "too_many_pixels", f"{error}: send a smaller picture") from None
    except ValueError as error:
        raise Refusal(422, "bad_picture", f"{error}; send {_KINDS}") from None
    finally:
        most_pixels.reset(token)


def written(name: str, upload: bytes, result: Picture) -> File:
    """The file of a translation, in the upload's format if that can hold it."""
    asked = suffix_of(upload[:12])
    suffix = suffix_for(asked, result)
    given = PurePosixPath(name)
    ending = given.suffix.lower()
    named = name if _SAME.get(ending, ending) == suffix else f"{given.stem}{suffix}"
    kept = suffix == asked and (asked != ".png" or upload.startswith(b"\x89PNG"))  # others become PNG, too
    return File(named, suffix, encode(suffix, result), kept)


def shown(picture: Picture, form: PixelFormat) -> str:
    """A data URL of the picture as browsers show it: 8 bits of grey or RGB, and not too large."""
    pixels = picture.pixels if picture.pixels.shape[2] in (1, 3) else picture.pixels[..., :1]
    whole = form.range is None and pixels.dtype.kind == "u"
    eight = _eight(pixels, None if whole else form)
    alpha = None if picture.alpha is None else _eight(picture.alpha, None)
    small = Picture(_small(eight), None if alpha is None else _small(alpha[..., None])[..., 0])
    if pixels is picture.pixels:
        small = replace(small, icc=picture.icc)
    suffix = ".jpg" if alpha is None else ".png"
    return f"data:{MEDIA_TYPES[suffix]};base64,{base64.b64encode(encode(suffix, small)).decode()}"


def doubt(found: Doubt) -> schema.DoubtInfo:
    """A map of doubt as the API has it."""
    data = base64.b64encode(encode(".png", Picture(found.map[..., None]))).decode()
    return schema.DoubtInfo(map=data, **found.figures)


def overlay(levels: np.ndarray) -> str:
    """A data URL of a map `(H, W)` uint8 to lay over a picture: red, transparent where there is no doubt."""
    alpha = _small(levels[..., None])[..., 0]
    red = np.broadcast_to(np.array([255, 0, 60], np.uint8), (*alpha.shape, 3))
    strong = (alpha * np.float32(0.7)).astype(np.uint8)  # what lies below stays to be seen
    data = encode(".png", Picture(np.ascontiguousarray(red), strong))
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _eight(pixels: np.ndarray, form: PixelFormat | None) -> np.ndarray:
    """`pixels` as uint8; `form` None: over the whole range of their type, floats being shares of 1."""
    if pixels.dtype == np.uint8 and form is None:
        return pixels
    spread = form.range if form else (0.0, 1.0) if pixels.dtype.kind == "f" else None
    return from_unit(to_unit(torch.from_numpy(np.ascontiguousarray(pixels)), spread), "uint8", None).numpy()


def _small(pixels: np.ndarray) -> np.ndarray:
    height, width, channels = pixels.shape
    factor = -(-max(height, width) // _SIDE)
    if factor == 1:
        return pixels
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels).reduce(factor)
    return np.asarray(image).reshape(image.height, image.width, channels)
