"""Where not to trust a translation: an uncertainty map, made without the truth.

Two things are added. How far the input comes back: through the other direction's generator from the result, or through
the model's own autoencoder. And how much the result changes when the picture is moved by a few pixels, which should
change nothing but the place. docs/evaluation.md says what such maps are worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from velogan.data.pictures.images import Picture
from velogan.translate.large import MAX_UNTILED_PIXELS, plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import to_images
from velogan.translate.tiles import reflect_indices

SHIFTS = ((0, 1), (1, 0), (2, 3), (3, 2))
"""Pixels down and right by which the picture is moved."""

SHIFT_WEIGHT = 4.0
"""Of the change when moved: it is some four times smaller than what does not come back."""

_SIDE = 8  # the highest patch is so many times smaller than the picture's shorter side


@dataclass(frozen=True)
class Patch:
    """A square of a map, in pixels from the top left, and its mean."""

    x: int
    y: int
    width: int
    height: int
    mean: float


@dataclass(frozen=True)
class UncertaintyMap:
    """An uncertainty map `(H, W)` uint8, 255 where input or result are off by half of the range of values, or more.

    `mean` and the `highest` patch's mean are in shares of 255.
    """

    map: np.ndarray

    @property
    def mean(self) -> float:
        """Over the whole map, in [0, 1]."""
        return float(self.map.mean() / 255)

    @property
    def highest(self) -> Patch:
        """The square with the highest mean, an eighth of the shorter side wide; of equals the first from the top."""
        side = max(1, min(self.map.shape) // _SIDE)
        sums = np.pad(self.map.astype(np.int64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
        within = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
        y, x = divmod(int(within.argmax()), within.shape[1])
        return Patch(x, y, side, side, float(within[y, x] / (255 * side * side)))

    @property
    def summary(self) -> dict[str, Any]:
        """`mean` and `highest` as JSON."""
        highest = self.highest
        return {"mean": round(self.mean, 5), "highest": {**asdict(highest), "mean": round(highest.mean, 5)}}


@dataclass(frozen=True)
class UncertaintyEstimator:
    """Computes uncertainty maps for `model`. `reconstruct(images, results)` returns the reconstructed inputs.

    Images are `(B, C, H, W)` in [-1, 1].
    """

    model: Translator
    reconstruct: Callable[[Tensor, Tensor], Tensor]

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """The uncertainty of each pixel, `(B, H, W)` from 0 on, in the units of `images`."""
        results = self.model.translate_fast(images, rounded=False)
        moved = [self._moved(images, down, right) for down, right in SHIFTS]
        spread = torch.stack([results, *moved]).std(dim=0, correction=0)
        return (self.reconstruct(images, results) - images).abs().mean(dim=1) + SHIFT_WEIGHT * spread.mean(dim=1)

    def estimate(self, picture: Picture, *, tile: int | None = None) -> UncertaintyMap:
        """The map of one picture. ValueError where `translate` would cut it into tiles, with this `tile`."""
        height, width = picture.pixels.shape[:2]
        if plan_tiles(self.model, height, width, tile=tile) is not None:
            raise ValueError(
                f"{width}x{height} pixels are translated in tiles, and an uncertainty map needs the whole picture: of "
                f"{MAX_UNTILED_PIXELS} pixels at most, or with tile=0 if memory allows"
            )
        return UncertaintyMap(_to_uint8(self(to_images(self.model, picture))[0]))

    def _moved(self, images: Tensor, down: int, right: int) -> Tensor:
        """The translation of the pictures moved, moved back; what comes in from outside is a reflection."""
        height, width = images.shape[-2:]
        rows, columns = (
            torch.from_numpy(reflect_indices(-by, side, side)).to(images.device)
            for by, side in ((down, height), (right, width))
        )
        moved = self.model.translate_fast(images[..., rows, :][..., columns], rounded=False)
        return moved[..., down:, right:]


def _to_uint8(uncertainty: Tensor) -> np.ndarray:
    """255 for 1, half of the range from -1 to 1, or more."""
    return (uncertainty.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
