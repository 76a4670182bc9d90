from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from velogan.metrics import distances
from velogan.metrics.distances import (
    frechet_distance,
    kernel_distance,
    weighted_frechet_distance,
    weighted_kernel_distance,
)


def _features(count: int, size: int, seed: int, *, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=generator) / size**0.5
    return torch.randn(count, size, generator=generator) @ mixing + shift


def _square_root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values.clip(0))) @ vectors.T


def _frechet_by_roots(x: np.ndarray, y: np.ndarray) -> float:
    """Compute Heusel et al. 2017, equation 6, literally in float64."""
    c_x, c_y = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = _square_root(c_x)
    cross = _square_root(root @ c_y @ root)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(c_x + c_y - 2 * cross))


def _mmd_by_sums(x: np.ndarray, y: np.ndarray) -> float:
    """Compute Binkowski et al. 2018, equation 4, literally in float64."""
    n, size = x.shape

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float((a @ b / size + 1) ** 3)

    pairs = list(itertools.permutations(range(n), 2))
    within = sum(kernel(x[i], x[j]) + kernel(y[i], y[j]) for i, j in pairs) / (n * (n - 1))
    return within - 2 * sum(kernel(a, b) for a in x for b in y) / n**2


def _weighted(distance_of: Callable[..., Callable[[Tensor, Tensor], Tensor]], x: Tensor, y: Tensor) -> float:
    """Return the form for the bootstrap, with every image once."""
    return distance_of(x, y)(torch.ones(len(x)).double(), torch.ones(len(y)).double()).item()


@pytest.mark.parametrize(("n", "m"), [(200, 150), (20, 30), (12, 300), (8, 10)])  # more and fewer images than features
def test_frechet_distance_equals_numpy(n: int, m: int) -> None:
    x, y = _features(n, 32, 0), _features(m, 32, 1, shift=0.2)
    expected = _frechet_by_roots(x.double().numpy(), y.double().numpy())
    # The textbook's roots of singular matrices are good to about 1e-7 only.
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-6)
    assert _weighted(weighted_frechet_distance, x, y) == pytest.approx(expected, rel=1e-6)


def test_kernel_distance_by_blocks_equals_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "_BLOCK", 16)
    x, y = _features(20, 8, 0), _features(20, 8, 1, shift=0.5)
    expected = _mmd_by_sums(x.double().numpy(), y.double().numpy())
    assert kernel_distance(x, y) == pytest.approx(expected, rel=1e-10)
    assert _weighted(weighted_kernel_distance, x, y) == pytest.approx(expected, rel=1e-10)


def test_the_distance_of_a_shift_is_its_square() -> None:
    x = _features(50, 64, 0)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-8)
    assert frechet_distance(x, x + 0.5) == pytest.approx(64 * 0.25, rel=1e-5)


class _LargestTensor(TorchDispatchMode):
    """Records the number of values of the largest result of an operation."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.values = max([self.values, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


def test_kernel_distance_of_large_sets_needs_no_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "_BLOCK", 16)
    x, y = _features(200, 4, 0), _features(150, 4, 1, shift=0.2)
    with _LargestTensor() as largest:
        value = kernel_distance(x, y)
    assert largest.values <= 200 * 4
    assert value == pytest.approx(_weighted(weighted_kernel_distance, x, y), rel=1e-9)


def test_kernel_distance_is_unbiased() -> None:
    sets = _features(4000, 8, 2).split(20)
    values = [_weighted(weighted_kernel_distance, x, y) for x, y in zip(sets[::2], sets[1::2])]
    assert np.mean(values) == pytest.approx(0, abs=3 * np.std(values) / len(values) ** 0.5)
    assert min(values) < 0 < max(values)


def test_rejects_single_images_and_other_widths() -> None:
    x = torch.zeros(5, 4)
    for distance in (frechet_distance, kernel_distance):
        with pytest.raises(ValueError, match="at least two images of each set, got 5 and 1"):
            distance(x, x[:1])
        with pytest.raises(ValueError, match="features must be"):
            distance(x, torch.zeros(5, 3))
