from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from velogan.engine.winograd import Transforms, WinogradConv2d, fits_winograd, load_transforms


@pytest.fixture(scope="module")
def transforms() -> Transforms:
    made = load_transforms(Path(os.environ["VELOGAN_CACHE"]) / "kernels")
    if made is None:
        pytest.skip("there is no g++ to build the transforms")
    return made


def _convolution(channels: int, out: int, *, bias: bool) -> nn.Conv2d:
    torch.manual_seed(channels + out)
    return nn.Conv2d(channels, out, 3, bias=bias).requires_grad_(False)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 2),
    c=st.sampled_from([1, 5, 32, 40]),
    o=st.sampled_from([1, 33]),
    h=st.integers(3, 40),
    w=st.integers(3, 40),
    bias=st.booleans(),
)
def test_it_is_the_convolution_to_rounding(
    transforms: Transforms, n: int, c: int, o: int, h: int, w: int, bias: bool
) -> None:
    conv = _convolution(c, o, bias=bias)
    x = torch.randn(n, c, h, w, generator=torch.Generator().manual_seed(h * w)).bfloat16()
    result = WinogradConv2d(conv, transforms)(x)
    assert result.dtype == torch.bfloat16
    expected = conv(x.float())
    # Three roundings to 8 bits, of values up to four (image) and nine (product) summands.
    allowed = 2**-7 * F.conv2d(x.float().abs(), conv.weight.abs(), None).amax() + 2**-8 * expected.abs().amax()
    assert result.shape == expected.shape
    assert (result.float() - expected).abs().max() <= allowed


def test_whole_numbers_are_exact(transforms: Transforms) -> None:
    conv = _convolution(4, 4, bias=True)
    conv.weight.copy_(torch.randint(-1, 2, conv.weight.shape) * 4)
    conv.bias.copy_(torch.arange(4.0))  # pyright: ignore[reportOptionalMemberAccess]
    x = torch.randint(0, 2, (1, 4, 9, 8)).float()
    expected = conv(x)
    assert expected.abs().max() < 256  # all of it fits into 8 bits
    result = WinogradConv2d(conv, transforms)(x.bfloat16())
    assert torch.equal(result.float(), expected)


def test_results_do_not_depend_on_threads_or_neighbours(transforms: Transforms) -> None:
    conv = WinogradConv2d(_convolution(16, 16, bias=True), transforms)
    x = torch.randn(2, 16, 70, 21).bfloat16()
    one = conv(x)
    torch.set_num_threads(2)
    assert torch.equal(conv(x), one)
    torch.set_num_threads(1)
    assert torch.equal(conv(x[1:]), one[1:])


def test_what_it_stands_for() -> None:
    assert fits_winograd(nn.Conv2d(64, 64, 3))
    for other in (
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Conv2d(64, 64, 3, stride=2),
        nn.Conv2d(64, 64, 3, groups=2),
        nn.Conv2d(64, 64, 5),
        nn.Conv2d(3, 64, 3),
        nn.ReLU(),
    ):
        assert not fits_winograd(other)


def test_without_a_compiler_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/absent")
    assert load_transforms(tmp_path) is None
