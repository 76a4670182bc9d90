"""Estimate how uncertain a translation is, without ground truth.

The map is the sum of two terms: the reconstruction error of the input, through the generator of the other direction or
through the model's autoencoder, and the change of the result if the input is shifted by a few pixels, which should only
shift the result. docs/evaluation.md says how well such maps predict errors.
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
"""The shifts of the input, in pixels down and right."""

SHIFT_WEIGHT = 4.0
"""Weight of the change under shifts, which is about four times smaller than the reconstruction error."""

_PATCHES = 8  # patches along the picture's shorter side


@dataclass(frozen=True)
class Patch:
    """A square of a map: its top left corner and size in pixels, and its mean in [0, 1]."""

    x: int
    y: int
    width: int
    height: int
    mean: float


@dataclass(frozen=True)
class UncertaintyMap:
    """An uncertainty map, `(H, W)` uint8: 255 where the estimated error is half of the range of values, or more."""

    map: np.ndarray

    @property
    def mean(self) -> float:
        """The mean of the map, in [0, 1]."""
        return float(self.map.mean() / 255)

    @property
    def highest(self) -> Patch:
        """The square with the highest mean, an eighth of the shorter side wide; the topmost if several are equal."""
        side = max(1, min(self.map.shape) // _PATCHES)
        sums = np.pad(self.map.astype(np.int64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
        totals = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
        y, x = divmod(int(totals.argmax()), totals.shape[1])
        return Patch(x, y, side, side, float(totals[y, x] / (255 * side * side)))

    @property
    def summary(self) -> dict[str, Any]:
        """`mean` and `highest` as JSON."""
        highest = self.highest
        return {"mean": round(self.mean, 5), "highest": {**asdict(highest), "mean": round(highest.mean, 5)}}


@dataclass(frozen=True)
class UncertaintyEstimator:
    """Computes uncertainty maps for `model`.

    `reconstruct(images, results)` reconstructs the inputs, by the reverse generator from `results` or by an autoencoder
    from `images`; all are `(B, C, H, W)` in [-1, 1].
    """

    model: Translator
    reconstruct: Callable[[Tensor, Tensor], Tensor]

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the estimated error of each pixel, `(B, H, W)`, in the units of `images`."""
        results = self.model.translate_fast(images, rounded=False)
        shifted = [self._translate_shifted(images, down, right) for down, right in SHIFTS]
        spread = torch.stack([results, *shifted]).std(dim=0, correction=0)
        return (self.reconstruct(images, results) - images).abs().mean(dim=1) + SHIFT_WEIGHT * spread.mean(dim=1)

    def estimate(self, picture: Picture, *, tile: int | None = None) -> UncertaintyMap:
        """Return the map of a picture. Raises ValueError if `translate` would cut it into tiles, given `tile`."""
        height, width = picture.pixels.shape[:2]
        if plan_tiles(self.model, height, width, tile=tile) is not None:
            raise ValueError(
                f"{width}x{height} pixels are translated in tiles, but an uncertainty map needs the complete picture: "
                f"use at most {MAX_UNTILED_PIXELS} pixels, or tile=0 if memory allows"
            )
        uncertainty = self(to_images(self.model, picture))[0].clamp(0, 1)  # 1: half of the range of values, or more
        return UncertaintyMap((uncertainty * 255).round().to(torch.uint8).cpu().numpy())

    def _translate_shifted(self, images: Tensor, down: int, right: int) -> Tensor:
        """Translate the shifted images, padded by reflection, and shift the results back."""
        height, width = images.shape[-2:]
        rows, columns = (
            torch.from_numpy(reflect_indices(-shift, side, side)).to(images.device)
            for shift, side in ((down, height), (right, width))
        )
        shifted = self.model.translate_fast(images[..., rows, :][..., columns], rounded=False)
        return shifted[..., down:, right:]
