from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
import torch

from velogan.data.config import DataConfig
from velogan.data.sets.cache import Domain
from velogan.data.sets.loader import (
    FLIP,
    INDEX,
    LEFT,
    TOP,
    PairLoader,
    copy_to_device,
    crop_and_flip,
    crop_shape,
    normalize_batch,
)

from ...domains import domain_in_memory


def domain_of(count: int, *shapes: tuple[int, int], seed: int = 0) -> Domain:
    random = np.random.default_rng(seed)
    sizes = shapes or ((20, 20),)
    images = [random.integers(0, 256, (*sizes[index % len(sizes)], 3), np.uint8) for index in range(count)]
    return domain_in_memory(images)


def loader_of(a: Domain, b: Domain, *, seed: int = 0, **settings) -> PairLoader:
    config = DataConfig(**{"crop_size": 16, "load_size": 20, **settings})
    return PairLoader(a, b, config, seed=seed, device="cpu")


def plans(loader: PairLoader, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [loader.plan(position) for position in range(0, count, loader.config.batch)]
    return torch.cat([plan.A for plan in rows]), torch.cat([plan.B for plan in rows])


def test_a_batch_is_a_function_of_seed_and_position_and_not_of_its_size() -> None:
    a, b = domain_of(5, seed=1), domain_of(7, seed=2)
    loader = loader_of(a, b, batch_size=3)
    batches = [loader.batch(position) for position in range(0, 24, 3)]
    single = loader_of(a, b)  # another object, of another size, and in reverse order
    for position in reversed(range(24)):
        batch = single.batch(position)
        for letter in "AB":
            assert torch.equal(batches[position // 3][letter][position % 3], batch[letter][0])
    other = loader_of(a, b, batch_size=3, seed=1)
    assert any(not torch.equal(batches[step]["A"], other.batch(3 * step)["A"]) for step in range(8))


def test_values_and_layout() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    loader = loader_of(domain_in_memory([levels]), domain_of(1), flip=False, load_size=16, preprocess="crop")
    batch = loader.batch(0)["A"]
    assert (batch.shape, batch.dtype, batch.is_contiguous()) == ((1, 3, 16, 16), torch.float32, True)
    assert torch.equal(batch[0, 1].flatten(), torch.arange(256) / 127.5 - 1)
    assert (batch.min(), batch.max()) == (-1, 1)


@pytest.mark.parametrize(("count_a", "count_b"), [(5, 3), (3, 5), (1, 4), (4, 1), (1, 1)])
def test_an_epoch_is_the_larger_domain_and_uses_all_of_a(count_a: int, count_b: int) -> None:
    loader = loader_of(domain_of(count_a), domain_of(count_b))
    size = max(count_a, count_b)
    assert len(loader) == size
    a, b = plans(loader, 4 * size)
    for epoch in a[:, INDEX].split(size):
        counts = Counter(epoch.tolist())
        assert set(counts) == set(range(count_a))
        assert max(counts.values()) - min(counts.values()) <= 1
    assert set(b[:, INDEX].tolist()) <= set(range(count_b))


def test_epochs_are_shuffled_again_and_b_is_drawn_with_replacement() -> None:
    a, b = plans(loader_of(domain_of(50), domain_of(50)), 2000)
    first, second = a[:50, INDEX].tolist(), a[50:100, INDEX].tolist()
    assert first != second
    assert first != list(range(50))
    assert any(len(set(epoch.tolist())) < 50 for epoch in b[:, INDEX].split(50))
    counts = Counter(b[:, INDEX].tolist())  # 40 times each on average
    assert len(counts) == 50
    assert 15 < min(counts.values()) <= max(counts.values()) < 70


def test_serial_batches_keep_the_order_and_flips_can_be_disabled() -> None:
    a, b = plans(loader_of(domain_of(5), domain_of(3), serial_batches=True, flip=False), 10)
    assert a[:, INDEX].tolist() == [0, 1, 2, 3, 4] * 2
    assert b[:, INDEX].tolist() == [0, 1, 2, 0, 1] * 2
    assert a[:, FLIP].sum() == b[:, FLIP].sum() == 0


def test_crops_of_a_and_b_are_uniform_and_independent() -> None:
    a, b = plans(loader_of(domain_of(40), domain_of(40)), 4000)
    for column, values in ((TOP, 5), (LEFT, 5), (FLIP, 2)):
        for plan in (a, b):
            counts = torch.bincount(plan[:, column], minlength=values)
            assert len(counts) == values
            assert (counts / 4000 - 1 / values).abs().max() < 0.04
    drawn = torch.cat([a[:, TOP:], b[:, INDEX:]], dim=1).double()
    correlation = torch.corrcoef(drawn.T) - torch.eye(7)
    assert correlation.abs().max() < 0.07


@pytest.mark.parametrize(
    ("settings", "rotations", "hflip", "vflip"),
    [
        ({"flip": True}, 1, True, False),
        ({"flip": False, "rotate90": True}, 4, False, False),
        ({"flip": False, "flip_vertical": True}, 1, False, True),
        ({"flip": True, "flip_vertical": True, "rotate90": True}, 4, True, False),  # a vertical flip adds none
    ],
)
def test_flips_and_rotations_are_those_of_numpy_on_host_and_device(
    settings: dict[str, bool], rotations: int, hflip: bool, vflip: bool
) -> None:
    domain = domain_of(6)
    loader = loader_of(domain, domain, batch_size=64, **settings)
    plan, batch = loader.plan(0).A, loader.batch(0)["A"]
    gathered = crop_and_flip(copy_to_device(domain, loader.device), plan, (16, 16), rotate90=loader.config.rotate90)
    assert torch.equal(normalize_batch(gathered), batch)
    plain = loader_of(domain, domain, batch_size=64, flip=False).plan(0).A
    assert torch.equal(plain[:, :FLIP], plan[:, :FLIP])  # the windows stay the same
    seen = set()
    for (index, top, left, _), crop in zip(plan.tolist(), batch):
        image = domain.image(index)[top : top + 16, left : left + 16, 0]
        flipped = [image, *([image[:, ::-1]] if hflip else []), *([image[::-1]] if vflip else [])]
        expected = [np.rot90(version, quarter) for version in flipped for quarter in range(rotations)]
        equal = [torch.equal(crop[0], torch.from_numpy(version.copy()) / 127.5 - 1) for version in expected]
        assert sum(equal) == 1
        seen.add(equal.index(True))
    assert len(seen) == rotations * (1 + hflip + vflip)


def test_pictures_of_several_sizes() -> None:
    mixed = domain_of(4, (20, 30), (17, 16))
    loader = loader_of(mixed, mixed, batch_size=4, preprocess="crop")
    assert loader.batch(0)["A"].shape == (4, 3, 16, 16)
    assert {crop_shape(loader.config, shape) for shape in mixed.shapes} == {(16, 16)}
    mixed = domain_of(4, (20, 32), (16, 24))
    loader = loader_of(mixed, mixed, preprocess="none", serial_batches=True)
    assert [loader.batch(position)["A"].shape[2:] for position in range(2)] == [(20, 32), (16, 24)]
    assert {crop_shape(loader.config, shape) for shape in mixed.shapes} == {(20, 32), (16, 24)}


def test_rejects_sizes_that_do_not_fit() -> None:
    mixed = domain_of(4, (20, 32), (16, 24))
    message = r"data.batch_size=2.*preprocess=none leaves 2 sizes in domain A; set batch_size to 1"
    with pytest.raises(ValueError, match=message):
        loader_of(mixed, mixed, preprocess="none", batch_size=2)
    message = r"crop_size=16 is larger than 00001 of domain B, which is 18x15 pixels; set crop_size to at"
    with pytest.raises(ValueError, match=message):
        loader_of(domain_of(2), domain_of(2, (20, 20), (15, 18)), preprocess="crop")


def test_prefetch_changes_nothing_ends_its_thread_and_raises_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(domain_of(5), domain_of(3), batch_size=2)
    stream = loader.batches(6)
    for position in range(6, 26, 2):
        batch, expected = loader.preprocess_on_device(next(stream)), loader.batch(position)
        assert all(torch.equal(batch[letter], expected[letter]) for letter in "AB")
    assert "velogan-prefetch" in {thread.name for thread in threading.enumerate()}
    del stream
    assert "velogan-prefetch" not in {thread.name for thread in threading.enumerate()}

    def broken(position: int):
        raise OSError("the disk is gone")

    monkeypatch.setattr(loader, "plan", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader.batches(0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shapes", [((20, 20),), ((20, 24), (18, 17))])
def test_device_batches_equal_host_batches(shapes: tuple[tuple[int, int], ...]) -> None:
    a, b = domain_of(6, *shapes), domain_of(4, *shapes, seed=1)
    config = DataConfig(crop_size=16, batch_size=4, preprocess="crop")
    host, device = (PairLoader(a, b, config, seed=0, device=name) for name in ("cpu", "cuda"))
    for position in range(0, 24, 4):
        assert torch.allclose(host.batch(position)["A"], device.batch(position)["A"].cpu(), atol=1e-6)


def test_sixteen_bits_and_floats_keep_their_depth() -> None:
    ramp = np.linspace(0, 65535, 16 * 16).round().astype(np.uint16).reshape(16, 16, 1)
    floats = ramp.astype(np.float32) / 65535 * 2000 - 1000
    a = domain_in_memory([ramp])
    b = domain_in_memory([floats], value_range=(-1000.0, 500.0))
    batch = loader_of(a, b, flip=False, crop_size=16, load_size=16).batch(0)
    expected = torch.from_numpy(ramp.astype(np.float64)[:, :, 0] / 65535 * 2 - 1)
    assert torch.allclose(batch["A"][0, 0].double(), expected, atol=1e-6)
    assert len(batch["A"].unique()) == 256
    assert torch.allclose(batch["B"][0, 0].double(), ((expected + 1) * 4 / 3 - 1).clamp(max=1), atol=1e-6)
    images = torch.from_numpy(np.arange(2 * 6 * 6, dtype=np.uint16).reshape(2, 6, 6, 1) * 900)
    crop = crop_and_flip(images, torch.tensor([[1, 1, 2, 0]]), (3, 3))
    assert np.array_equal(crop[0].numpy(), images[1, 1:4, 2:5].numpy())
