from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from velogan.data.config import DataConfig, Preprocess
from velogan.data.pictures.preprocess import prepare, prepared_shape, resize

# Mode, at test time, (height, width) before and after, for load_size 72 and crop_size 64; by hand from base_dataset.py,
# resize: int(max(load * h / w, crop)); round to a multiple of 4, halves to even.
SHAPES = [
    ("resize_and_crop", False, (50, 90), (72, 72)),
    ("resize_and_crop", False, (72, 72), (72, 72)),
    ("crop", False, (101, 97), (101, 97)),
    ("scale_width_and_crop", False, (100, 90), (80, 72)),
    ("scale_width_and_crop", False, (103, 90), (82, 72)),
    ("scale_width_and_crop", False, (50, 90), (64, 72)),
    ("scale_width_and_crop", False, (75, 72), (75, 72)),
    ("scale_width", False, (103, 90), (80, 72)),
    ("scale_width", False, (105, 90), (84, 72)),
    ("scale_width", False, (50, 90), (64, 72)),
    ("none", False, (101, 98), (100, 96)),
    ("none", False, (102, 103), (104, 104)),
    ("none", False, (2, 7), (4, 8)),
    ("resize_and_crop", True, (50, 90), (64, 64)),
    ("crop", True, (101, 98), (100, 96)),
    ("scale_width_and_crop", True, (103, 90), (72, 64)),
    ("scale_width", True, (50, 90), (64, 64)),
    ("none", True, (101, 98), (100, 96)),
]


@pytest.mark.parametrize(("mode", "test", "before", "after"), SHAPES)
def test_prepared_shapes(mode: Preprocess, test: bool, before: tuple[int, int], after: tuple[int, int]) -> None:
    config = DataConfig(preprocess=mode, load_size=72, crop_size=64)
    assert prepared_shape(config, *before, test=test) == after
    assert prepare(np.zeros((*before, 3), np.uint8), config, test=test).shape == (*after, 3)


def test_resizes_as_pillow_bicubic_and_leaves_the_right_size_unchanged() -> None:
    image = np.random.default_rng(0).integers(0, 256, (50, 90, 3), np.uint8)
    config = DataConfig(load_size=40, crop_size=40)
    expected = np.asarray(Image.fromarray(image).resize((40, 40), Image.Resampling.BICUBIC))
    assert np.array_equal(prepare(image, config, test=False), expected)
    assert prepare(expected, config, test=False) is expected


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_resizing_at_depth_agrees_with_eight_bits(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, channels), np.uint8)
    small = resize(image, 10, 12)
    assert (small.shape, small.dtype) == ((10, 12, channels), np.uint8)
    for dtype, scale in ((np.uint16, 257), (np.float32, 1)):
        deep = resize(image.astype(dtype) * dtype(scale), 10, 12)
        assert deep.dtype == dtype
        assert np.abs((deep / scale).clip(0, 255) - small).max() <= 1  # 8 bits round between the two directions
