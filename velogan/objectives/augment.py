"""Differentiable augmentation for discriminators ("Differentiable Augmentation", Zhao et al. 2020).

Real images and fakes are augmented alike, and gradients pass to the generator: the discriminator cannot memorise a
small training set, and the generator does not learn to output augmented images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Augmentation = Literal["colour", "shift", "cutout"]

NUM_DRAWS: dict[Augmentation, int] = {"colour": 3, "shift": 2, "cutout": 2}
"""Number of uniform random numbers that an augmentation needs for each image."""

MAX_SHIFT, CUTOUT_SIDE = 0.125, 0.5
"""Largest shift, and sides of the rectangle that is cut out, as fractions of the image's sides."""


@dataclass(frozen=True)
class Augmenter:
    """Applies the augmentations `kinds` to each image with the given `probability`."""

    kinds: tuple[Augmentation, ...]
    probability: float = 1.0

    @property
    def num_uniforms(self) -> int:
        """Number of uniform random numbers per image: for each of `kinds`, and one more for a `probability` below 1."""
        return sum(NUM_DRAWS[kind] for kind in self.kinds) + (self.probability != 1) if self.kinds else 0

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Augment `images`, `(B, C, H, W)` in [-1, 1], by random numbers `uniform`, `(num_uniforms, B)` in [0, 1)."""
        augmented, first = images, 0
        for kind in self.kinds:
            augmented = _FUNCTIONS[kind](augmented, uniform[first:][: NUM_DRAWS[kind]])
            first += NUM_DRAWS[kind]
        if self.probability == 1:
            return augmented
        return torch.where((uniform[-1] < self.probability).view(-1, 1, 1, 1), augmented, images)


def _colour(images: Tensor, uniform: Tensor) -> Tensor:
    """Add -0.5 to 0.5 to the brightness, multiply the saturation by 0 to 2 and the contrast by 0.5 to 1.5."""
    brightness, saturation, contrast_factor = (row.view(-1, 1, 1, 1) for row in uniform)
    images = images + (brightness - 0.5)
    grey = images.mean(1, keepdim=True)
    images = (images - grey) * (2 * saturation) + grey
    mean = images.mean((1, 2, 3), keepdim=True)
    return (images - mean) * (contrast_factor + 0.5) + mean


def _shift(images: Tensor, uniform: Tensor) -> Tensor:
    """Shift images by whole pixels and fill with zeros; as matrix products, whose gradients are deterministic."""
    rows, columns = (_shift_matrices(side, draw, dtype=images.dtype) for side, draw in zip(images.shape[2:], uniform))
    return rows[:, None] @ images @ columns[:, None].mT


def _shift_matrices(side: int, uniform: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return the matrices `(B, side, side)` that shift a column of `side` pixels by up to `MAX_SHIFT * side`."""
    limit = int(side * MAX_SHIFT + 0.5)
    offset = (uniform * (2 * limit + 1)).floor() - limit
    position = torch.arange(side, device=uniform.device)
    return (position[:, None] - position == offset[:, None, None]).to(dtype)


def _cutout(images: Tensor, uniform: Tensor) -> Tensor:
    """Zero a rectangle half as high and wide as the image, which may lie partly outside."""
    inside = []
    for side, draw in zip(images.shape[2:], uniform):
        length, position = int(side * CUTOUT_SIDE + 0.5), torch.arange(side, device=images.device)
        first = (draw * (side + 1 - length % 2)).floor()[:, None] - length // 2
        inside.append((position >= first) & (position < first + length))
    rows, columns = inside
    return images * ~(rows[:, None, :, None] & columns[:, None, None, :])


_FUNCTIONS = {"colour": _colour, "shift": _shift, "cutout": _cutout}
