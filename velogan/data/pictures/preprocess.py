"""The deterministic part of preprocessing: resizing, before any random crop.

The rules are those of junyanz/pytorch-CycleGAN-and-pix2pix, `data/base_dataset.py`.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from velogan.data.config import DataConfig
from velogan.data.pictures.picture import check_size

_LARGE = 2**26  # bytes of an 8-bit picture


def prepared_shape(config: DataConfig, height: int, width: int, *, test: bool) -> tuple[int, int]:
    """Return the `(height, width)` to which a picture is resized; if `test`, the load size is the crop size."""
    load_side = config.crop_size if test else config.load_side
    mode = config.preprocess
    if mode == "resize_and_crop":
        return load_side, load_side
    if mode in ("scale_width", "scale_width_and_crop") and not (width == load_side and height >= config.crop_size):
        height, width = int(max(load_side * height / width, config.crop_size)), load_side
    is_uncropped = test or mode in ("scale_width", "none")
    if is_uncropped:  # generators halve the sides twice and double them twice, so only multiples of 4 stay the same
        return _multiple_of_4(height), _multiple_of_4(width)
    return height, width


def prepare(image: np.ndarray, config: DataConfig, *, test: bool, nearest: bool = False) -> np.ndarray:
    """Resize `(H, W, C)` uint8, uint16 or float32 to `prepared_shape`, by Pillow's antialiased bicubic filter.

    `nearest`: use nearest neighbour instead, which creates no new values.

    Raises ValueError if the result would be too large, for example from a very tall picture.
    """
    height, width = prepared_shape(config, *image.shape[:2], test=test)
    check_size(height, width, image.shape[2] * image.itemsize)
    if image.shape[:2] == (height, width):
        return image
    return resize(image, height, width, resample=Image.Resampling.NEAREST if nearest else Image.Resampling.BICUBIC)


def resize(
    image: np.ndarray, height: int, width: int, *, resample: Image.Resampling = Image.Resampling.BICUBIC
) -> np.ndarray:
    """Resize `(H, W, C)` by Pillow's antialiased bicubic, or another `resample` filter; the dtype is kept.

    uint8 is computed in Pillow's integer arithmetic, other types in float32; integers are rounded and clipped.
    """
    if image.dtype == np.uint8 and image.shape[2] == 3 and image.size < _LARGE:
        return np.asarray(Image.fromarray(image).resize((width, height), resample))
    dtype, planes = np.uint8 if image.dtype == np.uint8 else np.float32, []
    for channel in range(image.shape[2]):  # one at a time to save memory, since each is a copy
        plane = Image.fromarray(np.ascontiguousarray(image[:, :, channel], dtype=dtype))
        planes.append(np.asarray(plane.resize((width, height), resample)))
    resized = np.stack(planes, axis=2)
    if image.dtype == np.uint16:
        return resized.round().clip(0, np.iinfo(np.uint16).max).astype(np.uint16)
    return resized.astype(image.dtype)


def _multiple_of_4(side: int) -> int:
    return max(4, round(side / 4) * 4)
