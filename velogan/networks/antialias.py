"""Anti-aliased down- and upsampling by a fixed blur, as in CUT's networks (Park et al. 2020).

"Making Convolutional Networks Shift-Invariant Again", Zhang 2019.

A strided convolution becomes a convolution at full size, followed by a blur that drops every other pixel; a transposed
convolution becomes a blur that doubles the sides, followed by a convolution. Both take four times as many operations.
The filters are buffers, with the same names as in CUT's files.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.types import ForwardKind


def _binomial_filter(weights: list[float], channels: int) -> Tensor:
    """Return a two-dimensional binomial filter with sum 1 for each channel, `(channels, 1, k, k)`."""
    row = torch.tensor(weights)
    square = row[:, None] * row[None, :]
    return (square / square.sum()).repeat(channels, 1, 1, 1)


class BlurDown(nn.Module):
    """Halves the sides of `(B, channels, H, W)`, rounded up, by a 3x3 blur with reflection padding."""

    forward_kind: ClassVar[ForwardKind] = "layer"
    filt: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("filt", _binomial_filter([1, 2, 1], channels))

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
        return F.conv2d(padded, self.filt.to(x.dtype), stride=2, groups=len(self.filt))


class BlurUp(nn.Module):
    """Doubles the sides of `(B, channels, H, W)`: zeros between pixels, then a 4x4 blur with replication padding."""

    forward_kind: ClassVar[ForwardKind] = "layer"
    filt: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("filt", 4 * _binomial_filter([1, 3, 3, 1], channels))

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        upsampled = F.conv_transpose2d(padded, self.filt.to(x.dtype), stride=2, padding=2, groups=len(self.filt))
        return upsampled[:, :, 1:-1, 1:-1]
