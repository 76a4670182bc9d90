"""Signs that a translator has failed, measured on translations `fake`, their inputs and real pictures of the target.

All are `(N, C, H, W)` in [-1, 1]. No sign proves a failure; each says where to look.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

THUMBNAIL = 8
"""The side of the pictures whose distances are compared."""

PERIODS = (2, 4)
"""Periods in pixels of the patterns that two layers of stride 2 leave (Odena et al. 2016)."""


def signs(fake: Tensor, given: Tensor, target: Tensor) -> dict[str, float]:
    """All signs by name; no spread where inputs or real pictures have none, as one alone."""
    known = min(spread(given), spread(target))
    return {
        "correlation": correlation(fake, given),
        **({"spread": spread(fake) / known} if known else {}),
        "change": (_brightness(fake) - _brightness(given)).abs().mean().item() / 2,
        "checkerboard": pattern(fake) / pattern(target),
    }


def correlation(fake: Tensor, given: Tensor) -> float:
    """Pearson's correlation of the brightness of a translation with its input's, mean over pictures; -1 to 1."""
    x, y = (_brightness(images).flatten(1) for images in (fake, given))
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    return F.cosine_similarity(x, y, dim=1).mean().item()


def spread(images: Tensor) -> float:
    """The mean distance of two different pictures, as thumbnails: root mean square of values; 0 for one picture."""
    if len(images) < 2:
        return 0.0
    small = F.adaptive_avg_pool2d(images.float(), THUMBNAIL).flatten(1)
    return torch.pdist(small).mean().item() / math.sqrt(small.shape[1])


def pattern(images: Tensor) -> float:
    """How far patterns of 2 and 4 pixels stand out: the power at these periods over that beside them, the largest.

    Powers are means over pictures, rows and columns. 1 is none.
    """
    bright = _brightness(images)
    found = [1e-6]
    for lines in (bright, bright.mT):
        power = torch.fft.rfft(lines - lines.mean(2, keepdim=True), dim=2).abs().square().mean((0, 1))
        for period in PERIODS:
            place = lines.shape[2] // period
            beside = torch.cat([power[max(place - 3, 1) : place - 1], power[place + 2 : place + 4]])
            if lines.shape[2] % period == 0 and len(beside):
                found.append((power[place] / beside.mean().clamp(min=1e-12)).item())
    return max(found)


def _brightness(images: Tensor) -> Tensor:
    return images.float().mean(1)
