"""Distances between two sets of images, computed by torchmetrics over features that are computed once."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

SUBSETS = {"subsets": 100, "subset_size": 1000}
"""The subsets that a kernel distance is averaged over; their size is at most that of the smaller set."""


class _Computed(nn.Module):
    """Stands in for the network that torchmetrics expects: the features are computed already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


def frechet_distance(fake: Tensor, real: Tensor) -> float:
    """Squared Fréchet distance of Gaussians fitted to two sets of features; 0 for equal sets.

    Heusel et al. 2017, equation 6: `|m_x - m_y|² + Tr(C_x + C_y - 2 (C_x C_y)^(1/2))`, covariances over
    n - 1. Few images bias it upwards, so compare only figures over equal counts.
    `fake`: `(N, D)`, `real`: `(M, D)`, at least two rows each, or `ValueError`.
    """
    from torchmetrics.image.fid import FrechetInceptionDistance  # a slow import

    check(fake, real)
    fake, real = _rotated(fake.double(), real.double())
    metric = FrechetInceptionDistance(feature=_Computed(fake.shape[1]), normalize=True)
    metric.update(fake, real=False)
    metric.update(real, real=True)
    return max(metric.compute().item(), 0.0)


def _rotated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets rotated into their own subspace if images are fewer than features: same distance, small matrices."""
    centre = y.mean(dim=0)
    x, y = x - centre, y - centre
    if len(x) + len(y) >= x.shape[1]:
        return x, y
    axes = torch.linalg.qr(torch.cat([x, y]).T).Q
    return x @ axes, y @ axes


def kernel_distance(fake: Tensor, real: Tensor, *, subsets: int, subset_size: int, seed: int) -> float:
    """Mean over subsets of the unbiased squared MMD; around 0 for like sets.

    Binkowski et al. 2018: kernel `(x·y / D + 1)³`, equation 4 over random subsets of equal size drawn without
    replacement from either set. The size is `subset_size`, or the smaller set's if that is less.
    `fake`: `(N, D)`, `real`: `(M, D)`, at least two rows each, or `ValueError`. Equal seeds give equal subsets; the
    global generator is left as it was.
    """
    from torchmetrics.image.kid import KernelInceptionDistance  # a slow import

    check(fake, real)
    size = min(subset_size, len(fake), len(real))
    if size == len(fake) == len(real):
        subsets = 1  # every subset would be the whole
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Metric `Kernel Inception Distance` will save all", UserWarning)
        metric = KernelInceptionDistance(feature=_Computed(fake.shape[1]), subsets=subsets, subset_size=size)
    metric.update(fake.double(), real=False)
    metric.update(real.double(), real=True)
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        mean, _ = metric.compute()
    return mean.item()


def check(x: Tensor, y: Tensor) -> None:
    """Raise `ValueError` unless both are features of the same kind of at least two images."""
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"features must be (N, D) and (M, D), got {tuple(x.shape)} and {tuple(y.shape)}")
    if min(len(x), len(y)) < 2:
        raise ValueError(f"a distance needs at least two images on each side, got {len(x)} and {len(y)}: give more")
