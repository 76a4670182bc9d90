"""How much a figure would vary with other images: percentile bootstrap over images (Efron 1979).

A resample weights each image by how often it is drawn. Distances then follow from products of features that are
computed once. So the Fréchet and the kernel distance are implemented here again: torchmetrics would start anew for each
resample, and its kernel distance would count an image drawn twice as two similar images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from velogan.metrics.distances import check
from velogan.metrics.sliced import cumulative_shares

RESAMPLES = 400
MOST_IMAGES = 1000
"""Fréchet distances are resampled if the smaller set has at most so many images: time grows with the third power."""

PROTOCOL = {
    "resamples": RESAMPLES,
    "interval_95": "2.5th to 97.5th percentile over images drawn with replacement, from both sets if there are two",
    "frechet": "shifted so that the mean of the resamples is the figure, since images drawn twice raise it; "
    f"none if both sets have more than {MOST_IMAGES} images",
    "sliced_wasserstein": "over 32 directions and 128 steps of the values; shifted like frechet",
    "share": "no width if none or all of N images are in a class; the true share may still differ by up to 3 / N",
    "kernel": "over whole sets, not subsets; without pairs of an image with itself",
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
    """Means `(R,)` of one value for each image `(N,)`; NaN stands for an image that has none."""
    weights = times(len(values), seed=seed, resamples=resamples) * ~values.isnan()
    return (weights * values.double().nan_to_num(0.0)).sum(dim=1) / weights.sum(dim=1)


def resampled_frechet(x: Tensor, y: Tensor, *, seed: int) -> Tensor:
    """Fréchet distances `(R,)` of resampled features `(N, D)` and `(M, D)`: see `frechet_of`."""
    check(x, y)
    distance = frechet_of(x, y)
    return torch.stack([distance(w, v) for w, v in _both(len(x), len(y), seed=seed)])


def resampled_kernel(x: Tensor, y: Tensor, *, seed: int) -> Tensor:
    """Kernel distances `(R,)` of resampled features `(N, D)` and `(M, D)`: see `kernel_of`."""
    check(x, y)
    distance = kernel_of(x, y)
    return torch.stack([distance(w, v) for w, v in _both(len(x), len(y), seed=seed)])


def resampled_sliced(found: Sequence[Tensor], expected: Sequence[Tensor], *, seed: int) -> Tensor:
    """Sliced Wasserstein distances `(R,)`, mean over levels, of resampled images, from patches: `sliced.level_patches`.

    They use fewer directions than the figure, and even steps of the values: only their spread matters.
    """
    levels = []
    for number, (mine, theirs) in enumerate(zip(found, expected)):
        x, y, width = cumulative_shares(mine, theirs, seed=seed + number)
        w, v = times(len(x), seed=seed), times(len(y), seed=seed + 1)
        apart = (w.float() @ x.flatten(1) / len(x) - v.float() @ y.flatten(1) / len(y)).abs()
        levels.append((apart.view(RESAMPLES, *x.shape[1:]).sum(dim=2) * width).mean(dim=1))
    return torch.stack(levels).mean(dim=0).double()


def _both(n: int, m: int, *, seed: int) -> zip[tuple[Tensor, Tensor]]:
    return zip(times(n, seed=seed), times(m, seed=seed + 1))


def frechet_of(x: Tensor, y: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The Fréchet distance as a function of how often each image counts, `(N,)` and `(M,)` float64.

    Heusel et al. 2017, equation 6. `Tr (C_x C_y)^(1/2)` is the sum of singular values of `X Yᵀ`, where `C = XᵀX`: no
    matrix root, no matrix larger than the number of images, and exact for singular covariances.
    """
    x, y = x.double(), y.double()
    centre = y.mean(dim=0)
    x, y = x - centre, y - centre
    within_x, within_y, across = x @ x.T, y @ y.T, x @ y.T

    def distance(w: Tensor, v: Tensor) -> Tensor:
        n, m = w.sum(), v.sum()
        square_x, square_y, product = w @ within_x @ w / n**2, v @ within_y @ v / m**2, w @ across @ v / (n * m)
        spread_x = (w @ within_x.diagonal() - n * square_x) / (n - 1)
        spread_y = (v @ within_y.diagonal() - m * square_y) / (m - 1)
        rows, columns = w.nonzero()[:, 0], v.nonzero()[:, 0]
        centred = across - (w @ across / n)[None] - (across @ v / m)[:, None] + product
        roots = w[rows].sqrt()[:, None] * centred[rows][:, columns] * v[columns].sqrt()
        overlap = torch.linalg.svdvals(roots).sum() / ((n - 1) * (m - 1)).sqrt()
        return (square_x + square_y - 2 * product + spread_x + spread_y - 2 * overlap).clamp(min=0)

    return distance


def kernel_of(x: Tensor, y: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The squared MMD as a function of how often each image counts, `(N,)` and `(M,)` float64.

    Binkowski et al. 2018, equation 4, over the whole sets; an image drawn twice is not paired with itself. NaN if
    only one image was drawn.
    """
    x, y = x.double(), y.double()
    within_x, within_y, across = ((a @ b.T / x.shape[1] + 1) ** 3 for a, b in ((x, x), (y, y), (x, y)))

    def within(kernel: Tensor, w: Tensor) -> Tensor:
        itself = w.square()
        return (w @ kernel @ w - itself @ kernel.diagonal()) / (w.sum() ** 2 - itself.sum())

    def distance(w: Tensor, v: Tensor) -> Tensor:
        return within(within_x, w) + within(within_y, v) - 2 * (w @ across @ v) / (w.sum() * v.sum())

    return distance
