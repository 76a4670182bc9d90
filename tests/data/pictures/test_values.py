from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from velogan.data.pictures.values import PixelFormat, Range, common_channels, denormalize, normalize, to_channels

WHOLE: list[tuple[str, Range | None]] = [("uint8", None), ("uint16", None)]
DECLARED: list[tuple[str, Range | None]] = [
    ("uint8", (16.0, 235.0)),
    ("uint16", (0.0, 4095.0)),
    ("float32", (-1024.0, 3071.0)),
]


def test_grey_is_repeated() -> None:
    grey = np.arange(6, dtype=np.uint16).reshape(2, 3, 1)
    assert np.array_equal(to_channels(grey, 3), np.concatenate([grey] * 3, axis=-1))
    assert to_channels(grey, 1) is grey


def test_luma_is_pillows() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    wanted = np.asarray(Image.fromarray(colours).convert("L"))[..., None]
    assert np.array_equal(to_channels(colours, 1), wanted)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_luma_of_grey_colours_is_that_grey(dtype: str) -> None:
    grey = np.array([[[0], [1], [77], [254], [255]]], dtype)
    grey = grey * np.uint16(257) if dtype == "uint16" else grey
    assert to_channels(np.repeat(grey, 3, axis=-1), 1).dtype == grey.dtype
    assert np.allclose(to_channels(np.repeat(grey, 3, axis=-1), 1), grey, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("have", "wanted"), [(3, 4), (4, 3), (2, 1), (4, 1)])
def test_other_changes_of_channels_are_refused(have: int, wanted: int) -> None:
    with pytest.raises(ValueError, match=f"{have} channels, but {wanted} are needed"):
        to_channels(np.zeros((2, 2, have), np.uint8), wanted)


def test_eight_bits_are_exactly_the_usual_formula() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(normalize(pixels, None), pixels.float() / 127.5 - 1)


@pytest.mark.parametrize(("dtype", "value_range"), WHOLE + DECLARED)
def test_ends_and_middle(dtype: str, value_range: Range | None) -> None:
    low, high = value_range or {"uint8": (0, 255), "uint16": (0, 65535)}[dtype]
    pixels = torch.from_numpy(np.array([low, high], dtype))
    assert normalize(pixels, value_range).tolist() == [-1, 1]
    back = denormalize(torch.tensor([-1.0, 0.0, 1.0, -3.0, 3.0]), dtype, value_range)
    middle = (low + high) / 2 if dtype == "float32" else round((low + high) / 2)
    assert back.tolist() == [low, middle, high, low, high]
    assert str(back.dtype) == f"torch.{dtype}"


@pytest.mark.parametrize(("dtype", "value_range"), WHOLE + [case for case in DECLARED if case[0] != "float32"])
def test_integers_survive_exactly(dtype: str, value_range: Range | None) -> None:
    low, high = value_range or {"uint8": (0, 255), "uint16": (0, 65535)}[dtype]
    pixels = torch.from_numpy(np.arange(int(low), int(high) + 1).astype(dtype))
    assert torch.equal(denormalize(normalize(pixels, value_range), dtype, value_range).int(), pixels.int())


def test_floats_survive_to_rounding() -> None:
    pixels = torch.linspace(-1024, 3071, 10_001)
    back = denormalize(normalize(pixels, (-1024, 3071)), "float32", (-1024, 3071))
    assert torch.allclose(back, pixels, rtol=0, atol=4095 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(("dtype", "value_range"), DECLARED)
def test_values_outside_are_clipped(dtype: str, value_range: Range) -> None:
    pixels = torch.from_numpy(np.array([value_range[0] - 1 if value_range[0] else 0, value_range[1] + 9], dtype))
    assert normalize(pixels, value_range).tolist() == [-1, 1]


def test_a_range_beyond_the_type_stops_at_the_type() -> None:
    assert denormalize(torch.tensor([-1.0, 1.0]), "uint8", (-100, 1000)).tolist() == [0, 255]


def test_floats_need_a_range() -> None:
    with pytest.raises(ValueError, match=r"data\.range_a"):
        normalize(torch.zeros(2), None)
    with pytest.raises(ValueError, match=r"data\.range_a"):
        denormalize(torch.zeros(2), "float32", None)


def test_half_precision_images_do_not_lose_levels() -> None:
    assert denormalize(torch.ones(1, dtype=torch.bfloat16), "uint16", None).tolist() == [65535]


def test_a_format_says_what_is_wrong_with_it() -> None:
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
    ("counts", "wanted"), [([1, 3], 3), ([3, 3, 5], 3), ([1, 5, 5, 3], 5), ([1, 1], 1), ([1, 4], 4), ([], 1)]
)
def test_one_odd_picture_does_not_leave_the_others_out(counts: list[int], wanted: int) -> None:
    assert common_channels(counts) == wanted
