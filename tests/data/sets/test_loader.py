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
    normalize_batch,
    window,
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


def rows(loader: PairLoader, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    plans = [loader.plan(position) for position in range(0, count, loader.config.batch)]
    return torch.cat([plan.A for plan in plans]), torch.cat([plan.B for plan in plans])


def test_batch_is_a_function_of_seed_and_position() -> None:
    a, b = domain_of(5, seed=1), domain_of(3, seed=2)
    loader = loader_of(a, b, batch_size=2)
    forward = [loader.batch(position) for position in range(0, 24, 2)]
    fresh = loader_of(a, b, batch_size=2)
    for step in reversed(range(12)):  # any order, another object
        again = fresh.batch(2 * step)
        assert torch.equal(forward[step]["A"], again["A"])
        assert torch.equal(forward[step]["B"], again["B"])
    other = loader_of(a, b, batch_size=2, seed=1)
    assert any(not torch.equal(forward[step]["A"], other.batch(2 * step)["A"]) for step in range(12))


def test_batch_size_does_not_change_the_stream() -> None:
    a, b = domain_of(5, seed=1), domain_of(7, seed=2)
    one, three = loader_of(a, b), loader_of(a, b, batch_size=3)
    singles = torch.cat([one.batch(position)["B"] for position in range(12)])
    assert torch.equal(singles, torch.cat([three.batch(position)["B"] for position in range(0, 12, 3)]))


def test_values_and_layout() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    loader = loader_of(domain_in_memory([levels]), domain_of(1), flip=False, load_size=16, preprocess="crop")
    batch = loader.batch(0)["A"]
    assert batch.shape == (1, 3, 16, 16)
    assert batch.dtype == torch.float32
    assert batch.is_contiguous()
    assert torch.equal(batch[0, 1].flatten(), torch.arange(256) / 127.5 - 1)
    assert (batch.min(), batch.max()) == (-1, 1)


@pytest.mark.parametrize(("count_a", "count_b"), [(5, 3), (3, 5), (1, 4), (4, 1), (1, 1)])
def test_an_epoch_is_the_larger_domain_and_shows_all_of_a(count_a: int, count_b: int) -> None:
    loader = loader_of(domain_of(count_a), domain_of(count_b))
    size = max(count_a, count_b)
    assert len(loader) == size
    a, b = rows(loader, 4 * size)
    for epoch in a[:, INDEX].split(size):
        shown = Counter(epoch.tolist())
        assert set(shown) == set(range(count_a))
        assert max(shown.values()) - min(shown.values()) <= 1
    assert set(b[:, INDEX].tolist()) <= set(range(count_b))


def test_epochs_are_shuffled_anew_and_b_is_drawn_with_replacement() -> None:
    a, b = rows(loader_of(domain_of(50), domain_of(50)), 2000)
    first, second = a[:50, INDEX].tolist(), a[50:100, INDEX].tolist()
    assert first != second
    assert first != list(range(50))
    assert any(len(set(epoch.tolist())) < 50 for epoch in b[:, INDEX].split(50))
    shown = Counter(b[:, INDEX].tolist())  # 40 times each on average
    assert len(shown) == 50
    assert 15 < min(shown.values()) <= max(shown.values()) < 70


def test_serial_batches_keep_the_order() -> None:
    a, b = rows(loader_of(domain_of(5), domain_of(3), serial_batches=True), 10)
    assert a[:, INDEX].tolist() == [0, 1, 2, 3, 4] * 2
    assert b[:, INDEX].tolist() == [0, 1, 2, 0, 1] * 2


def test_windows_of_a_and_b_are_uniform_and_independent() -> None:
    a, b = rows(loader_of(domain_of(40), domain_of(40)), 4000)
    for column, values in ((TOP, 5), (LEFT, 5), (FLIP, 2)):
        for side in (a, b):
            shown = torch.bincount(side[:, column], minlength=values)
            assert len(shown) == values
            assert (shown / 4000 - 1 / values).abs().max() < 0.04
    drawn = torch.cat([a[:, TOP:], b[:, INDEX:]], dim=1).double()
    correlation = torch.corrcoef(drawn.T) - torch.eye(7)
    assert correlation.abs().max() < 0.07


def test_no_flip() -> None:
    a, b = rows(loader_of(domain_of(3), domain_of(3), flip=False), 30)
    assert a[:, FLIP].sum() == b[:, FLIP].sum() == 0


def test_one_gather_equals_windows_cut_one_by_one() -> None:
    domain = domain_of(6)
    loader = loader_of(domain, domain, batch_size=16)
    plan = loader.plan(0).A
    assert set(plan[:, FLIP].tolist()) == {0, 1}
    gathered = normalize_batch(crop_and_flip(copy_to_device(domain, loader.device), plan, (16, 16)))
    assert torch.equal(gathered, loader.batch(0)["A"])
    index, top, left, flip = plan[3].tolist()
    window = domain.image(index)[top : top + 16, left : left + 16, 0]
    window = torch.from_numpy((window[:, ::-1] if flip else window).copy())
    assert torch.equal(gathered[3, 0], window / 127.5 - 1)


def test_turns_and_flips_are_those_of_numpy_here_and_on_the_device() -> None:
    domain = domain_of(6)
    loader = loader_of(domain, domain, batch_size=64, flip_vertical=True, rotate90=True)
    plan, batch = loader.plan(0).A, loader.batch(0)["A"]
    assert torch.equal(
        normalize_batch(crop_and_flip(copy_to_device(domain, loader.device), plan, (16, 16), rotate90=True)), batch
    )
    seen = Counter()
    for (index, top, left, _), made in zip(plan.tolist(), batch):
        window = domain.image(index)[top : top + 16, left : left + 16, 0]
        turned = [np.rot90(image, k) for image in (window, window[:, ::-1]) for k in range(4)]
        same = [torch.equal(made[0], torch.from_numpy(image.copy()) / 127.5 - 1) for image in turned]
        assert sum(same) == 1
        seen[same.index(True)] += 1
    assert len(seen) == 8


@pytest.mark.parametrize(
    ("settings", "k", "mirrored"),
    [({"rotate90": True, "flip": False}, 4, False), ({"flip_vertical": True, "flip": False}, 1, True)],
)
def test_each_setting_makes_its_own_changes_and_leaves_the_windows(
    settings: dict[str, bool], k: int, mirrored: bool
) -> None:
    domain = domain_of(6)
    plain, other = (rows(loader_of(domain, domain, **one), 100) for one in ({"flip": False}, settings))
    loader = loader_of(domain, domain, **settings)
    for one, changed in zip(plain, other):
        assert torch.equal(one[:, :FLIP], changed[:, :FLIP])
    seen = set()
    for position in range(100):
        index, top, left, _ = plain[0][position].tolist()
        window = domain.image(index)[top : top + 16, left : left + 16, 0]
        made = (loader.batch(position)["A"][0, 0] + 1) * 127.5
        wanted = [np.rot90(window, turns) for turns in range(k)] + ([window[::-1]] if mirrored else [])
        seen.add([np.allclose(made.numpy(), image) for image in wanted].index(True))
    assert len(seen) == k + mirrored


def test_pictures_of_different_sizes_in_crop_modes() -> None:
    mixed = domain_of(4, (20, 30), (17, 16))
    loader = loader_of(mixed, mixed, batch_size=4, preprocess="crop")
    assert loader.batch(0)["A"].shape == (4, 3, 16, 16)
    assert {window(loader.config, shape) for shape in mixed.shapes} == {(16, 16)}


def test_whole_pictures() -> None:
    mixed = domain_of(4, (20, 32), (16, 24))
    loader = loader_of(mixed, mixed, preprocess="none", serial_batches=True)
    assert [loader.batch(place)["A"].shape[2:] for place in range(2)] == [(20, 32), (16, 24)]
    assert {window(loader.config, shape) for shape in mixed.shapes} == {(20, 32), (16, 24)}
    with pytest.raises(
        ValueError,
        match=r"data.batch_size=2.*preprocess=none leaves 2 sizes in domain A; set batch_size to 1",
    ):
        loader_of(mixed, mixed, preprocess="none", batch_size=2)


def test_crop_larger_than_a_picture() -> None:
    with pytest.raises(
        ValueError,
        match=r"crop_size=16 is larger than 00001 of domain B, which is 18x15 pixels; set crop_size to at",
    ):
        loader_of(domain_of(2), domain_of(2, (20, 20), (15, 18)), preprocess="crop")


def test_prefetch_changes_nothing_and_ends_its_thread() -> None:
    loader = loader_of(domain_of(5), domain_of(3), batch_size=2)
    stream = loader.batches(6)
    for position in range(6, 26, 2):
        batch = loader.preprocess_on_device(next(stream))
        assert torch.equal(batch["A"], loader.batch(position)["A"])
        assert torch.equal(batch["B"], loader.batch(position)["B"])
    assert "velogan-prefetch" in {thread.name for thread in threading.enumerate()}
    del stream
    assert "velogan-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_prefetch_hands_on_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(domain_of(2), domain_of(2))

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


def test_sixteen_bits_and_floats_reach_the_networks_at_their_own_depth() -> None:
    ramp = np.linspace(0, 65535, 16 * 16).round().astype(np.uint16).reshape(16, 16, 1)
    floats = ramp.astype(np.float32) / 65535 * 2000 - 1000
    a = domain_in_memory([ramp])
    b = domain_in_memory([floats], value_range=(-1000.0, 500.0))
    batch = loader_of(a, b, flip=False, crop_size=16, load_size=16).batch(0)
    wanted = torch.from_numpy(ramp.astype(np.float64)[:, :, 0] / 65535 * 2 - 1)
    assert torch.allclose(batch["A"][0, 0].double(), wanted, atol=1e-6)
    assert len(batch["A"].unique()) == 256
    assert torch.allclose(batch["B"][0, 0].double(), ((wanted + 1) * 4 / 3 - 1).clamp(max=1), atol=1e-6)


def test_a_gather_of_sixteen_bits_is_exact() -> None:
    images = torch.from_numpy(np.arange(2 * 6 * 6, dtype=np.uint16).reshape(2, 6, 6, 1) * 900)
    cut = crop_and_flip(images, torch.tensor([[1, 1, 2, 0]]), (3, 3))
    assert np.array_equal(cut[0].numpy(), images[1, 1:4, 2:5].numpy())
