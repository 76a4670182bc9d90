"""Signs that a translator has failed, computed from translations `fake`, their `inputs` and real images `target`.

Images are `(N, C, H, W)` in [-1, 1]. No sign proves a failure; each is a reason to look at the images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.metrics.retrieval import edge_descriptors, retrieval

THUMBNAIL_SIDE = 8
"""Side in pixels of the thumbnails that `diversity` compares."""

CHECKERBOARD_PERIODS = (2, 4)
"""Periods in pixels of the patterns that two layers of stride 2 leave (Odena et al. 2016)."""


def failure_signs(fake: Tensor, inputs: Tensor, target: Tensor) -> dict[str, float]:
    """Compute the signs by name: `retrieval` only for several images, `spread` only if inputs and targets differ."""
    reference = min(diversity(inputs), diversity(target))
    retrieved = retrieval(edge_descriptors(fake), edge_descriptors(inputs)).mean().item()
    return {
        **({"retrieval": retrieved} if len(fake) > 1 else {}),
        "correlation": correlation(fake, inputs),
        **({"spread": diversity(fake) / reference} if reference else {}),
        "change": (_brightness(fake) - _brightness(inputs)).abs().mean().item() / 2,
        "checkerboard": checkerboard_strength(fake) / checkerboard_strength(target),
    }


def correlation(fake: Tensor, inputs: Tensor) -> float:
    """Return Pearson's correlation (-1 to 1) between the brightness of translation and input, averaged over images."""
    x, y = (_brightness(images).flatten(1) for images in (fake, inputs))
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    return F.cosine_similarity(x, y, dim=1).mean().item()


def diversity(images: Tensor) -> float:
    """Return the root-mean-square difference of two thumbnails, averaged over all pairs; 0 for a single image."""
    if len(images) < 2:
        return 0.0
    thumbnails = F.adaptive_avg_pool2d(images.float(), THUMBNAIL_SIDE).flatten(1)
    return torch.pdist(thumbnails).mean().item() / math.sqrt(thumbnails.shape[1])


def checkerboard_strength(images: Tensor) -> float:
    """Return the largest ratio of spectral power at a period of 2 or 4 pixels to the power at nearby frequencies.

    Powers are averaged over images and lines (rows, then columns). 1: no pattern.
    """
    brightness = _brightness(images)
    ratios = [1e-6]
    for lines in (brightness, brightness.mT):
        power = torch.fft.rfft(lines - lines.mean(2, keepdim=True), dim=2).abs().square().mean((0, 1))
        for period in CHECKERBOARD_PERIODS:
            frequency = lines.shape[2] // period
            nearby = torch.cat([power[max(frequency - 3, 1) : frequency - 1], power[frequency + 2 : frequency + 4]])
            if lines.shape[2] % period == 0 and len(nearby):
                ratios.append((power[frequency] / nearby.mean().clamp(min=1e-12)).item())
    return max(ratios)


def _brightness(images: Tensor) -> Tensor:
    return images.float().mean(1)
