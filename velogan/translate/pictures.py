"""Translate decoded pictures; their bit depth, alpha, colour profile, EXIF and resolution are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from velogan.data.pictures.images import Picture
from velogan.data.pictures.values import PixelFormat, denormalize, normalize, promote_dtype, to_channels
from velogan.translate.large import BeforeTile, Tiling, translate_large
from velogan.translate.model import Translator
from velogan.translate.tiles import reflect_indices

_OPAQUE = {"uint8": 255, "uint16": 65535, "float32": 1}


def translate_pictures(
    model: Translator,
    pictures: Sequence[Picture],
    tiles: Tiling | None,
    *,
    scratch: Path | None = None,
    before_tile: BeforeTile = lambda: None,
) -> list[Picture]:
    """Translate pictures of one size and type: as one batch, or each in `tiles`.

    scratch: folder for temporary files of tiles; None: a temporary folder
    before_tile: called before each tile is computed; it may raise

    With tiles, the result is written into a picture's own array if that is writable and has the result's format, see
    `Picture.as_read_only`.
    """
    if tiles is not None:
        with nullcontext(scratch) if scratch else tempfile.TemporaryDirectory() as folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return [
                _translate_in_tiles(model, picture, tiles, scratch=Path(folder), before_tile=before_tile)
                for picture in pictures
            ]
    output, source = output_format(model, pictures[0]), model.input
    pixels = np.stack([to_channels(picture.pixels, source.channels) for picture in pictures])
    images = _to_images(pixels, source, model.device)
    results = _to_pixels(model.translate_fast(images, rounded=output.dtype == "uint8"), output)
    return [
        _with_metadata(picture, picture.metadata.geography.avoid_nodata(result))
        for picture, result in zip(pictures, results)
    ]


def _translate_in_tiles(
    model: Translator, picture: Picture, tiles: Tiling, *, scratch: Path, before_tile: BeforeTile
) -> Picture:
    output, source = output_format(model, picture), model.input
    pixels = picture.pixels
    height, width, channels = pixels.shape
    is_in_place = (channels, pixels.dtype.name) == (output.channels, output.dtype) and pixels.flags.writeable
    result = pixels if is_in_place else np.empty((height, width, output.channels), output.dtype)

    def read(rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
        part = np.ascontiguousarray(pixels[reflect_indices(*rows, height)[:, None], reflect_indices(*columns, width)])
        return _to_images(to_channels(part, source.channels)[None], source, torch.device("cpu"))

    rounded = output.dtype == "uint8"
    for top, band in translate_large(model, tiles, read, rounded=rounded, scratch=scratch, before_tile=before_tile):
        rows = slice(top, min(top + band.shape[1], height))
        translated = _to_pixels(band[None, :, : rows.stop - top, :width], output)[0]
        result[rows] = picture.metadata.geography.avoid_nodata(translated)
    return _with_metadata(picture, result)


def output_format(model: Translator, picture: Picture) -> PixelFormat:
    """Return the format of the translation: as in training; if no range is declared, with the picture's integer dtype.

    Raises ValueError if the generator needs a complete volume, or if the picture's type cannot hold the declared input
    range (see `values.promote_dtype`).
    """
    target, source = model.output, model.input
    if source.own_scale or source.neighbours:
        context = "neighbouring slices" if source.neighbours else "the value scale of each volume"
        raise ValueError(f"the model was trained on volumes and needs {context}: pass DICOM or NIfTI files")
    promote_dtype(picture.pixels[:0], picture.pixels.dtype.name, source.range)  # rejects what training rejects
    dtype = picture.pixels.dtype
    output = target if target.range is not None or dtype.kind == "f" else replace(target, dtype=dtype.name)
    return output


def to_images(model: Translator, picture: Picture) -> Tensor:
    """Return `(1, C, H, W)` in [-1, 1] on the model's device, with the channels that the model takes."""
    pixels = np.stack([to_channels(picture.pixels, model.input.channels)])  # a copy: pixels may be read-only
    return _to_images(pixels, model.input, model.device)


def _to_images(pixels: np.ndarray, pixel_format: PixelFormat, device: torch.device) -> Tensor:
    """Convert `(B, H, W, C)` pixels to `(B, C, H, W)` in [-1, 1]."""
    return normalize(torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2), pixel_format.range)


def _to_pixels(images: Tensor, pixel_format: PixelFormat) -> np.ndarray:
    """Convert `(B, C, H, W)` in [-1, 1] to `(B, H, W, C)` pixels."""
    return denormalize(images, pixel_format.dtype, pixel_format.range).permute(0, 2, 3, 1).cpu().contiguous().numpy()


def _with_metadata(picture: Picture, pixels: np.ndarray) -> Picture:
    """Return the translated pixels with the alpha and metadata of `picture`.

    If the number of channels differs, its colour profile does not apply and is left out.
    """
    alpha = picture.alpha
    if alpha is not None and alpha.dtype != pixels.dtype:
        opaque = _OPAQUE[pixels.dtype.name]
        scaled = alpha.astype(np.float64) / _OPAQUE[alpha.dtype.name] * opaque
        alpha = (scaled if pixels.dtype.kind == "f" else scaled.round().clip(0, opaque)).astype(pixels.dtype)
    icc = picture.icc if pixels.shape[2] == picture.pixels.shape[2] else None
    return Picture(pixels, alpha, icc, picture.metadata)
