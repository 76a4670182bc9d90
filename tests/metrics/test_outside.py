from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.outside import MIN_STRIPED_AREA, dilate, striped_fraction
from velogan.metrics.pixel import psnr

SIDE = 64


@pytest.fixture
def images() -> Tensor:
    """A smooth image with a little grain, `(1, 3, 64, 64)`."""
    torch.manual_seed(0)
    rows = torch.linspace(-0.5, 0.5, SIDE)[:, None].expand(SIDE, SIDE)
    return (rows + 0.03 * torch.randn(SIDE, SIDE)).expand(1, 3, SIDE, SIDE).clone()


@pytest.fixture
def mask() -> Tensor:
    """An object in the centre, a sixteenth of the image."""
    mask = torch.zeros(1, 1, SIDE, SIDE, dtype=torch.bool)
    mask[..., 24:40, 24:40] = True
    return mask


def _striped(images: Tensor, where: Tensor) -> Tensor:
    bars = (torch.arange(SIDE) // 2 % 2 * 2 - 1).float().mul(0.8).expand_as(images)
    return torch.where(where, bars, images)


def test_a_mask_grows_by_eight_pixels_of_256(mask: Tensor):
    dilated = dilate(mask)
    assert dilated[0, 0].nonzero().min() == 22
    assert dilated[0, 0].nonzero().max() == 41
    large = torch.zeros(1, 1, 256, 300, dtype=torch.bool)
    large[..., 100, 100] = True
    assert dilate(large).sum() == 17**2
    assert not dilate(torch.zeros_like(mask)).any()


def test_changes_inside_do_not_count(images: Tensor, mask: Tensor):
    fake = torch.where(mask, -images, images)
    assert psnr(fake, images, ~dilate(mask)).item() == math.inf
    assert striped_fraction(_striped(images, mask), images, dilate(dilate(mask))).item() == 0


def test_measures_changes_outside_in_db(images: Tensor, mask: Tensor):
    assert psnr(images + 0.2, images, ~mask).item() == pytest.approx(20, abs=1e-4)
    assert torch.isnan(psnr(images, images, torch.zeros_like(mask))).all()
    assert torch.isnan(striped_fraction(images, images, torch.ones_like(mask))).all()


def test_finds_stripes_outside(images: Tensor, mask: Tensor):
    where = torch.zeros_like(mask)
    where[..., :16, :] = True
    share = striped_fraction(_striped(images, where), images, mask).item()
    assert share == pytest.approx(16 * SIDE / (SIDE**2 - 256), rel=0.2)
    assert share > MIN_STRIPED_AREA


@pytest.mark.parametrize("change", ["nothing", "shade", "step", "contrast", "blur", "noise", "fewer"])
def test_other_changes_are_not_stripes(change: str, images: Tensor, mask: Tensor):
    step = torch.zeros_like(images)
    step[..., : SIDE // 2] = 0.4
    striped = _striped(images, ~mask)
    pair = {
        "nothing": (images, images),
        "shade": (images - 0.4, images),
        "step": (images + step, images),
        "contrast": (1.5 * images, images),
        "blur": (torch.nn.functional.avg_pool2d(images, 5, 1, 2), images),
        "noise": (images + 0.1 * torch.randn_like(images), images),
        "fewer": (images, striped),
    }[change]
    assert striped_fraction(*pair, mask).item() < MIN_STRIPED_AREA / 2
