from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from velogan.data.config import DataConfig, Preprocess
from velogan.data.pictures.preprocess import prepare, prepared_shape, resize

# (height, width) in, (height, width) out, with load_size 72 and crop_size 64; worked out by hand from
# base_dataset.py: resize; int(max(load * h / w, crop)); round to a multiple of 4, halves to even.
TRAIN = [
    ("resize_and_crop", (50, 90), (72, 72)),
    ("resize_and_crop", (72, 72), (72, 72)),
    ("crop", (101, 97), (101, 97)),
    ("scale_width_and_crop", (100, 90), (80, 72)),
    ("scale_width_and_crop", (101, 90), (80, 72)),
    ("scale_width_and_crop", (103, 90), (82, 72)),
    ("scale_width_and_crop", (50, 90), (64, 72)),
    ("scale_width_and_crop", (75, 72), (75, 72)),
    ("scale_width", (103, 90), (80, 72)),
    ("scale_width", (105, 90), (84, 72)),
    ("scale_width", (50, 90), (64, 72)),
    ("none", (101, 98), (100, 96)),
    ("none", (102, 103), (104, 104)),
    ("none", (2, 7), (4, 8)),
]
TEST = [
    ("resize_and_crop", (50, 90), (64, 64)),
    ("crop", (101, 98), (100, 96)),
    ("scale_width_and_crop", (103, 90), (72, 64)),
    ("scale_width", (50, 90), (64, 64)),
    ("none", (101, 98), (100, 96)),
]


@pytest.mark.parametrize(("mode", "given", "wanted"), TRAIN)
def test_training_shapes(mode: Preprocess, given: tuple[int, int], wanted: tuple[int, int]) -> None:
    config = DataConfig(preprocess=mode, load_size=72, crop_size=64)
    assert prepared_shape(config, *given, test=False) == wanted
    assert prepare(np.zeros((*given, 3), np.uint8), config, test=False).shape == (*wanted, 3)


@pytest.mark.parametrize(("mode", "given", "wanted"), TEST)
def test_test_shapes(mode: Preprocess, given: tuple[int, int], wanted: tuple[int, int]) -> None:
    config = DataConfig(preprocess=mode, load_size=72, crop_size=64)
    assert prepared_shape(config, *given, test=True) == wanted


def test_resizes_as_pillow_bicubic_and_leaves_the_right_size_alone() -> None:
    image = np.random.default_rng(0).integers(0, 256, (50, 90, 3), np.uint8)
    config = DataConfig(load_size=40, crop_size=40)
    wanted = np.asarray(Image.fromarray(image).resize((40, 40), Image.Resampling.BICUBIC))
    assert np.array_equal(prepare(image, config, test=False), wanted)
    assert prepare(wanted, config, test=False) is wanted


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_resizing_at_depth_agrees_with_eight_bits(channels: int):
    picture = np.random.default_rng(0).integers(0, 256, (20, 30, channels), np.uint8)
    small = resize(picture, 10, 12)
    assert (small.shape, small.dtype) == ((10, 12, channels), np.uint8)
    deep = resize(picture.astype(np.uint16) * 257, 10, 12)
    assert deep.dtype == np.uint16
    assert np.abs(deep / 257 - small).max() <= 1  # 8 bits round between the two directions
    floats = resize(picture.astype(np.float32), 10, 12)
    assert floats.dtype == np.float32
    assert np.abs(floats.clip(0, 255) - small).max() <= 1
