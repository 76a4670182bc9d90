"""How much a figure would vary with other images: percentile bootstrap over images (Efron 1979).

A resample weights each image by how often it is drawn. Distances then follow from products of features that are
computed once (`distances.frechet_of`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from velogan.metrics.distances import Weighted
from velogan.metrics.sliced import cumulative_shares

RESAMPLES = 400
MOST_IMAGES = 1000
"""Fréchet distances are resampled if the smaller set has at most so many images: time grows with the third power."""

MOST_RESAMPLED = 5000
"""Fréchet and kernel distances are resampled if no set has more images: memory grows with the square, to 0.8 GB."""

PROTOCOL = {
    "resamples": RESAMPLES,
    "interval_95": "2.5th to 97.5th percentile over images drawn with replacement, from both sets if there are two; "
    "none of one image",
    "frechet": "shifted so that the mean of the resamples is the figure, since images drawn twice raise it; "
    f"none if both sets have more than {MOST_IMAGES} images, or one more than {MOST_RESAMPLED}",
    "sliced_wasserstein": "over 32 directions and 128 steps of the values; shifted like frechet",
    "share": "no width if none or all of N images are in a class; the true share may still differ by up to 3 / N",
    "kernel": "over whole sets, without pairs of an image with itself; no interval if one set has more than "
    f"{MOST_RESAMPLED} images",
}

Interval = tuple[float, float]


def interval(resampled: Tensor, *, around: float | None = None) -> Interval | None:
    """The middle 95 % of resampled figures `(R,)`, shifted to the mean `around` if given; None if unknown."""
    known = resampled[resampled.isfinite()].double()
    if len(known) < 2 or (around is not None and not math.isfinite(around)):
        return None
    shift = 0.0 if around is None else around - known.mean().item()
    low, high = torch.quantile(known, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low + shift, high + shift


def times(count: int, *, seed: int, resamples: int = RESAMPLES) -> Tensor:
    """How often each of `count` images is drawn in each resample: `(R, count)` float64, rows that sum to `count`."""
    drawn = torch.randint(count, (resamples, count), generator=torch.Generator().manual_seed(seed))
    return torch.zeros(resamples, count, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones(1, 1).double().expand_as(drawn)
    )


def resampled_means(values: Tensor, *, seed: int, resamples: int = RESAMPLES) -> Tensor:
    """Means `(R,)` of one value for each image `(N,)`, without those that are not finite; unknown of a single one."""
    if values.isfinite().sum() < 2:
        return torch.full((resamples,), math.nan)
    weights = times(len(values), seed=seed, resamples=resamples) * values.isfinite()
    return (weights * values.double().nan_to_num(0.0, 0.0, 0.0)).sum(dim=1) / weights.sum(dim=1)


def resampled_distances(distance: Weighted, n: int, m: int, *, seed: int) -> Tensor:
    """A `distance` of resampled sets of `n` and `m` images, `(R,)`."""
    return torch.stack([distance(w, v) for w, v in zip(times(n, seed=seed), times(m, seed=seed + 1))])


def resampled_sliced(found: Sequence[Tensor], expected: Sequence[Tensor], *, seed: int) -> Tensor:
    """Sliced Wasserstein distances `(R,)`, mean over levels, of resampled images, from patches: `sliced.level_patches`.

    They use fewer directions than the figure, and even steps of the values: only their spread matters. Unknown of two
    single images.
    """
    if max(len(found[0]), len(expected[0])) < 2:
        return torch.full((RESAMPLES,), math.nan, dtype=torch.float64)
    levels = []
    for number, (mine, theirs) in enumerate(zip(found, expected)):
        x, y, width = cumulative_shares(mine, theirs, seed=seed + number)
        w, v = times(len(x), seed=seed), times(len(y), seed=seed + 1)
        apart = (w.float() @ x.flatten(1) / len(x) - v.float() @ y.flatten(1) / len(y)).abs()
        levels.append((apart.view(RESAMPLES, *x.shape[1:]).sum(dim=2) * width).mean(dim=1))
    return torch.stack(levels).mean(dim=0).double()
