"""Anti-aliased sampling: a fixed blur where sides are halved or doubled ("Making Convolutional Networks Shift-Invariant
Again", Zhang 2019), as CUT's networks have it (Park et al. 2020).

Where a plain network strides, such a one convolves at full size, and then blurs and drops every other pixel; where a
plain one transposes a convolution, it doubles the sides through a blur and then convolves. It costs four times the
multiplications there. The filters are buffers, under the name that CUT's files have for them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.types import ForwardKind


def _filter(weights: list[float], channels: int) -> Tensor:
    """`(channels, 1, k, k)`: a binomial filter of both axes, with sum 1."""
    row = torch.tensor(weights)
    square = row[:, None] * row[None, :]
    return (square / square.sum()).repeat(channels, 1, 1, 1)


class BlurDown(nn.Module):
    """`(B, channels, H, W)` to half the sides, rounded up: a 3x3 blur, reflected at the borders."""

    forward_kind: ClassVar[ForwardKind] = "layer"
    filt: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("filt", _filter([1, 2, 1], channels))

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
        return F.conv2d(padded, self.filt.to(x.dtype), stride=2, groups=len(self.filt))


class BlurUp(nn.Module):
    """`(B, channels, H, W)` to twice the sides: a 4x4 blur of the pixels set apart, replicated at the borders."""

    forward_kind: ClassVar[ForwardKind] = "layer"
    filt: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("filt", 4 * _filter([1, 3, 3, 1], channels))

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        made = F.conv_transpose2d(padded, self.filt.to(x.dtype), stride=2, padding=2, groups=len(self.filt))
        return made[:, :, 1:-1, 1:-1]
