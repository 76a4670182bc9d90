"""Sliced Wasserstein distance between two sets of images, from patches at several scales or from feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PATCH_SIDE = 7
MIN_LEVEL_SIDE = 16
"""Side of a patch, and minimum of the shorter side of the coarsest pyramid level, in pixels."""

PATCH_PREFIX = "patches_"
"""Prefix of the keys of patches, see `level_patches`."""

MIN_RELATIVE_STD = 0.05

_GRID_DIRECTIONS, _GRID_STEPS = 32, 128


def sliced_wasserstein(
    images: Tensor, real: Tensor, *, patches: int = 128, projections: int = 512, seed: int = 0
) -> list[float]:
    """Compute the distance between the patches of `images` and of `real` for each level, finest first.

    Karras et al. 2018, section 5: `patches` random 7x7 patches of each image and level of a Laplacian pyramid,
    normalised per channel, and the mean over `projections` random directions of the Wasserstein-1 distance between
    their projections. Both sets are normalised by the mean and standard deviation of `real`, not each by its own as in
    the paper, so that wrong colours or contrast count. 0 for equal sets; few images bias it upwards, so compare only
    values of equally large sets.
    `images`: `(N, C, H, W)`, `real`: `(M, C, H, W)`, in [-1, 1]. Equal seeds give equal patches and directions.
    """
    assert images.shape[1:] == real.shape[1:], f"images of {tuple(images.shape[1:])} against {tuple(real.shape[1:])}"
    fake_patches, real_patches = (level_patches(batch, patches=patches, seed=seed) for batch in (images, real))
    return patch_distances([*fake_patches.values()], [*real_patches.values()], projections=projections, seed=seed)


def level_patches(images: Tensor, *, patches: int = 128, seed: int = 0) -> dict[str, Tensor]:
    """Draw random patches of each level of `(N, C, H, W)` in [-1, 1], finest first: `(N, patches, C, patch pixels)`.

    The keys are `PATCH_PREFIX` with the level's height and width, so images of other sizes have other keys.
    """
    levels = laplacian_pyramid(images)
    return {
        f"{PATCH_PREFIX}{level.shape[2]}x{level.shape[3]}": _draw_patches(level, patches, seed + number)
        for number, level in enumerate(levels)
    }


def patch_distances(
    fake: Sequence[Tensor], real: Sequence[Tensor], *, projections: int = 512, seed: int = 0
) -> list[float]:
    """Compute `sliced_wasserstein` from the patches that `level_patches` returns, level by level."""
    return [
        _wasserstein(*_normalise(fake_patches, real_patches), projections, seed + level)
        for level, (fake_patches, real_patches) in enumerate(zip(fake, real))
    ]


def feature_map_distance(
    fake: Sequence[Tensor], real: Sequence[Tensor], *, positions: int = 128, seed: int = 0
) -> float:
    """Compute `sliced_wasserstein` over feature vectors at random positions instead of patches, averaged over layers.

    `fake`, `real`: a network's feature maps of the two sets, one tensor per layer, `(N, C, h, w)` and `(M, C, h, w)`.
    `positions`: number of random positions per image and layer; all if a feature map has fewer.
    """
    x, y = ([_sample_positions(maps, positions, seed) for maps in levels] for levels in (fake, real))
    return fmean(patch_distances(x, y, seed=seed))


def _sample_positions(maps: Tensor, count: int, seed: int) -> Tensor:
    """Return the feature vectors of `(N, C, h, w)` at random positions of each image, `(N, count, C, 1)`."""
    columns = maps.flatten(2).mT
    keys = torch.rand(columns.shape[:2], generator=torch.Generator().manual_seed(seed))
    index = keys.argsort(dim=1)[:, :count].to(maps.device)
    return columns.gather(1, index[..., None].expand(-1, -1, maps.shape[1]))[..., None]


def cumulative_histograms(fake: Tensor, real: Tensor, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return cumulative histograms of one level's patches, for distances of resamples by one matrix product.

    For each image and each of 32 random directions: the share of its projected patches up to each of 128 even steps,
    `(N, 32, 128)` and `(M, 32, 128)`; and the width of a step, `(32,)`. The Wasserstein-1 distance is the sum of
    absolute differences of two sets' mean shares, times the width.
    """
    x, y = _normalise(fake, real)
    directions = _draw_directions(_GRID_DIRECTIONS, x.shape[1], seed, x.device)
    x, y = directions @ x.T, directions @ y.T
    low = torch.minimum(x.amin(1), y.amin(1))
    width = ((torch.maximum(x.amax(1), y.amax(1)) - low) / _GRID_STEPS).clamp(min=1e-12)

    def shares(projected: Tensor, images: int) -> Tensor:
        step = ((projected - low[:, None]) / width[:, None]).long().clamp(max=_GRID_STEPS - 1)
        step = step.view(_GRID_DIRECTIONS, images, -1).transpose(0, 1)
        counts = torch.zeros(images, _GRID_DIRECTIONS, _GRID_STEPS).scatter_add_(2, step, torch.ones(step.shape))
        return counts.cumsum(dim=2) / step.shape[2]

    return shares(x, len(fake)), shares(y, len(real)), width


def laplacian_pyramid(images: Tensor) -> list[Tensor]:
    """Split `(N, C, H, W)` into band-pass levels, each half as large, and the low-pass rest (Burt and Adelson 1983).

    The last level has a shorter side of at least 16 pixels, or is the images themselves if those are too small.
    """
    levels, low_pass = [], images.float()
    while min(low_pass.shape[2:]) // 2 >= MIN_LEVEL_SIDE:
        halved = _blur(low_pass)[:, :, ::2, ::2]
        upsampled = torch.zeros_like(low_pass)
        upsampled[:, :, ::2, ::2] = halved
        levels.append(low_pass - 4 * _blur(upsampled))
        low_pass = halved
    return [*levels, low_pass]


def _blur(images: Tensor) -> Tensor:
    """Blur with the binomial kernel [1 4 6 4 1] / 16 in both directions, borders mirrored."""
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    for dim in (2, 3):  # as sums: a depthwise convolution takes nine times as long on a CPU
        first, second, middle, fourth, last = (padded.narrow(dim, start, images.shape[dim]) for start in range(5))
        padded = (first + last + 4 * (second + fourth) + 6 * middle) / 16
    return padded


def _normalise(fake: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sets' patches as rows, each channel normalised by its mean and standard deviation in `real`.

    Standard deviations are at least MIN_RELATIVE_STD of the largest, so that noise in an empty channel does not count.
    """
    mean = real.mean((0, 1, 3), keepdim=True)
    deviation = real.std((0, 1, 3), keepdim=True, correction=0)
    deviation = deviation.clamp(min=max(MIN_RELATIVE_STD * deviation.max().item(), 1e-6))
    x, y = (((patches - mean) / deviation).flatten(0, 1).flatten(1) for patches in (fake, real))
    return x, y


def _draw_patches(level: Tensor, count: int, seed: int) -> Tensor:
    """Draw `count` random patches of each image: `(N, count, C, patch pixels)`."""
    n, channels, height, width = level.shape
    side = min(PATCH_SIDE, height, width)
    generator = torch.Generator().manual_seed(seed)
    top = torch.randint(height - side + 1, (n, count), generator=generator).to(level.device)
    left = torch.randint(width - side + 1, (n, count), generator=generator).to(level.device)
    step = torch.arange(side, device=level.device)
    rows, columns = (top[..., None] + step)[..., :, None], (left[..., None] + step)[..., None, :]
    image = torch.arange(n, device=level.device)[:, None, None, None]
    return level.permute(0, 2, 3, 1)[image, rows, columns].reshape(n, count, side * side, channels).transpose(2, 3)


def _wasserstein(x: Tensor, y: Tensor, projections: int, seed: int) -> float:
    """Return the mean Wasserstein-1 distance of `(N, D)` and `(M, D)` along random directions.

    If N and M differ, values of equal relative rank are compared.
    """
    directions = _draw_directions(projections, x.shape[1], seed, x.device)
    projected = [(directions @ rows.T).cpu().numpy() for rows in (x, y)]
    x, y = (torch.from_numpy(np.sort(rows, axis=1)) for rows in projected)  # takes a twentieth of torch's time on a CPU
    count = max(x.shape[1], y.shape[1])
    x, y = (values[:, torch.arange(count) * values.shape[1] // count] for values in (x, y))
    return (x - y).abs().mean().item()


def _draw_directions(count: int, size: int, seed: int, device: torch.device) -> Tensor:
    directions = torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).to(device)
    return directions / directions.norm(dim=1, keepdim=True)
