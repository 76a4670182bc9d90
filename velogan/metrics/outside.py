"""What a translation changed outside the objects that it was to change: how much, and whether it painted stripes there.

Pictures are `(B, C, H, W)` in [-1, 1]; a mask is `(B, 1, H, W)`, true on objects.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from velogan.metrics.pixel import luminance

GROWN = 1 / 32
"""The share of the shorter side by which masks are grown, 8 pixels of 256: they are not exact at their edges."""

GAINED = 0.15
"""So much more contrast, of a range of 2, is a stripe. At 256x256 real zebras have 0.25 to 0.5, what is around them
0.04 to 0.24."""

STRIPED = 0.05
"""A picture has stripes outside where they cover more than this share of what is outside."""

_WINDOWS = 16
"""So many windows lie side by side along the shorter side; contrast is measured within one."""


def grown(mask: Tensor) -> Tensor:
    """`mask` with all that is as near to it as `GROWN` says, along rows and columns."""
    pixels = round(GROWN * min(mask.shape[-2:]))
    return functional.max_pool2d(mask.float(), 2 * pixels + 1, stride=1, padding=pixels) > 0


def stripes(fake: Tensor, given: Tensor, mask: Tensor) -> Tensor:
    """The share of what is outside `mask` where a translation has stripes that its input has not, `(B,)`.

    There the standard deviation of brightness around its mean over a window, of a sixteenth of the shorter side, is
    more than `GAINED` larger than in the input: what alternates within a window. Tints, shades and blur add none.
    NaN where `mask` is true everywhere.
    """
    gained = (_contrast(fake) - _contrast(given) > GAINED) & ~mask
    return gained.sum((1, 2, 3)).double() / (~mask).sum((1, 2, 3))


def _contrast(images: Tensor) -> Tensor:
    bright = luminance(images.double())
    return _mean((bright - _mean(bright)).square()).clamp(min=0).sqrt()


def _mean(values: Tensor) -> Tensor:
    """The mean over the window around each pixel, without what lies beyond the border."""
    side = max(3, min(values.shape[-2:]) // _WINDOWS // 2 * 2 + 1)
    return functional.avg_pool2d(values, side, stride=1, padding=side // 2, count_include_pad=False)
