"""Channels, types and ranges of pixel values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from velogan.data.pictures.values import PixelFormat, Range, common_channels, denormalize, normalize, to_channels

FULL: dict[str, Range] = {"uint8": (0, 255), "uint16": (0, 65535)}
DECLARED: list[tuple[str, Range | None]] = [("uint8", (16.0, 235.0)), ("uint16", (0.0, 4095.0))]
FORMATS: list[tuple[str, Range | None]] = [("uint8", None), ("uint16", None), *DECLARED]
CT: tuple[str, Range | None] = ("float32", (-1024.0, 3071.0))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_grey_is_repeated_and_becomes_grey_again(dtype: str) -> None:
    grey = np.array([[[0], [1], [77], [254], [255]]], dtype)
    grey = grey * np.uint16(257) if dtype == "uint16" else grey
    colour = to_channels(grey, 3)
    assert np.array_equal(colour, np.concatenate([grey] * 3, axis=-1))
    assert to_channels(colour, 1).dtype == grey.dtype
    assert np.allclose(to_channels(colour, 1), grey, rtol=1e-6, atol=0)


def test_luma_equals_pillow() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    expected = np.asarray(Image.fromarray(colours).convert("L"))[..., None]
    assert np.array_equal(to_channels(colours, 1), expected)


@pytest.mark.parametrize(("count", "channels"), [(3, 4), (4, 3), (2, 1), (4, 1)])
def test_rejects_other_changes_of_channels(count: int, channels: int) -> None:
    with pytest.raises(ValueError, match=f"{count} channels, but {channels} are needed"):
        to_channels(np.zeros((2, 2, count), np.uint8), channels)


def test_eight_bits_are_exactly_the_usual_formula() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(normalize(pixels, None), pixels.float() / 127.5 - 1)


@pytest.mark.parametrize(("dtype", "value_range"), [*FORMATS, CT])
def test_ends_and_middle_of_the_range_and_clipping(dtype: str, value_range: Range | None) -> None:
    low, high = value_range or FULL[dtype]
    pixels = torch.from_numpy(np.array([low, high], dtype))
    assert normalize(pixels, value_range).tolist() == [-1, 1]
    back = denormalize(torch.tensor([-1.0, 0.0, 1.0, -3.0, 3.0]), dtype, value_range)
    middle = (low + high) / 2 if dtype == "float32" else round((low + high) / 2)
    assert back.tolist() == [low, middle, high, low, high]
    assert str(back.dtype) == f"torch.{dtype}"
    if value_range:
        outside = torch.from_numpy(np.array([low - 1 if low else 0, high + 9], dtype))
        assert normalize(outside, value_range).tolist() == [-1, 1]


@pytest.mark.parametrize(("dtype", "value_range"), [*FORMATS, CT])
def test_values_survive_a_round_trip(dtype: str, value_range: Range | None) -> None:
    low, high = value_range or FULL[dtype]
    values = np.linspace(low, high, 10_001) if dtype == "float32" else np.arange(int(low), int(high) + 1)
    pixels = torch.from_numpy(values.astype(dtype))
    back = denormalize(normalize(pixels, value_range), dtype, value_range)
    tolerance = (high - low) * torch.finfo(torch.float32).eps if dtype == "float32" else 0
    assert torch.allclose(back.double(), pixels.double(), rtol=0, atol=tolerance)


def test_a_range_beyond_the_type_ends_at_the_type() -> None:
    assert denormalize(torch.tensor([-1.0, 1.0]), "uint8", (-100, 1000)).tolist() == [0, 255]


def test_half_precision_images_do_not_lose_levels() -> None:
    assert denormalize(torch.ones(1, dtype=torch.bfloat16), "uint16", None).tolist() == [65535]


def test_rejects_floats_without_a_range_and_wrong_formats() -> None:
    with pytest.raises(ValueError, match=r"data\.range_a"):
        normalize(torch.zeros(2), None)
    with pytest.raises(ValueError, match=r"data\.range_a"):
        denormalize(torch.zeros(2), "float32", None)
    assert PixelFormat(1, "uint16", [0, 4095]) == PixelFormat(1, "uint16", (0.0, 4095.0))  # pyright: ignore
    for arguments, reason in [
        ((0, "uint8", None), "channels=0"),
        ((3, "int8", None), "dtype='int8'"),
        ((3, "uint8", (5, 5)), "the lower one first"),
        ((3, "uint8", (0, float("inf"))), "range="),
    ]:
        with pytest.raises(ValueError, match=reason):
            PixelFormat(*arguments)


@pytest.mark.parametrize(
    ("counts", "channels"), [([1, 3], 3), ([3, 3, 5], 3), ([1, 5, 5, 3], 5), ([1, 1], 1), ([1, 4], 4), ([], 1)]
)
def test_channels_fit_most_pictures(counts: list[int], channels: int) -> None:
    assert common_channels(counts) == channels
