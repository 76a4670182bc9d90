"""Differentiable augmentation of what discriminators see ("Differentiable Augmentation", Zhao et al. 2020).

Real and made images are changed alike, and the generator's gradient passes through, so the discriminator cannot learn
its few pictures by heart and the generator does not learn the changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Augmentation = Literal["colour", "shift", "cutout"]

DRAWS: dict[Augmentation, int] = {"colour": 3, "shift": 2, "cutout": 2}
"""Uniform numbers for an image."""

SHIFT, CUTOUT = 0.125, 0.5
"""Shares of a side: the farthest shift, and the square that is cut out."""


@dataclass(frozen=True)
class Augmenter:
    """Changes what discriminators see: each image by `kinds`, with a `probability`."""

    kinds: tuple[Augmentation, ...]
    probability: float = 1.0

    @property
    def count(self) -> int:
        """Uniform numbers for an image: those of its `kinds`, and with a probability below 1 one that decides."""
        return sum(DRAWS[kind] for kind in self.kinds) + (self.probability != 1) if self.kinds else 0

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """`images`, `(B, C, H, W)` in [-1, 1], as a discriminator sees them; `uniform` is `(count, B)` in [0, 1)."""
        made, first = images, 0
        for kind in self.kinds:
            made = _KINDS[kind](made, uniform[first:][: DRAWS[kind]])
            first += DRAWS[kind]
        if self.probability == 1:
            return made
        return torch.where((uniform[-1] < self.probability).view(-1, 1, 1, 1), made, images)


def _colour(images: Tensor, uniform: Tensor) -> Tensor:
    """Brightness plus up to 0.5, saturation times 0 to 2, contrast times 0.5 to 1.5."""
    brightness, saturation, contrasts = (row.view(-1, 1, 1, 1) for row in uniform)
    images = images + (brightness - 0.5)
    grey = images.mean(1, keepdim=True)
    images = (images - grey) * (2 * saturation) + grey
    mean = images.mean((1, 2, 3), keepdim=True)
    return (images - mean) * (contrasts + 0.5) + mean


def _shift(images: Tensor, uniform: Tensor) -> Tensor:
    """Moved by whole pixels, with zeros behind; a product with shifted unit matrices, which is the same each time."""
    rows, columns = (
        _moved(side, draw, dtype=images.dtype) for side, draw in zip((images.shape[2], images.shape[3]), uniform)
    )
    return rows[:, None] @ images @ columns[:, None].mT


def _moved(side: int, draw: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Matrices `(B, side, side)` that move a column of `side` pixels by up to `SHIFT`."""
    most = int(side * SHIFT + 0.5)
    by = (draw * (2 * most + 1)).floor() - most
    place = torch.arange(side, device=draw.device)
    return (place[:, None] - place == by[:, None, None]).to(dtype)


def _cutout(images: Tensor, uniform: Tensor) -> Tensor:
    """Zeros in a square of half the side, which may lie partly outside."""
    inside = []
    for side, draw in zip((images.shape[2], images.shape[3]), uniform):
        wide, place = int(side * CUTOUT + 0.5), torch.arange(side, device=images.device)
        first = (draw * (side + 1 - wide % 2)).floor()[:, None] - wide // 2
        inside.append((place >= first) & (place < first + wide))
    rows, columns = inside
    return images * ~(rows[:, None, :, None] & columns[:, None, None, :])


_KINDS = {"colour": _colour, "shift": _shift, "cutout": _cutout}
