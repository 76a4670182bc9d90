"""Resizing images for feature networks; the method is part of every figure computed over the network."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from velogan.files import pluralize

CLEAN = "antialiased bicubic in float32, clipped to 0 and 255, not rounded (as clean-fid; Parmar et al. 2022)"


def rgb(images: Tensor) -> Tensor:
    """Give `(B, 3, H, W)` of `(B, 1 or 3, H, W)`; grey is repeated. Raises `ValueError` for other channels."""
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"pictures of {pluralize(images.shape[1], 'channel')}: networks trained on photographs take grey or RGB; "
            "set features=none, and leave inception out"
        )
    return images.expand(-1, 3, -1, -1)


def clean(images: Tensor, side: int) -> Tensor:
    """Resize `(B, 1 or 3, H, W)` in [-1, 1] to `(B, 3, side, side)` float32 in 0..255 as `CLEAN` says.

    Parmar et al. 2022, "On Aliased Resizing and Surprising Subtleties in GAN Evaluation", section 3.
    """
    levels = (rgb(images).float() + 1) * 127.5
    return functional.interpolate(levels, size=(side, side), mode="bicubic", antialias=True).clamp(0, 255)
