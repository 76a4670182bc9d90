"""Sliced Wasserstein distance between two sets of images, scale by scale: of their patches, or of a network's maps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PATCH = 7
SMALLEST = 16
"""Pixels: side of a patch, and the shorter side that the coarsest level keeps at least."""

PATCHES = "patches_"
"""The beginning of the names of patches."""

FAINTEST = 0.05

_GRID_DIRECTIONS, _GRID_STEPS = 32, 128


def sliced_wasserstein(
    images: Tensor, real: Tensor, *, patches: int = 128, projections: int = 512, seed: int = 0
) -> list[float]:
    """How far the patches of `images` are from those of `real`, a figure per level, the finest first.

    Karras et al. 2018, section 5: `patches` random 7x7 patches of each image and level of a Laplacian pyramid,
    normalised per channel, and the mean over `projections` random directions of the Wasserstein-1 distance between
    their projections. Both sets are normalised by the mean and deviation of `real`, while the paper takes each set's
    own: a wrong colour or contrast must count. 0 for equal sets; few images bias it upwards, so compare only figures
    over equal counts.
    `images`: `(N, C, H, W)`, `real`: `(M, C, H, W)`, in [-1, 1]. Equal seeds give equal patches and directions.
    """
    assert images.shape[1:] == real.shape[1:], f"images of {tuple(images.shape[1:])} against {tuple(real.shape[1:])}"
    found, expected = (level_patches(part, patches=patches, seed=seed) for part in (images, real))
    return distances_of_patches([*found.values()], [*expected.values()], projections=projections, seed=seed)


def level_patches(images: Tensor, *, patches: int = 128, seed: int = 0) -> dict[str, Tensor]:
    """Random patches of each level of `(N, C, H, W)` in [-1, 1], the finest first: `(N, patches, C, patch pixels)`.

    Their names are `PATCHES` and the level's height and width: sets of other sizes have other names.
    """
    levels = laplacian_pyramid(images)
    return {
        f"{PATCHES}{level.shape[2]}x{level.shape[3]}": _patches(level, patches, seed + number)
        for number, level in enumerate(levels)
    }


def distances_of_patches(
    found: Sequence[Tensor], expected: Sequence[Tensor], *, projections: int = 512, seed: int = 0
) -> list[float]:
    """`sliced_wasserstein` of patches as `level_patches` gives them, level by level; `expected` are the real ones."""
    return [
        _wasserstein(*_normalised(mine, theirs), projections, seed + number)
        for number, (mine, theirs) in enumerate(zip(found, expected))
    ]


def distance_of_maps(found: Sequence[Tensor], expected: Sequence[Tensor], *, places: int = 128, seed: int = 0) -> float:
    """`sliced_wasserstein` with what a network sees at a place of an image instead of a patch; the mean over maps.

    `found` are the network's maps of one set of images, `(N, C, h, w)` each, `expected` those of the real ones,
    `(M, C, h, w)`. Of each image and map `places` random places count, or all where there are fewer.
    """
    mine, theirs = ([_at_places(part, places, seed) for part in maps] for maps in (found, expected))
    return fmean(distances_of_patches(mine, theirs, seed=seed))


def _at_places(maps: Tensor, count: int, seed: int) -> Tensor:
    """What `(N, C, h, w)` has at random places of each image, `(N, count, C, 1)`."""
    columns = maps.flatten(2).mT
    chance = torch.rand(columns.shape[:2], generator=torch.Generator().manual_seed(seed))
    index = chance.argsort(dim=1)[:, :count].to(maps.device)
    return columns.gather(1, index[..., None].expand(-1, -1, maps.shape[1]))[..., None]


def cumulative_shares(found: Tensor, expected: Tensor, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """One level's patches as distributions: a resampled set of images then costs one product of matrices.

    For each image and each of 32 random directions: the share of its projected patches up to each of 128 even steps,
    `(N, 32, 128)` and `(M, 32, 128)`; and the width of a step, `(32,)`. The Wasserstein-1 distance is the sum of
    absolute differences of two sets' mean shares, times the width.
    """
    x, y = _normalised(found, expected)
    directions = _directions(_GRID_DIRECTIONS, x.shape[1], seed, x.device)
    x, y = directions @ x.T, directions @ y.T
    low = torch.minimum(x.amin(1), y.amin(1))
    width = ((torch.maximum(x.amax(1), y.amax(1)) - low) / _GRID_STEPS).clamp(min=1e-12)

    def shares(projected: Tensor, images: int) -> Tensor:
        step = ((projected - low[:, None]) / width[:, None]).long().clamp(max=_GRID_STEPS - 1)
        step = step.view(_GRID_DIRECTIONS, images, -1).transpose(0, 1)
        counts = torch.zeros(images, _GRID_DIRECTIONS, _GRID_STEPS).scatter_add_(2, step, torch.ones(step.shape))
        return counts.cumsum(dim=2) / step.shape[2]

    return shares(x, len(found)), shares(y, len(expected)), width


def laplacian_pyramid(images: Tensor) -> list[Tensor]:
    """Band-pass levels of `(N, C, H, W)`, each half as large, and the low-pass rest (Burt and Adelson 1983).

    The last has a shorter side of at least 16 pixels, or is the images themselves if those are too small.
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
    """Blur with the binomial kernel [1 4 6 4 1] / 16 in both directions, borders mirrored."""
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    for dim in (2, 3):  # as sums: a convolution of single channels takes nine times as long on a CPU
        first, second, middle, fourth, last = (padded.narrow(dim, at, images.shape[dim]) for at in range(5))
        padded = (first + last + 4 * (second + fourth) + 6 * middle) / 16
    return padded


def _normalised(found: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Patches of both sets as rows, each channel over the mean and the deviation of the real ones.

    A deviation counts as FAINTEST of the largest at least: so what is left in an empty channel does not outweigh all.
    """
    mean = expected.mean((0, 1, 3), keepdim=True)
    deviation = expected.std((0, 1, 3), keepdim=True, correction=0)
    deviation = deviation.clamp(min=max(FAINTEST * deviation.max().item(), 1e-6))
    x, y = (((part - mean) / deviation).flatten(0, 1).flatten(1) for part in (found, expected))
    return x, y


def _patches(level: Tensor, count: int, seed: int) -> Tensor:
    """`count` random patches of each image: `(N, count, C, patch pixels)`."""
    n, channels, height, width = level.shape
    side = min(PATCH, height, width)
    generator = torch.Generator().manual_seed(seed)
    top = torch.randint(height - side + 1, (n, count), generator=generator).to(level.device)
    left = torch.randint(width - side + 1, (n, count), generator=generator).to(level.device)
    step = torch.arange(side, device=level.device)
    rows, columns = (top[..., None] + step)[..., :, None], (left[..., None] + step)[..., None, :]
    image = torch.arange(n, device=level.device)[:, None, None, None]
    return level.permute(0, 2, 3, 1)[image, rows, columns].reshape(n, count, side * side, channels).transpose(2, 3)


def _wasserstein(x: Tensor, y: Tensor, projections: int, seed: int) -> float:
    """Mean Wasserstein-1 distance of `(N, D)` and `(M, D)` along random directions; unequal counts by rank."""
    directions = _directions(projections, x.shape[1], seed, x.device)
    x, y = (_sorted(directions @ part.T) for part in (x, y))
    count = max(x.shape[1], y.shape[1])
    x, y = (part[:, torch.arange(count) * part.shape[1] // count] for part in (x, y))
    return (x - y).abs().mean().item()


def _directions(count: int, size: int, seed: int, device: torch.device) -> Tensor:
    directions = torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).to(device)
    return directions / directions.norm(dim=1, keepdim=True)


def _sorted(rows: Tensor) -> Tensor:
    """Each row in order, on the CPU, where NumPy takes a twentieth of torch's time."""
    return torch.from_numpy(np.sort(rows.cpu().numpy(), axis=1))
