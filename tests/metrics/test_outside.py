from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.outside import MIN_STRIPED_AREA, dilate, striped_fraction
from velogan.metrics.pixel import psnr

SIDE = 64


@pytest.fixture
def given() -> Tensor:
    """A smooth picture with a little grain, `(1, 3, 64, 64)`."""
    torch.manual_seed(0)
    rows = torch.linspace(-0.5, 0.5, SIDE)[:, None].expand(SIDE, SIDE)
    return (rows + 0.03 * torch.randn(SIDE, SIDE)).expand(1, 3, SIDE, SIDE).clone()


@pytest.fixture
def mask() -> Tensor:
    """An object in the middle, a sixteenth of the picture."""
    mask = torch.zeros(1, 1, SIDE, SIDE, dtype=torch.bool)
    mask[..., 24:40, 24:40] = True
    return mask


def _striped(images: Tensor, where: Tensor) -> Tensor:
    bars = (torch.arange(SIDE) // 2 % 2 * 2 - 1).float().mul(0.8).expand_as(images)
    return torch.where(where, bars, images)


def test_a_mask_grows_by_eight_pixels_of_256(mask: Tensor):
    found = dilate(mask)
    assert found[0, 0].nonzero().min() == 22
    assert found[0, 0].nonzero().max() == 41
    large = torch.zeros(1, 1, 256, 300, dtype=torch.bool)
    large[..., 100, 100] = True
    assert dilate(large).sum() == 17**2
    assert not dilate(torch.zeros_like(mask)).any()


def test_what_changes_inside_is_not_counted(given: Tensor, mask: Tensor):
    fake = torch.where(mask, -given, given)
    assert psnr(fake, given, ~dilate(mask)).item() == math.inf
    assert striped_fraction(_striped(given, mask), given, dilate(dilate(mask))).item() == 0


def test_the_change_outside_is_in_db(given: Tensor, mask: Tensor):
    assert psnr(given + 0.2, given, ~mask).item() == pytest.approx(20, abs=1e-4)
    assert torch.isnan(psnr(given, given, torch.zeros_like(mask))).all()
    assert torch.isnan(striped_fraction(given, given, torch.ones_like(mask))).all()


def test_stripes_outside_are_found_where_they_are(given: Tensor, mask: Tensor):
    where = torch.zeros_like(mask)
    where[..., :16, :] = True
    share = striped_fraction(_striped(given, where), given, mask).item()
    assert share == pytest.approx(16 * SIDE / (SIDE**2 - 256), rel=0.2)
    assert share > MIN_STRIPED_AREA


@pytest.mark.parametrize("change", ["nothing", "shade", "step", "contrast", "blur", "noise", "fewer"])
def test_other_changes_are_no_stripes(change: str, given: Tensor, mask: Tensor):
    step = torch.zeros_like(given)
    step[..., : SIDE // 2] = 0.4
    striped = _striped(given, ~mask)
    found = {
        "nothing": (given, given),
        "shade": (given - 0.4, given),
        "step": (given + step, given),
        "contrast": (1.5 * given, given),
        "blur": (torch.nn.functional.avg_pool2d(given, 5, 1, 2), given),
        "noise": (given + 0.1 * torch.randn_like(given), given),
        "fewer": (given, striped),
    }[change]
    assert striped_fraction(*found, mask).item() < MIN_STRIPED_AREA / 2
