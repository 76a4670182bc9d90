from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.metrics.bootstrap import (
    draw_counts,
    percentile_interval,
    resampled_distances,
    resampled_means,
    resampled_sliced,
)
from velogan.metrics.distances import WeightedDistance, weighted_frechet_distance, weighted_kernel_distance
from velogan.metrics.registry import label_metrics
from velogan.metrics.sliced import level_patches


def _features(count: int, *, seed: int, shift: float = 0.0) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)) + shift


def test_counts_are_draws_with_replacement() -> None:
    counts = draw_counts(20, seed=0, resamples=500)
    assert counts.sum(dim=1).tolist() == [20] * 500
    assert torch.equal(counts, draw_counts(20, seed=0, resamples=500))
    assert counts.var(dim=0).mean().item() == pytest.approx(1 - 1 / 20, rel=0.1)  # binomial, n of 1/n
    assert not torch.equal(counts, draw_counts(20, seed=1, resamples=500))


def test_an_image_drawn_twice_counts_twice_in_a_frechet_distance() -> None:
    x, y = _features(7, seed=0), _features(9, seed=1, shift=0.5)
    w, v = torch.tensor([2.0, 0, 1, 3, 0, 0, 1]).double(), torch.tensor([1.0, 1, 0, 2, 1, 1, 1, 2, 0]).double()
    repeated = (part.repeat_interleave(count.long(), dim=0) for part, count in ((x, w), (y, v)))
    a, b = repeated
    plain = weighted_frechet_distance(a, b)(torch.ones(len(a)).double(), torch.ones(len(b)).double())
    assert weighted_frechet_distance(x, y)(w, v).item() == pytest.approx(plain.item(), rel=1e-9)


def test_an_image_drawn_twice_is_not_its_own_pair_in_a_kernel_distance() -> None:
    x, y = _features(4, seed=0).double(), _features(3, seed=1).double()
    w, v = [2, 0, 1, 1], [1, 2, 0]

    def kernel(a: Tensor, b: Tensor) -> float:
        return ((a @ b / 6 + 1) ** 3).item()

    def within(features: Tensor, counts: list[int]) -> float:
        pairs = [(i, j) for i in range(len(counts)) for j in range(len(counts)) if i != j]
        total = sum(counts[i] * counts[j] for i, j in pairs)
        return sum(counts[i] * counts[j] * kernel(features[i], features[j]) for i, j in pairs) / total

    across = sum(w[i] * v[j] * kernel(x[i], y[j]) for i in range(4) for j in range(3)) / (4 * 3)
    expected = within(x, w) + within(y, v) - 2 * across
    value = weighted_kernel_distance(x, y)(torch.tensor(w).double(), torch.tensor(v).double())
    assert value.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("unknown", [math.nan, math.inf, -math.inf])
def test_resampled_means_omit_images_without_a_value(unknown: float) -> None:
    values = torch.tensor([1.0, unknown, 3.0, 5.0], dtype=torch.float64)
    weights = draw_counts(4, seed=3, resamples=50).numpy()
    known = [0, 2, 3]
    with np.errstate(invalid="ignore"):
        expected = (weights[:, known] * values.numpy()[known]).sum(1) / weights[:, known].sum(1)
    np.testing.assert_allclose(resampled_means(values, seed=3, resamples=50).numpy(), expected)


def test_the_interval_of_a_mean_has_its_theoretical_width() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    span = percentile_interval(resampled_means(values, seed=0, resamples=2000))
    assert span is not None
    assert (span[1] - span[0]) / 2 == pytest.approx(1.96 * values.std().item() / 20, rel=0.1)
    assert span[0] < values.mean() < span[1]


@pytest.mark.parametrize("distance_of", [weighted_frechet_distance, weighted_kernel_distance])
def test_the_interval_of_a_distance_covers_other_samples(
    distance_of: Callable[[Tensor, Tensor], WeightedDistance],
) -> None:
    def draw(seed: int) -> tuple[Tensor, Tensor]:
        return _features(60, seed=2 * seed), _features(60, seed=2 * seed + 1, shift=0.7)

    def value(x: Tensor, y: Tensor) -> float:
        return distance_of(x, y)(torch.ones(60).double(), torch.ones(60).double()).item()

    others = [value(*draw(seed)) for seed in range(1, 60)]
    x, y = draw(0)
    span = percentile_interval(resampled_distances(distance_of(x, y), 60, 60, seed=0), around=value(x, y))
    assert span is not None
    assert span[0] < value(x, y) < span[1]
    assert span[1] - span[0] == pytest.approx(3.92 * np.std(others), rel=0.35)  # 59 sets tell the width to a tenth


def test_one_image_has_no_interval() -> None:
    for values in ([20.0], [20.0, math.nan]):
        assert percentile_interval(resampled_means(torch.tensor(values), seed=0)) is None
    (metric, _) = label_metrics(torch.eye(3)[None].double(), seed=0).values()
    assert (metric.value, metric.interval_95) == (1, None)
    patches = level_patches(torch.zeros(1, 3, 16, 16)).values()
    assert percentile_interval(resampled_sliced([*patches], [*patches], seed=0)) is None


def test_no_interval_of_unknown_values() -> None:
    assert percentile_interval(torch.tensor([1.0, math.nan])) is None
    assert percentile_interval(torch.tensor([1.0, 2.0, 3.0]), around=math.inf) is None
    low, high = percentile_interval(torch.tensor([1.0, 2.0, 3.0, math.nan]), around=5.0) or (0, 0)
    assert low == pytest.approx(4.05)
    assert high == pytest.approx(5.95)
