"""Translating pictures in memory: their depth, alpha, colour profile, EXIF and resolution are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from velogan.data.pictures.images import Picture
from velogan.data.pictures.values import PixelFormat, denormalize, normalize, promote_dtype, to_channels
from velogan.translate.large import BeforeTile, Tiling, translate_large
from velogan.translate.masking import composite
from velogan.translate.model import Translator
from velogan.translate.tiles import reflect_indices

_LEVELS = {"uint8": 255, "uint16": 65535, "float32": 1}  # of full opacity


def translate_planned(
    model: Translator, pictures: Sequence[Picture], tiles: Tiling | None, *, scratch: Path
) -> list[Picture]:
    """Translate pictures of one size and type: in one pass, or each in `tiles`, see `translate_in_tiles`."""
    if tiles is None:
        return translate_equal(model, pictures)
    return [translate_in_tiles(model, one, tiles, scratch=scratch) for one in pictures]


def translate_equal(model: Translator, pictures: Sequence[Picture]) -> list[Picture]:
    """Translate pictures of one size and type in one pass."""
    first = pictures[0]
    form, source = output_format(model, first), model.input
    pixels = np.stack([to_channels(picture.pixels, source.channels) for picture in pictures])
    images = _images(pixels, source, model.device)
    results = _pixels(model.translate_fast(images, rounded=form.dtype == "uint8"), form)
    kept = [_kept(picture, result, of) for picture, result, of in zip(pictures, results, pixels)]
    return [_with_rest(picture, result) for picture, result in zip(pictures, kept)]


def translate_in_tiles(
    model: Translator, picture: Picture, tiles: Tiling, *, scratch: Path, before_tile: BeforeTile = lambda: None
) -> Picture:
    """Translate a picture in tiles, into its own array if that is writeable and the result has its channels and type.

    `scratch`: a folder for what does not fit into memory. `before_tile` is called before the work on each tile; it may
    raise.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    form, source = output_format(model, picture), model.input
    pixels = picture.pixels
    height, width, channels = pixels.shape
    same = (channels, pixels.dtype.name) == (form.channels, form.dtype) and pixels.flags.writeable
    result = pixels if same else np.empty((height, width, form.channels), form.dtype)

    def read(down: tuple[int, int], across: tuple[int, int]) -> Tensor:
        part = np.ascontiguousarray(pixels[reflect_indices(*down, height)[:, None], reflect_indices(*across, width)])
        return _images(to_channels(part, source.channels)[None], source, torch.device("cpu"))

    rounded = form.dtype == "uint8"
    for top, band in translate_large(model, tiles, read, rounded=rounded, scratch=scratch, before_tile=before_tile):
        rows = result[top : top + band.shape[1]]
        made = _pixels(band[None, :, : len(rows), :width], form)[0]
        here = slice(top, top + len(rows))
        rows[:] = _kept(picture, made, to_channels(pixels[here], form.channels), here)
    return _with_rest(picture, result)


def output_format(model: Translator, picture: Picture) -> PixelFormat:
    """The format of the translation of `picture`: the picture's depth, unless the output has a declared range.

    ValueError where a picture alone does not say what the generator sees, or the declared range is not for it, see
    `values.promote_dtype`.
    """
    trained, given = model.output, model.input
    if given.own_scale or given.neighbours:
        raise ValueError(
            "the run was trained on volumes, and sees "
            f"{'slices with their neighbours' if given.neighbours else 'each on its own scale'}: name DICOM or NIfTI "
            "files"
        )
    promote_dtype(picture.pixels[:0], picture.pixels.dtype.name, given.range)  # it refuses what training leaves out
    own = trained.range is not None or picture.pixels.dtype.kind == "f"
    form = trained if own else replace(trained, dtype=picture.pixels.dtype.name)
    theirs = (picture.pixels.dtype.name, given.channels, given.range)
    if picture.mask is not None and (form.dtype, form.channels, form.range) != theirs:
        raise ValueError("a mask cannot keep it: its translation has another type, channels or range; leave masks out")
    return form


def to_images(model: Translator, picture: Picture) -> Tensor:
    """`(1, C, H, W)` in [-1, 1] on the model's device, with the channels that it takes."""
    pixels = np.stack([to_channels(picture.pixels, model.input.channels)])  # a copy: pixels may be read-only
    return _images(pixels, model.input, model.device)


def _images(pixels: np.ndarray, form: PixelFormat, device: torch.device) -> Tensor:
    """`(B, H, W, C)` pixels as `(B, C, H, W)` in [-1, 1]."""
    return normalize(torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2), form.range)


def _pixels(images: Tensor, form: PixelFormat) -> np.ndarray:
    """`(B, C, H, W)` in [-1, 1] as `(B, H, W, C)` pixels."""
    return denormalize(images, form.dtype, form.range).permute(0, 2, 3, 1).cpu().contiguous().numpy()


def _kept(picture: Picture, made: np.ndarray, given: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
    """Those `rows` of the translation, with what the picture's mask keeps of its pixels, as the generator sees them."""
    made = picture.metadata.geography.avoid_nodata(made)
    return made if picture.mask is None else composite(made, given, picture.mask[rows])


def _with_rest(picture: Picture, pixels: np.ndarray) -> Picture:
    """The translated pixels with the picture's alpha and notes; without its colours' profile if channels differ."""
    alpha = picture.alpha
    if alpha is not None and alpha.dtype != pixels.dtype:
        share = alpha.astype(np.float64) / _LEVELS[alpha.dtype.name] * _LEVELS[pixels.dtype.name]
        alpha = (share if pixels.dtype.kind == "f" else share.round().clip(0, _LEVELS[pixels.dtype.name])).astype(
            pixels.dtype
        )
    if pixels.shape[2] == picture.pixels.shape[2]:
        return Picture(pixels, alpha, picture.icc, picture.metadata)
    return Picture(pixels, alpha, metadata=replace(picture.metadata, colours=()))  # these were of other colours
