from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from velogan.objectives.pool import FakePool

SHAPE = (1, 1, 1)


def _images(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, *SHAPE)


def _uniform(*rows: tuple[float, float]) -> Tensor:
    """Per image: swap or not, and which."""
    return torch.tensor(rows).T


def _stored(pool: FakePool) -> list[float]:
    return pool.images.flatten().tolist()


def test_stores_and_returns_new_images_until_full():
    pool = FakePool(3, SHAPE)
    for value in (1.0, 2.0, 3.0):
        assert pool(_images(value), _uniform((0.9, 0.9))).item() == value
    assert _stored(pool) == [1, 2, 3]
    assert int(pool.stored) == 3


def test_swaps_or_returns_the_new_image_once_full():
    pool = FakePool(3, SHAPE)
    pool(_images(1.0, 2.0, 3.0), torch.rand(2, 3))
    assert pool(_images(4.0), _uniform((0.4, 0.5))).item() == 4  # returned, not stored
    assert _stored(pool) == [1, 2, 3]
    assert pool(_images(5.0), _uniform((0.6, 0.5))).item() == 2
    assert _stored(pool) == [1, 5, 3]
    assert pool(_images(6.0), _uniform((0.6, 0.999))).item() == 3
    assert pool(_images(7.0), _uniform((0.6, 0.0))).item() == 1


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_never_stores_non_finite_images(broken: float):
    pool = FakePool(2, SHAPE)
    pool(_images(1.0), _uniform((0.9, 0.9)))
    assert not pool(_images(broken), _uniform((0.9, 0.9))).isfinite().any()
    assert (_stored(pool), int(pool.stored)) == ([1, 0], 1)
    pool(_images(2.0), _uniform((0.9, 0.9)))
    assert pool(_images(broken), _uniform((0.9, 0.9))).item() == 2  # swapped
    assert _stored(pool) == [1, 2]


def test_a_batch_equals_its_images_in_sequence():
    batch, single = FakePool(2, SHAPE), FakePool(2, SHAPE)
    images, uniform = torch.arange(12.0).view(-1, *SHAPE), torch.rand(2, 12, generator=torch.Generator().manual_seed(0))
    together = torch.cat([batch(images[:5], uniform[:, :5]), batch(images[5:], uniform[:, 5:])])
    alone = torch.cat([single(image[None], u[:, None]) for image, u in zip(images, uniform.T)])
    assert torch.equal(together, alone)
    assert torch.equal(batch.images, single.images)
    assert not torch.equal(together, images)
