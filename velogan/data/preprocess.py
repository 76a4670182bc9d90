"""The deterministic part of preparing a picture: what it is resized to before any crop.

The rules are those of junyanz/pytorch-CycleGAN-and-pix2pix, `data/base_dataset.py`.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from velogan.data.config import DataConfig


def prepared_shape(config: DataConfig, height: int, width: int, *, test: bool) -> tuple[int, int]:
    """Give the `(height, width)` that a picture is resized to.

    At test time nothing is cropped and the load size is the crop size, as in the reference's test options.
    """
    load = config.crop_size if test else config.load_side
    mode = config.preprocess
    if mode == "resize_and_crop":
        return load, load
    if mode in ("scale_width", "scale_width_and_crop") and not (width == load and height >= config.crop_size):
        height, width = int(max(load * height / width, config.crop_size)), load
    whole = test or mode in ("scale_width", "none")
    if whole:  # two halvings and doublings give the size back only for multiples of 4
        return _multiple_of_4(height), _multiple_of_4(width)
    return height, width


def prepare(image: np.ndarray, config: DataConfig, *, test: bool) -> np.ndarray:
    """Resize `(H, W, 3)` uint8 with Pillow's antialiased bicubic to `prepared_shape`."""
    height, width = prepared_shape(config, *image.shape[:2], test=test)
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def _multiple_of_4(side: int) -> int:
    return max(4, round(side / 4) * 4)
