"""Networks for tests that need no training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from velogan.translate.model import Translator


class Negative(nn.Module):
    """Negates images."""

    def forward(self, x: Tensor) -> Tensor:
        return -x


class Affine(nn.Module):
    """`scale x + shift`."""

    def __init__(self, scale: float, shift: float):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(scale)), shift

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


def in_memory(net: nn.Module | None = None, *, multiple: int = 4, **header: Any) -> Translator:
    """Return a translator by `net`, the identity by default, whose file would have this `header`."""
    return Translator(net or nn.Identity(), multiple=multiple, device=torch.device("cpu"), header=header)
