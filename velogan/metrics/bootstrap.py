"""Confidence intervals of metrics by the percentile bootstrap over images (Efron 1979).

A resample weights each image by how often it is drawn. Distances of resamples can then be computed from products of
features that are computed only once (`distances.weighted_frechet_distance`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from velogan.metrics.distances import WeightedDistance
from velogan.metrics.sliced import cumulative_histograms

RESAMPLES = 400
MAX_IMAGES_FRECHET = 1000
"""Maximum size of the smaller set for resampling Fréchet distances: time grows with its third power."""

MAX_IMAGES = 5000
"""Maximum size of each set for resampling Fréchet and kernel distances: memory grows with the square, to 0.8 GB."""

PROTOCOL = {
    "resamples": RESAMPLES,
    "interval_95": "2.5th to 97.5th percentile over images drawn with replacement, from both sets if there are two; "
    "none of one image",
    "frechet": "shifted so that the mean of the resamples is the figure, since images drawn twice raise it; "
    f"none if both sets have more than {MAX_IMAGES_FRECHET} images, or one more than {MAX_IMAGES}",
    "sliced_wasserstein": "over 32 directions and 128 steps of the values; shifted like frechet",
    "share": "no width if none or all of N images are in a class; the true share may still differ by up to 3 / N",
    "kernel": "over whole sets, without pairs of an image with itself; no interval if one set has more than "
    f"{MAX_IMAGES} images",
}

Interval = tuple[float, float]


def percentile_interval(resampled: Tensor, *, around: float | None = None) -> Interval | None:
    """Return the 95 % interval of resampled values `(R,)`, shifted to the mean `around`, if given; None if unknown."""
    known = resampled[resampled.isfinite()].double()
    if len(known) < 2 or (around is not None and not math.isfinite(around)):
        return None
    shift = 0.0 if around is None else around - known.mean().item()
    low, high = torch.quantile(known, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low + shift, high + shift


def draw_counts(count: int, *, seed: int, resamples: int = RESAMPLES) -> Tensor:
    """Draw bootstrap resamples of `count` images; return how often each contains each image: `(R, count)` float64."""
    drawn = torch.randint(count, (resamples, count), generator=torch.Generator().manual_seed(seed))
    return torch.zeros(resamples, count, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones(1, 1).double().expand_as(drawn)
    )


def resampled_means(values: Tensor, *, seed: int, resamples: int = RESAMPLES) -> Tensor:
    """Return means `(R,)` of the finite `values` `(N,)` in bootstrap resamples; NaN if fewer than two are finite."""
    if values.isfinite().sum() < 2:
        return torch.full((resamples,), math.nan)
    weights = draw_counts(len(values), seed=seed, resamples=resamples) * values.isfinite()
    return (weights * values.double().nan_to_num(0.0, 0.0, 0.0)).sum(dim=1) / weights.sum(dim=1)


def resampled_distances(distance: WeightedDistance, n: int, m: int, *, seed: int) -> Tensor:
    """Return `distance` for resamples of two sets of `n` and `m` images, `(R,)`."""
    return torch.stack([distance(w, v) for w, v in zip(draw_counts(n, seed=seed), draw_counts(m, seed=seed + 1))])


def resampled_sliced(fake: Sequence[Tensor], real: Sequence[Tensor], *, seed: int) -> Tensor:
    """Return sliced Wasserstein distances `(R,)` of resampled images, averaged over levels; NaN for two single images.

    They use histograms and fewer projections than `sliced.sliced_wasserstein`, since only their variation matters.
    `fake`, `real`: patches, one tensor per level, that `sliced.level_patches` returns.
    """
    if max(len(fake[0]), len(real[0])) < 2:
        return torch.full((RESAMPLES,), math.nan, dtype=torch.float64)
    distances = []
    for level, (fake_patches, real_patches) in enumerate(zip(fake, real)):
        x, y, width = cumulative_histograms(fake_patches, real_patches, seed=seed + level)
        w, v = draw_counts(len(x), seed=seed), draw_counts(len(y), seed=seed + 1)
        difference = (w.float() @ x.flatten(1) / len(x) - v.float() @ y.flatten(1) / len(y)).abs()
        distances.append((difference.view(RESAMPLES, *x.shape[1:]).sum(dim=2) * width).mean(dim=1))
    return torch.stack(distances).mean(dim=0).double()
