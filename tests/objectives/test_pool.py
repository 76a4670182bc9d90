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


def _held(pool: FakePool) -> list[float]:
    return pool.images.flatten().tolist()


def test_until_it_is_full_it_stores_and_returns_what_comes():
    pool = FakePool(3, SHAPE)
    for value in (1.0, 2.0, 3.0):
        assert pool(_images(value), _uniform((0.9, 0.9))).item() == value
    assert _held(pool) == [1, 2, 3]
    assert int(pool.stored) == 3


def test_then_it_swaps_or_passes_on():
    pool = FakePool(3, SHAPE)
    pool(_images(1.0, 2.0, 3.0), torch.rand(2, 3))
    assert pool(_images(4.0), _uniform((0.4, 0.5))).item() == 4  # passed on, not stored
    assert _held(pool) == [1, 2, 3]
    assert pool(_images(5.0), _uniform((0.6, 0.5))).item() == 2
    assert _held(pool) == [1, 5, 3]
    assert pool(_images(6.0), _uniform((0.6, 0.999))).item() == 3
    assert pool(_images(7.0), _uniform((0.6, 0.0))).item() == 1


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_it_stores_no_image_that_is_not_finite(broken: float):
    pool = FakePool(2, SHAPE)
    pool(_images(1.0), _uniform((0.9, 0.9)))
    assert not pool(_images(broken), _uniform((0.9, 0.9))).isfinite().any()
    assert (_held(pool), int(pool.stored)) == ([1, 0], 1)
    pool(_images(2.0), _uniform((0.9, 0.9)))
    assert pool(_images(broken), _uniform((0.9, 0.9))).item() == 2  # swapped
    assert _held(pool) == [1, 2]


def test_a_batch_is_its_images_one_after_another():
    batch, single = FakePool(2, SHAPE), FakePool(2, SHAPE)
    images, uniform = torch.arange(12.0).view(-1, *SHAPE), torch.rand(2, 12, generator=torch.Generator().manual_seed(0))
    given = torch.cat([batch(images[:5], uniform[:, :5]), batch(images[5:], uniform[:, 5:])])
    alone = torch.cat([single(image[None], u[:, None]) for image, u in zip(images, uniform.T)])
    assert torch.equal(given, alone)
    assert torch.equal(batch.images, single.images)
    assert not torch.equal(given, images)


def test_it_swaps_half_the_time_takes_every_slot_equally_and_loses_nothing():
    count, size = 6000, 5
    pool, random = FakePool(size, SHAPE), torch.Generator().manual_seed(1)
    given, slots, expected = [], [0] * size, set()
    for number in range(count):
        before = _held(pool)
        out = pool(_images(float(number)), torch.rand(2, 1, generator=random)).item()
        given.append(out)
        expected.add(float(number))
        if number >= size:
            assert out == number or out in before
            if out != number:
                slots[before.index(out)] += 1
                assert _held(pool)[before.index(out)] == number  # the new one takes its place
            else:
                assert _held(pool) == before
    swapped = sum(slots)
    assert abs(swapped / (count - size) - 0.5) < 0.02
    assert all(abs(slot / swapped - 1 / size) < 0.03 for slot in slots)
    shown_or_held = set(given) | set(_held(pool))
    assert shown_or_held == expected


def test_size_0_returns_what_comes():
    pool, images = FakePool(0, SHAPE), _images(1.0, 2.0)
    assert torch.equal(pool(images, torch.ones(2, 2)), images)


def test_what_it_holds_does_not_follow_what_it_was_given():
    pool, image = FakePool(2, SHAPE), _images(1.0)
    pool(image, torch.rand(2, 1))
    image.fill_(9.0)
    assert _held(pool)[0] == 1.0
