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


def test_swaps_half_the_time_uses_all_slots_equally_and_loses_nothing():
    count, size = 6000, 5
    pool, random = FakePool(size, SHAPE), torch.Generator().manual_seed(1)
    returned, slots = set[float](), [0] * size
    for number in range(count):
        before = _stored(pool)
        out = pool(_images(float(number)), torch.rand(2, 1, generator=random)).item()
        returned.add(out)
        if number >= size:
            assert out == number or out in before
            if out != number:
                slots[before.index(out)] += 1
                assert _stored(pool)[before.index(out)] == number  # the new image replaces it
            else:
                assert _stored(pool) == before
    swapped = sum(slots)
    assert abs(swapped / (count - size) - 0.5) < 0.02
    assert all(abs(slot / swapped - 1 / size) < 0.03 for slot in slots)
    assert returned | set(_stored(pool)) == set(map(float, range(count)))


def test_size_0_returns_new_images():
    pool, images = FakePool(0, SHAPE), _images(1.0, 2.0)
    assert torch.equal(pool(images, torch.ones(2, 2)), images)


def test_a_loaded_state_continues_and_stored_images_are_copies():
    first, random = FakePool(2, SHAPE), torch.Generator().manual_seed(3)
    images = _images(1.0, 2.0, 3.0)
    first(images, torch.rand(2, 3, generator=random))
    before = _stored(first)
    images.fill_(9.0)
    assert _stored(first) == before
    second = FakePool(2, SHAPE)
    second.load_state_dict(first.state_dict())
    images, uniform = _images(4.0, 5.0, 6.0), torch.rand(2, 3, generator=random)
    assert torch.equal(first(images, uniform), second(images, uniform))
