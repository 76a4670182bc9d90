from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.outside import MIN_STRIPED_AREA, striped_fraction
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
