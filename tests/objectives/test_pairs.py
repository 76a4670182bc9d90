"""Some pairs among unpaired pictures: found by name, cropped alike, and learned from in a phase of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.sets.loader import AlignedLoader
from velogan.data.sets.pair import open_data
from velogan.data.sets.sources import find_pairs
from velogan.objectives.pairs import feature_distance
from velogan.observe.progress import Display
from velogan.training.run import train
from velogan.training.session import Result

from ..domains import domain_in_memory


def _write(folder: Path, *names: str, seed: int = 0, size: int = 40) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        pixels = np.random.default_rng([seed, number]).integers(0, 256, (size, size, 3), np.uint8)
        save_picture(folder / name, Picture(pixels))


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Three pairs, of which B is the negative of A."""
    names = ["0.png", "1.png", "2.png"]
    _write(tmp_path / "pairs/A", *names)
    (tmp_path / "pairs/B").mkdir()
    for number, name in enumerate(names):
        pixels = np.random.default_rng([0, number]).integers(0, 256, (40, 40, 3), np.uint8)
        save_picture(tmp_path / "pairs/B" / name, Picture(255 - pixels))
    return tmp_path / "pairs"


def _train(config: Config, run: Path) -> Result:
    with Display() as display:
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


def test_both_pictures_of_a_pair_are_cropped_and_flipped_alike() -> None:
    images = [np.random.default_rng(seed).integers(0, 256, (20, 20, 3), np.uint8) for seed in range(5)]
    one, other = domain_in_memory(images), domain_in_memory([255 - image for image in images])
    config = DataConfig(crop_size=16, load_size=20, flip_vertical=True, turn=True, batch_size=2)
    loader = AlignedLoader(one, other, config, seed=1, device="cpu")
    plans = torch.cat([loader.plan(position).A for position in range(0, 20, 2)])
    assert len(plans.unique(dim=0)) == 20
    assert plans[:5, 0].sort().values.tolist() == [0, 1, 2, 3, 4]
    for position in range(0, 20, 2):
        batch = loader.batch(position)
        torch.testing.assert_close(batch["A"], -batch["B"])


def test_pairs_have_equal_names_but_for_the_suffix_and_the_rest_is_named(pairs: Path) -> None:
    _write(pairs / "A", "alone.png")
    (pairs / "B/1.png").rename(pairs / "B/1.bmp")
    (a, b), alone = find_pairs(pairs, DataConfig())
    assert (a.names, b.names) == (("0.png", "1.png", "2.png"), ("0.png", "1.bmp", "2.png"))
    assert alone == ("A/alone.png",)


def test_two_pictures_of_one_name_are_refused(pairs: Path) -> None:
    (pairs / "A/1.bmp").write_bytes((pairs / "A/1.png").read_bytes())
    with pytest.raises(ValueError, match=r"A holds both 1\.bmp and 1\.png, for one picture: leave one of them"):
        find_pairs(pairs, DataConfig())


def test_a_damaged_picture_takes_its_pair_with_it(tiny_config: Callable[..., Config], pairs: Path) -> None:
    (pairs / "B/1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    said: list[str] = []
    config = tiny_config(data={"pairs": str(pairs)}).data
    data = open_data(config, task=lambda name: lambda done, total: None, say=said.append)
    assert data.pairs is not None
    assert [one.names for one in data.pairs] == [("0.png", "2.png")] * 2
    assert "1.png" in next(line for line in said if line.startswith("pairs: "))


def test_pairs_of_two_shapes_are_refused(pairs: Path) -> None:
    save_picture(pairs / "B/1.png", Picture(np.zeros((40, 60, 3), np.uint8)))
    config = DataConfig(path=(str(pairs / "A"), str(pairs / "B")), pairs=str(pairs), crop_size=16, load_size=20)
    with pytest.raises(ValueError, match=r"data\.pairs=.*: 1\.png has 60x40 pixels where 1\.png has 40x40, so it does"):
        open_data(config, task=lambda name: lambda done, total: None, say=print)


@pytest.mark.parametrize(
    ("made", "message"),
    [((), "must hold A and B, but it does not exist"), (("A/0.png", "B/1.png"), "no picture of A has the name of one")],
)
def test_a_folder_without_pairs_is_refused(made: tuple[str, ...], message: str, tmp_path: Path) -> None:
    for name in made:
        _write(tmp_path / "none" / name[0], name[2:])
    with pytest.raises(ValueError, match=message):
        find_pairs(tmp_path / "none", DataConfig())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "contrast"}, "data.pairs=x is not for method=contrast: set method=cyclegan or onepair"),
        ({"train": {"split": "directions"}}, "train.split=directions divides them"),
        ({"train": {"exchange_every": "1 epoch"}}, "divides them"),
    ],
)
def test_what_pairs_do_not_go_with_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Config().change(data={"pairs": "x"}, **changes)


class _Grey(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x, x[..., ::2, ::2]]


def test_feature_distance() -> None:
    one, other = torch.tensor([[1.0, 0, 0], [0, 2.0, 0]]).view(2, 1, 3, 1, 1).expand(2, 1, 3, 4, 4)
    assert feature_distance(_Grey(), one, one).item() == 0
    assert feature_distance(_Grey(), one, other).item() == pytest.approx(2 * 2.0)  # two maps, orthogonal unit vectors


@pytest.mark.parametrize("method", ["cyclegan", "onepair"])
def test_a_run_with_pairs_is_continued_bit_for_bit(
    method: str, tiny_config: Callable[..., Config], pairs: Path, tmp_path: Path
) -> None:
    def config(images: int) -> Config:
        data = {"pairs": str(pairs), "pairs_every": 2}
        schedule = {"kind": "constant"}  # others follow from the length
        return tiny_config(method=method, data=data, schedule=schedule, train={"length": f"{images} images"})

    unbroken = _train(config(6), tmp_path / "unbroken")
    _train(config(3), tmp_path / "stopped")
    assert _train(config(6), tmp_path / "stopped").weights_sha256 == unbroken.weights_sha256
    told = (tmp_path / "unbroken/stats.jsonl").read_text()
    assert "pairs/l1_a2b" in told
    assert ("pairs/l1_b2a" in told) == (method == "cyclegan")
    without = _train(tiny_config(method=method, train={"length": "6 images"}), tmp_path / "without")
    assert without.weights_sha256 != unbroken.weights_sha256
