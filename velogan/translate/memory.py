"""Pictures as Python programs hold them, PIL images, arrays and tensors, translated into the same kind."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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
from velogan.translate.large import BeforeTile, plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import translate_equal, translate_in_tiles

_DEPTHS = ("uint8", "uint16")
_MOST = 2.0
"""What a tensor's values may reach: beyond 1 by rounding, or by a bicubic resize."""


def translate_images(model: Translator, images: Any, *, tile: int | None = None) -> Any:
    """The translation of `images`, of the same kind and size; what is given stays as it is.

    A PIL image, which is turned upright as its EXIF says; an array `(H, W)`, `(H, W, C)` or `(B, H, W, C)` of uint8, of
    uint16, or of float32 where the model was trained on values with a declared range; a tensor `(C, H, W)` or
    `(B, C, H, W)` in [-1, 1], which stays on its device and in its type; or a list of any of these. `tile` is for PIL
    images and arrays, as `translate` has it. ValueError for anything else.
    """
    if isinstance(images, (list, tuple)):
        return [translate_images(model, one, tile=tile) for one in images]
    if isinstance(images, Tensor):
        return _tensor(model, images)
    if isinstance(images, Image.Image):
        return _to_pil(translate_pictures(model, [_from_pil(images)], tile=tile)[0])
    if isinstance(images, np.ndarray):
        return _array(model, images, tile)
    raise ValueError(f"a {type(images).__name__} is no picture: give a PIL image, a NumPy array, a tensor or a list")


def to_picture(image: Any) -> Picture:
    """A PIL image, or an array `(H, W)` or `(H, W, C)` of uint8, uint16 or float32. ValueError for anything else."""
    if isinstance(image, Image.Image):
        return _from_pil(image)
    if not isinstance(image, np.ndarray):
        raise ValueError(f"a {type(image).__name__} is no picture: give a PIL image or a NumPy array")
    if image.dtype.name not in (*_DEPTHS, "float32") or image.ndim not in (2, 3) or 0 in image.shape:
        raise ValueError(
            f"an array {image.shape} of {image.dtype}: give (H, W) or (H, W, C) of uint8, uint16 or float32"
        )
    return Picture(image[..., None] if image.ndim == 2 else image)


def _tensor(model: Translator, images: Tensor) -> Tensor:
    wanted = model.input.channels
    if images.layout != torch.strided or images.is_meta:
        raise ValueError(f"a tensor of {images.layout} on {images.device}: give a dense one that has values")
    if images.ndim not in (3, 4) or images.shape[-3] != wanted or 0 in images.shape:
        raise ValueError(f"a tensor of {tuple(images.shape)}: give ({wanted}, H, W) or (B, {wanted}, H, W)")
    if not images.is_floating_point():
        raise ValueError(f"a tensor of {images.dtype}: give floats in [-1, 1], or pixels as a NumPy array")
    low, high = images.min().item(), images.max().item()
    if not -_MOST <= low <= high <= _MOST:
        raise ValueError(f"a tensor of values from {low:g} to {high:g}: give [-1, 1], or pixels as a NumPy array")
    batch = images.detach()[None] if images.ndim == 3 else images.detach()
    result = model.translate_fast(batch.float(), rounded=False).to(images.dtype).clone()  # no tensor of inference mode
    return result[0] if images.ndim == 3 else result


def _array(model: Translator, pixels: np.ndarray, tile: int | None) -> np.ndarray:
    known = pixels.dtype.name in _DEPTHS or (pixels.dtype.name == "float32" and model.input.range is not None)
    if not known:
        raise ValueError(
            f"an array of {pixels.dtype}: give uint8 or uint16, or float32 to a model trained with data.range_a and "
            "data.range_b; values in [-1, 1] go in as a tensor"
        )
    if pixels.ndim not in (2, 3, 4) or 0 in pixels.shape or (pixels.shape[-1] > 4096 and pixels.ndim > 2):
        raise ValueError(f"an array of {pixels.shape}: give (H, W), (H, W, C) or (B, H, W, C)")
    grey = pixels.ndim == 2
    batch = pixels[None, :, :, None] if grey else pixels[None] if pixels.ndim == 3 else pixels
    results = np.stack([one.pixels for one in translate_pictures(model, [Picture(part) for part in batch], tile=tile)])
    if pixels.ndim == 4:
        return results
    return results[0, :, :, 0] if grey and results.shape[-1] == 1 else results[0]


def translate_pictures(
    model: Translator, pictures: Sequence[Picture], *, tile: int | None = None, before_tile: BeforeTile = lambda: None
) -> list[Picture]:
    """The translations of pictures of one size and type, which are not written to.

    `before_tile` is called before the work on each tile of those that are translated in tiles; it may raise.
    """
    tiles = plan_tiles(model, *pictures[0].pixels.shape[:2], tile=tile)
    if tiles is None:
        return translate_equal(model, pictures)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for picture in pictures:
            pixels = picture.pixels.view()
            pixels.flags.writeable = False
            kept = replace(picture, pixels=pixels)
            results.append(translate_in_tiles(model, kept, tiles, scratch=Path(scratch), before_tile=before_tile))
    return results


def _from_pil(image: Image.Image) -> Picture:
    """Its pixels, upright as EXIF says, and its alpha apart. Modes but of grey, RGB and deeper pixels become RGB."""
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
            f"PIL has no image of {pluralize(pixels.shape[-1], 'channel')} of {pixels.dtype}: give the picture as a "
            "NumPy array"
        )
    if picture.alpha is not None:
        pixels = np.concatenate([pixels, picture.alpha[..., None]], axis=-1)
    made = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else np.ascontiguousarray(pixels))
    if picture.icc is not None:
        made.info["icc_profile"] = picture.icc
    return made
