from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.metrics.bootstrap import percentile_interval, resampled_sliced
from velogan.metrics.sliced import (
    PATCH_SIDE,
    feature_map_distance,
    laplacian_pyramid,
    level_patches,
    patch_distances,
    sliced_wasserstein,
)


def _noise(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def _mirrored(index: int, size: int) -> int:
    index = abs(index)
    return index if index < size else 2 * (size - 1) - index


def _numpy_blur(image: np.ndarray) -> np.ndarray:
    """Blur one plane, pixel by pixel."""
    height, width = image.shape
    weights = np.array([1, 4, 6, 4, 1]) / 16
    out = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            for i, across in enumerate(weights):
                for j, along in enumerate(weights):
                    out[y, x] += across * along * image[_mirrored(y + i - 2, height), _mirrored(x + j - 2, width)]
    return out


def _numpy_pyramid(image: np.ndarray) -> list[np.ndarray]:
    if min(image.shape) // 2 < 16:
        return [image]
    small = _numpy_blur(image)[::2, ::2]
    stretched = np.zeros_like(image)
    stretched[::2, ::2] = small
    return [image - 4 * _numpy_blur(stretched), *_numpy_pyramid(small)]


def test_the_pyramid_equals_a_plain_one():
    image = _noise(1, 2, 37, 64)
    levels = laplacian_pyramid(image)
    assert [tuple(level.shape[2:]) for level in levels] == [(37, 64), (19, 32)]
    for channel in range(2):
        for level, plain in zip(levels, _numpy_pyramid(image[0, channel].double().numpy())):
            np.testing.assert_allclose(level[0, channel].numpy(), plain, atol=1e-6)


def test_the_distance_equals_a_plain_computation():
    # 7x7 images have one patch, so that nothing depends on where patches are taken
    images, real = _noise(5, 3, PATCH_SIDE, PATCH_SIDE), _noise(5, 3, PATCH_SIDE, PATCH_SIDE, seed=1) * 0.5 + 0.2
    (distance,) = sliced_wasserstein(images, real, patches=1, projections=16, seed=7)
    x, y = (part.double().numpy() for part in (images, real))
    for channel in range(3):
        mean, deviation = y[:, channel].mean(), y[:, channel].std()
        x[:, channel], y[:, channel] = (x[:, channel] - mean) / deviation, (y[:, channel] - mean) / deviation
    directions = (
        torch.randn(16, 3 * PATCH_SIDE * PATCH_SIDE, generator=torch.Generator().manual_seed(7)).double().numpy()
    )
    distances = []
    for direction in directions:
        direction /= np.sqrt((direction**2).sum())
        first, second = (sorted(float(row.ravel() @ direction) for row in part) for part in (x, y))
        distances.append(np.mean([abs(a - b) for a, b in zip(first, second)]))
    assert distance == pytest.approx(np.mean(distances), rel=1e-5)


def test_equal_sets_have_no_distance_and_similar_sets_a_small_one():
    images, other = _noise(8, 3, 32, 32), _noise(8, 3, 32, 32, seed=1)
    assert sliced_wasserstein(images, images.clone()) == [0.0, 0.0]
    like, unlike = sliced_wasserstein(images, other), sliced_wasserstein(images, other * 0.5)
    assert all(0 < small < large / 5 for small, large in zip(like, unlike))


@pytest.mark.parametrize(
    "change",
    [
        lambda images, amount: images + amount,
        lambda images, amount: images * (1 + amount),
        lambda images, amount: images + amount * torch.tensor([1.0, 0, -1])[:, None, None],
        lambda images, amount: images + amount * _noise(len(images), 3, 32, 32, seed=3),
    ],
    ids=["brightness", "contrast", "colour", "noise"],
)
def test_the_distance_grows_with_the_change(change):
    real = _noise(6, 3, 32, 32)
    distances = [sum(sliced_wasserstein(change(real, amount), real)) for amount in (0.0, 0.1, 0.2, 0.4)]
    assert all(less < more for less, more in pairwise(distances))


def test_equal_seeds_give_equal_distances():
    images, real = _noise(3, 3, 32, 32), _noise(4, 3, 32, 32, seed=1)
    assert sliced_wasserstein(images, real) == sliced_wasserstein(images, real)
    assert sliced_wasserstein(images, real) != sliced_wasserstein(images, real, seed=1)


def test_sets_may_differ_in_count_and_be_of_one_colour():
    flat = torch.zeros(3, 1, 16, 16)
    assert sliced_wasserstein(flat, torch.zeros(5, 1, 16, 16)) == [0.0]
    assert sliced_wasserstein(flat + 0.5, flat)[0] > 1
    assert sliced_wasserstein(torch.zeros(1, 3, 4, 4), torch.zeros(2, 3, 4, 4), patches=2) == [0.0]


def test_an_almost_constant_channel_does_not_dominate():
    real, good, bad = _noise(6, 3, 32, 32), _noise(6, 3, 32, 32, seed=1), torch.zeros(6, 3, 32, 32)
    for images, rest in ((real, 0.0), (good, 0.002), (bad, 0.0005)):
        images[:, ::2] = -1 + rest * torch.rand(6, 2, 32, 32, generator=torch.Generator().manual_seed(3))
    assert all(near < far for near, far in zip(sliced_wasserstein(good, real), sliced_wasserstein(bad, real)))


def test_resampled_distances_have_narrower_intervals_with_more_images() -> None:
    torch.manual_seed(0)
    widths = []
    for count in (12, 48):
        x, y = (level_patches(torch.randn(count, 1, 32, 32) * 0.2 + shift) for shift in (0.0, 0.3))
        x, y = [*x.values()], [*y.values()]
        value = fmean(patch_distances(x, y))
        resampled = resampled_sliced(x, y, seed=0)
        assert resampled.mean().item() == pytest.approx(value, rel=0.1)  # other directions, in steps
        low, high = percentile_interval(resampled, around=value) or (0, 0)
        assert low < value < high
        widths.append(high - low)
    assert widths[1] < widths[0]


def test_the_distance_of_feature_maps_does_not_depend_on_positions():
    real = [_noise(3, 5, 8, 4, seed=1), _noise(3, 7, 2, 2, seed=2)]
    moved = [part.flip(0, 2, 3) for part in real]
    assert feature_map_distance(moved, real, positions=32) == pytest.approx(0, abs=1e-6)
    shifted = [part + 2 * part.std((0, 2, 3), keepdim=True, correction=0) for part in real]
    expected = []
    for number, part in enumerate(real):  # along a direction d every place moves by 2 (d_1 + ... + d_C)
        directions = torch.randn(512, part.shape[1], generator=torch.Generator().manual_seed(number))
        expected.append(2 * (directions / directions.norm(dim=1, keepdim=True)).sum(1).abs().mean().item())
    assert feature_map_distance(shifted, real, positions=32) == pytest.approx(fmean(expected), rel=1e-4)
    other = [part * 0.5 for part in real]
    assert 0 < feature_map_distance(other, real, positions=3) == feature_map_distance(other, real, positions=3)
