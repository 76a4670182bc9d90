"""Resizing of images for feature networks; the method affects every metric that uses their features."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

RESIZE_PROTOCOL = "antialiased bicubic in float32, clipped to 0 and 255, not rounded (as clean-fid; Parmar et al. 2022)"


def to_rgb(images: Tensor) -> Tensor:
    """Repeat the channel of grey images: `(B, 3, H, W)` from `(B, 1 or 3, H, W)`.

    Raises ValueError if images have another number of channels.
    """
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"images have {images.shape[1]} channels: this network accepts only grey or RGB images; "
            "set features=none and omit inception"
        )
    return images.expand(-1, 3, -1, -1)


def resize_for_features(images: Tensor, side: int) -> Tensor:
    """Resize `(B, 1 or 3, H, W)` in [-1, 1] to `(B, 3, side, side)` float32 in 0..255, see `RESIZE_PROTOCOL`.

    Parmar et al. 2022, "On Aliased Resizing and Surprising Subtleties in GAN Evaluation", section 3.
    """
    levels = (to_rgb(images).float() + 1) * 127.5
    return functional.interpolate(levels, size=(side, side), mode="bicubic", antialias=True).clamp(0, 255)
