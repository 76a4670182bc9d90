"""Distances between two sets of images, over features computed once."""

from __future__ import annotations

import torch
from torch import Tensor


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """Squared Fréchet distance of Gaussians fitted to two sets of features; 0 for equal sets.

    Heusel et al. 2017, equation 6: `|m_x - m_y|² + Tr(C_x + C_y - 2 (C_x C_y)^(1/2))`, covariances over
    n - 1. Few images bias it upwards, so compare only figures over equal counts.
    `x`: `(N, D)`, `y`: `(M, D)`, at least two rows each, or `ValueError`.
    """
    _check(x, y)
    x, y = x.double(), y.double()
    centred_x = (x - x.mean(dim=0)) / (len(x) - 1) ** 0.5
    centred_y = (y - y.mean(dim=0)) / (len(y) - 1) ** 0.5
    # Tr (C_x C_y)^(1/2) is the sum of singular values of R_x R_yᵀ, where C = RᵀR: no matrix root, and exact
    # where there are fewer images than features and the covariances are singular.
    root_x = torch.linalg.qr(centred_x, mode="r").R
    root_y = torch.linalg.qr(centred_y, mode="r").R
    overlap = torch.linalg.svdvals(root_x @ root_y.T).sum()
    shift = (x.mean(dim=0) - y.mean(dim=0)).square().sum()
    return (shift + centred_x.square().sum() + centred_y.square().sum() - 2 * overlap).clamp(min=0).item()


def kernel_distance(
    x: Tensor, y: Tensor, *, subsets: int = 100, subset_size: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Mean and standard deviation over subsets of the unbiased squared MMD; around 0 for like sets.

    Binkowski et al. 2018: kernel `(x·y / D + 1)³`, equation 4 over random subsets of equal size drawn without
    replacement from either set. The size is `subset_size`, or the smaller set's where that is less.
    `x`: `(N, D)`, `y`: `(M, D)`, at least two rows each, or `ValueError`. Equal seeds give equal subsets.
    """
    _check(x, y)
    x, y = x.double(), y.double()
    size = min(subset_size, len(x), len(y))
    if size == len(x) == len(y):
        subsets = 1  # every subset would be the whole
    kernels = [(left @ right.T / x.shape[1] + 1) ** 3 for left, right in ((x, x), (y, y), (x, y))]
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(subsets):
        rows = torch.randperm(len(x), generator=generator)[:size].to(x.device)
        columns = torch.randperm(len(y), generator=generator)[:size].to(x.device)
        values.append(
            _off_diagonal_mean(kernels[0][rows][:, rows])
            + _off_diagonal_mean(kernels[1][columns][:, columns])
            - 2 * kernels[2][rows][:, columns].mean()
        )
    stacked = torch.stack(values)
    return stacked.mean().item(), stacked.std(correction=0).item()


def _off_diagonal_mean(kernel: Tensor) -> Tensor:
    n = len(kernel)
    return (kernel.sum() - kernel.trace()) / (n * (n - 1))


def _check(x: Tensor, y: Tensor) -> None:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"features must be (N, D) and (M, D), got {tuple(x.shape)} and {tuple(y.shape)}")
    if min(len(x), len(y)) < 2:
        raise ValueError(f"a distance needs at least two images on each side, got {len(x)} and {len(y)}: give more")
