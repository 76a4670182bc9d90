"""Translate images in memory: PIL images, NumPy arrays and tensors, each into an image of the same type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from velogan.data.pictures.formats import from_pillow
from velogan.data.pictures.images import Picture
from velogan.data.pictures.metadata import FileMetadata, parse_exif
from velogan.data.pictures.picture import assemble
from velogan.files import pluralize
from velogan.translate.large import plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import translate_pictures

_DEPTHS = ("uint8", "uint16")
_MAX_MAGNITUDE = 2.0
"""Maximum magnitude of a tensor's values: rounding or bicubic resizing may exceed 1."""


def translate_images(model: Translator, images: Any, *, tile: int | None = None) -> Any:
    """Translate `images` into images of the same type and size; the inputs are not modified.

    images: one of

    - a PIL image; it is turned upright by its EXIF orientation
    - an array `(H, W)`, `(H, W, C)` or `(B, H, W, C)` of uint8 or uint16, or of float32 if the model was trained with
      a declared range
    - a tensor `(C, H, W)` or `(B, C, H, W)` in [-1, 1]; the result has its device and dtype
    - a list of any of these

    tile: side of tiles in pixels for PIL images and arrays, see `TranslateOptions`

    Raises ValueError for anything else.
    """
    if isinstance(images, (list, tuple)):
        return [translate_images(model, image, tile=tile) for image in images]
    if isinstance(images, Tensor):
        return _translate_tensor(model, images)
    if isinstance(images, Image.Image):
        return _to_pil(_translate(model, [_from_pil(images)], tile)[0])
    if isinstance(images, np.ndarray):
        return _translate_array(model, images, tile)
    raise ValueError(
        f"images={type(images).__name__}: not an image; pass a PIL image, a NumPy array, a tensor or a list"
    )


def to_picture(image: Any) -> Picture:
    """Convert a PIL image, or an array `(H, W)` or `(H, W, C)` of uint8, uint16 or float32, to a `Picture`.

    Raises ValueError for anything else.
    """
    if isinstance(image, Image.Image):
        return _from_pil(image)
    if not isinstance(image, np.ndarray):
        raise ValueError(f"image={type(image).__name__}: not an image; pass a PIL image or a NumPy array")
    if image.dtype.name not in (*_DEPTHS, "float32") or image.ndim not in (2, 3) or 0 in image.shape:
        raise ValueError(
            f"an array {image.shape} of {image.dtype}: give (H, W) or (H, W, C) of uint8, uint16 or float32"
        )
    return Picture(image[..., None] if image.ndim == 2 else image)


def _translate_tensor(model: Translator, images: Tensor) -> Tensor:
    channels = model.input.channels
    if images.layout != torch.strided or images.is_meta:
        raise ValueError(f"a tensor of {images.layout} on {images.device}: give a dense one that has values")
    if images.ndim not in (3, 4) or images.shape[-3] != channels or 0 in images.shape:
        raise ValueError(f"a tensor of {tuple(images.shape)}: give ({channels}, H, W) or (B, {channels}, H, W)")
    if not images.is_floating_point():
        raise ValueError(f"a tensor of {images.dtype}: give floats in [-1, 1], or pixels as a NumPy array")
    low, high = images.min().item(), images.max().item()
    if not -_MAX_MAGNITUDE <= low <= high <= _MAX_MAGNITUDE:
        raise ValueError(f"a tensor of values from {low:g} to {high:g}: give [-1, 1], or pixels as a NumPy array")
    batch = images.detach()[None] if images.ndim == 3 else images.detach()
    result = model.translate_fast(batch.float(), rounded=False).to(images.dtype).clone()  # not an inference tensor
    return result[0] if images.ndim == 3 else result


def _translate_array(model: Translator, pixels: np.ndarray, tile: int | None) -> np.ndarray:
    is_supported = pixels.dtype.name in _DEPTHS or (pixels.dtype.name == "float32" and model.input.range is not None)
    if not is_supported:
        raise ValueError(
            f"an array of {pixels.dtype}: give uint8 or uint16, or float32 to a model trained with data.range_a and "
            "data.range_b; values in [-1, 1] go in as a tensor"
        )
    if pixels.ndim not in (2, 3, 4) or 0 in pixels.shape or (pixels.shape[-1] > 4096 and pixels.ndim > 2):
        raise ValueError(f"an array of {pixels.shape}: give (H, W), (H, W, C) or (B, H, W, C)")
    is_grey = pixels.ndim == 2
    batch = pixels[None, :, :, None] if is_grey else pixels[None] if pixels.ndim == 3 else pixels
    pictures = _translate(model, [Picture(image) for image in batch], tile)
    results = np.stack([picture.pixels for picture in pictures])
    if pixels.ndim == 4:
        return results
    return results[0, :, :, 0] if is_grey and results.shape[-1] == 1 else results[0]


def _translate(model: Translator, pictures: Sequence[Picture], tile: int | None) -> list[Picture]:
    """Translate pictures of one size and type without changing their arrays."""
    tiles = plan_tiles(model, *pictures[0].pixels.shape[:2], tile=tile)
    return translate_pictures(model, [picture.as_read_only() for picture in pictures], tiles)


def _from_pil(image: Image.Image) -> Picture:
    """Decode a PIL image, upright by its EXIF orientation. 8-bit modes other than grey become RGB."""
    if 0 in image.size:
        raise ValueError(f"a PIL image of {image.width}x{image.height} pixels: give one that has some")
    pixels, has_alpha = from_pillow(image)
    icc = image.info.get("icc_profile") if image.mode in ("RGB", "RGBA", "L", "LA") else None
    metadata = FileMetadata(orientation=parse_exif(image.info.get("exif") or b"").orientation)
    return assemble(pixels, has_alpha=has_alpha, icc=icc, metadata=metadata)


def _to_pil(picture: Picture) -> Image.Image:
    pixels = picture.pixels
    if pixels.dtype == np.uint16 and pixels.shape[-1] == 1 and picture.alpha is None:
        return Image.fromarray(pixels[..., 0])
    if pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        raise ValueError(
            f"PIL has no image of {pluralize(pixels.shape[-1], 'channel')} of {pixels.dtype}: pass a NumPy array"
        )
    if picture.alpha is not None:
        pixels = np.concatenate([pixels, picture.alpha[..., None]], axis=-1)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else np.ascontiguousarray(pixels))
    if picture.icc is not None:
        image.info["icc_profile"] = picture.icc
    return image
