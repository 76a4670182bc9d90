"""Sliced Wasserstein distance between two sets of images, scale by scale: no network, nothing to download."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PATCH = 7
SMALLEST = 16
"""Pixels: side of a patch, and the shorter side that the coarsest level keeps at least."""


def sliced_wasserstein(
    images: Tensor, real: Tensor, *, patches: int = 128, projections: int = 512, seed: int = 0
) -> list[float]:
    """How far the patches of `images` are from those of `real`, a figure per level, the finest first.

    Karras et al. 2018, section 5: `patches` random 7x7 patches of each image and level of a Laplacian pyramid,
    normalised per channel, and the mean over `projections` random directions of the Wasserstein-1 distance between
    their projections. Both sets are normalised by the mean and deviation of `real`, where the paper takes each set's
    own: a wrong colour or contrast shall count. 0 for equal sets; few images bias it upwards, so compare only figures
    over equal counts.
    `images`: `(N, C, H, W)`, `real`: `(M, C, H, W)`, in [-1, 1]. Equal seeds give equal patches and directions.
    """
    assert images.shape[1:] == real.shape[1:], f"images of {tuple(images.shape[1:])} against {tuple(real.shape[1:])}"
    figures = []
    for number, (mine, theirs) in enumerate(zip(laplacian_pyramid(images), laplacian_pyramid(real))):
        found, expected = (_patches(level, patches, seed + number) for level in (mine, theirs))
        mean = expected.mean((0, 2), keepdim=True)
        deviation = expected.std((0, 2), keepdim=True, correction=0).clamp(min=1e-6)
        x, y = (((part - mean) / deviation).flatten(1) for part in (found, expected))
        figures.append(_wasserstein(x, y, projections, seed + number))
    return figures


def laplacian_pyramid(images: Tensor) -> list[Tensor]:
    """Band-pass levels of `(N, C, H, W)`, each half as large, and the low-pass rest (Burt and Adelson 1983).

    The last has a shorter side of at least 16 pixels, or is the images themselves where those are too small.
    """
    levels, low = [], images.float()
    while min(low.shape[2:]) // 2 >= SMALLEST:
        smaller = _blur(low)[:, :, ::2, ::2]
        stretched = torch.zeros_like(low)
        stretched[:, :, ::2, ::2] = smaller
        levels.append(low - 4 * _blur(stretched))
        low = smaller
    return [*levels, low]


def _blur(images: Tensor) -> Tensor:
    """With the binomial kernel [1 4 6 4 1] / 16 in both directions, borders mirrored."""
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    for dim in (2, 3):  # as sums: a convolution of single channels takes nine times as long on a CPU
        first, second, middle, fourth, last = (padded.narrow(dim, at, images.shape[dim]) for at in range(5))
        padded = (first + last + 4 * (second + fourth) + 6 * middle) / 16
    return padded


def _patches(level: Tensor, count: int, seed: int) -> Tensor:
    """`count` random patches of each image: `(N * count, C, patch pixels)`."""
    n, channels, height, width = level.shape
    side = min(PATCH, height, width)
    generator = torch.Generator().manual_seed(seed)
    top = torch.randint(height - side + 1, (n, count), generator=generator).to(level.device)
    left = torch.randint(width - side + 1, (n, count), generator=generator).to(level.device)
    step = torch.arange(side, device=level.device)
    rows, columns = (top[..., None] + step)[..., :, None], (left[..., None] + step)[..., None, :]
    image = torch.arange(n, device=level.device)[:, None, None, None]
    return level.permute(0, 2, 3, 1)[image, rows, columns].reshape(n * count, side * side, channels).transpose(1, 2)


def _wasserstein(x: Tensor, y: Tensor, projections: int, seed: int) -> float:
    """Mean Wasserstein-1 distance of `(N, D)` and `(M, D)` along random directions; unequal counts by rank."""
    directions = torch.randn(projections, x.shape[1], generator=torch.Generator().manual_seed(seed)).to(x.device)
    directions = directions / directions.norm(dim=1, keepdim=True)
    x, y = (_sorted(directions @ part.T) for part in (x, y))
    count = max(x.shape[1], y.shape[1])
    x, y = (part[:, torch.arange(count) * part.shape[1] // count] for part in (x, y))
    return (x - y).abs().mean().item()


def _sorted(rows: Tensor) -> Tensor:
    """Each row in order, on the CPU, where NumPy takes a twentieth of torch's time."""
    return torch.from_numpy(np.sort(rows.cpu().numpy(), axis=1))
