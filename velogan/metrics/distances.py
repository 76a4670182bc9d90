"""Distances between two sets of images, computed from their features `(N, D)` and `(M, D)`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WeightedDistance = Callable[[Tensor, Tensor], Tensor]
"""A distance between resamples of two sets, as a function of their image counts, `(N,)` and `(M,)` float64."""

_BLOCK = 1024
"""Number of images of each set whose kernel values are in memory at a time."""


def frechet_distance(fake: Tensor, real: Tensor) -> float:
    """Compute the squared Fréchet distance of Gaussians fitted to two sets of features; 0 for equal sets.

    Heusel et al. 2017, equation 6: `|m_x - m_y|² + Tr(C_x + C_y - 2 (C_x C_y)^(1/2))`, with covariances
    normalised by n - 1. Few images bias it upwards, so compare only values of equally large sets.
    `fake`: `(N, D)`, `real`: `(M, D)`. Raises ValueError if shapes do not match or a set has fewer than two images.
    """
    _check(fake, real)
    x, y = fake.double(), real.double()
    between = (x.mean(dim=0) - y.mean(dim=0)).square().sum()
    x, y = ((part - part.mean(dim=0)) / (len(part) - 1) ** 0.5 for part in (x, y))
    # Tr (C_x C_y)^(1/2) is the sum of singular values of X Yᵀ, where C = XᵀX; a QR factor of X has the same C
    factors = [torch.linalg.qr(part, mode="r").R if len(part) > part.shape[1] else part for part in (x, y)]
    overlap = torch.linalg.svdvals(factors[0] @ factors[1].T).sum()
    return (between + x.square().sum() + y.square().sum() - 2 * overlap).clamp(min=0).item()


def kernel_distance(fake: Tensor, real: Tensor) -> float:
    """Compute the unbiased squared maximum mean discrepancy (MMD) of two sets of features; around 0 for similar sets.

    Binkowski et al. 2018, equation 4, with the kernel `(x·y / D + 1)³`, over all pairs instead of blocks.
    `fake`: `(N, D)`, `real`: `(M, D)`. Raises ValueError if shapes do not match or a set has fewer than two images.
    """
    _check(fake, real)

    def within(x: Tensor) -> float:
        squared_norms = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) ** 2
        diagonal = ((squared_norms / x.shape[1] + 1) ** 3).sum().item()
        return (_kernel_sum(x, x) - diagonal) / (len(x) * (len(x) - 1))

    return within(fake) + within(real) - 2 * _kernel_sum(fake, real) / (len(fake) * len(real))


def _kernel_sum(x: Tensor, y: Tensor) -> float:
    """Return the sum of the kernel over all pairs, block by block, since the full matrix may not fit in memory."""
    total = 0.0
    for rows in map(Tensor.double, x.split(_BLOCK)):
        for columns in y.split(_BLOCK):
            total += ((rows @ columns.double().T / x.shape[1] + 1) ** 3).sum().item()
    return total


def weighted_frechet_distance(x: Tensor, y: Tensor) -> WeightedDistance:
    """Return `frechet_distance` of resamples of `x` `(N, D)` and `y` `(M, D)`, as a function of image counts.

    The function computes no matrix square root, and its matrices are N x N, M x M and N x M.
    """
    _check(x, y)
    x, y = x.double(), y.double()
    centre = y.mean(dim=0)
    x, y = x - centre, y - centre
    within_x, within_y = x @ x.T, y @ y.T
    across = x @ y.T

    def distance(w: Tensor, v: Tensor) -> Tensor:
        n, m = w.sum(), v.sum()
        square_x, square_y = w @ within_x @ w / n**2, v @ within_y @ v / m**2
        product = w @ across @ v / (n * m)
        spread_x = (w @ within_x.diagonal() - n * square_x) / (n - 1)
        spread_y = (v @ within_y.diagonal() - m * square_y) / (m - 1)
        rows, columns = w.nonzero()[:, 0], v.nonzero()[:, 0]
        centred = across - (w @ across / n)[None] - (across @ v / m)[:, None] + product
        roots = w[rows].sqrt()[:, None] * centred[rows][:, columns] * v[columns].sqrt()
        overlap = torch.linalg.svdvals(roots).sum() / ((n - 1) * (m - 1)).sqrt()
        return (square_x + square_y - 2 * product + spread_x + spread_y - 2 * overlap).clamp(min=0)

    return distance


def weighted_kernel_distance(x: Tensor, y: Tensor) -> WeightedDistance:
    """Return `kernel_distance` of resamples of `x` `(N, D)` and `y` `(M, D)`, as a function of image counts.

    It pairs no image with its own copies; NaN if one set has a single distinct image. Matrices are N x N, M x M, N x M.
    """
    _check(x, y)
    x, y = x.double(), y.double()
    within_x, within_y, across = ((a @ b.T / x.shape[1] + 1) ** 3 for a, b in ((x, x), (y, y), (x, y)))

    def within(kernel: Tensor, w: Tensor) -> Tensor:
        self_pairs = w.square()
        return (w @ kernel @ w - self_pairs @ kernel.diagonal()) / (w.sum() ** 2 - self_pairs.sum())

    def distance(w: Tensor, v: Tensor) -> Tensor:
        return within(within_x, w) + within(within_y, v) - 2 * (w @ across @ v) / (w.sum() * v.sum())

    return distance


def _check(x: Tensor, y: Tensor) -> None:
    """Raise ValueError unless `x` is `(N, D)` and `y` is `(M, D)`, with N and M of at least 2."""
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"features must be (N, D) and (M, D), got {tuple(x.shape)} and {tuple(y.shape)}")
    if min(len(x), len(y)) < 2:
        raise ValueError(f"a distance needs at least two images of each set, got {len(x)} and {len(y)}: add images")
