"""Classes that keep their place: label maps beside pictures, a segmenter that learns from them, and its loss."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.config import DataConfig
from velogan.data.pictures.geography import Geography
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.pictures.metadata import FileMetadata
from velogan.data.sets.loader import Labels, PairLoader
from velogan.data.sets.pair import Data, open_data
from velogan.networks.build import build_network
from velogan.objectives.base import Out, Phase
from velogan.objectives.classes import SEGMENTER, WithClasses, known, wrong_classes
from velogan.observe.progress import Display
from velogan.store.checkpoint import list_checkpoints, load_weights
from velogan.training.build import build_roles
from velogan.training.record import changed_domains, new_record
from velogan.training.run import train

COLOURS = np.array([[0, 0, 0], [250, 20, 30], [20, 200, 250]], np.uint8)
NUMBERS = np.array([[0], [7], [26]], np.uint8)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of squares in A, dark and bright in B; maps of their classes, by colours and by numbers."""
    for index in range(4):
        for letter, levels in (("A", (40, 120, 200)), ("B", (215, 135, 55))):
            random = np.random.default_rng([index, ord(letter)])
            classes = random.integers(0, 3, (4, 4)).repeat(10, axis=0).repeat(10, axis=1)
            shown = np.array(levels, np.uint8)[classes][..., None].repeat(3, axis=2)
            noise = random.integers(-9, 10, shown.shape)
            folders = {
                f"train{letter}": (shown + noise).astype(np.uint8),
                f"colours{letter}": COLOURS[classes],
                f"numbers{letter}": NUMBERS[classes],
            }
            for folder, pixels in folders.items():
                (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
                save_picture(tmp_path / "set" / folder / f"{index}.png", Picture(pixels))
    return tmp_path / "set"


def _open(pictures: Path, *, say: Callable[[str], None] = print, **more: object) -> Data:
    config = DataConfig(path=(str(pictures),), crop_size=32, load_size=40, **more)  # pyright: ignore
    return open_data(config, task=lambda name: lambda done, total: None, say=say)


def _levels(classes: Tensor) -> Tensor:
    return torch.tensor([40.0, 120.0, 200.0])[classes] / 127.5 - 1


@pytest.mark.parametrize("kind", ["colours", "numbers"])
def test_classes_are_cropped_and_flipped_with_their_picture(pictures: Path, kind: str) -> None:
    said: list[str] = []
    data = _open(pictures, say=said.append, labels_a=str(pictures / f"{kind}A"))
    shown = {"colours": "colours #000000 #14c8fa #fa141e", "numbers": "numbers 0 7 26"}[kind]
    assert said == [f"labels: 3 classes, {shown}; 0.0% of pixels have none"]
    config = DataConfig(crop_size=32, load_size=40, rotate90=True, flip_vertical=True, batch_size=2)
    loader = PairLoader(data.a, data.b, config, seed=0, device="cpu", beside=data.beside)
    order = torch.tensor([0, 2, 1]) if kind == "colours" else torch.arange(3)
    for position in range(0, 8, 2):
        batch = loader.batch(position)
        classes = order[batch["label_a"]]
        assert classes.shape == (2, 32, 32)
        assert (batch["A"].mean(1) - _levels(classes)).abs().max() < 10 / 127.5


def test_colours_lie_where_classes_are_told(pictures: Path) -> None:
    data = _open(pictures, say=lambda line: None, labels_a=str(pictures / "coloursA"))
    config = DataConfig(crop_size=32, load_size=40, batch_size=2)
    loader = PairLoader(data.a, data.b, config, seed=0, device="meta", beside=data.beside)
    labels = loader.beside["label_a"]
    assert isinstance(labels, Labels)
    assert labels.colours.is_meta  # a captured step can copy nothing from the host
    assert loader.half(0).batch(0)["label_a"].is_meta


def test_maps_are_resized_without_new_values_and_none_is_255(pictures: Path) -> None:
    maps = [np.array([[0, 255], [40, 9]], np.uint8).repeat(20, axis=0).repeat(20, axis=1)[..., None]] * 4
    for index, pixels in enumerate(maps):
        save_picture(pictures / f"numbersA/{index}.png", Picture(pixels))
    said: list[str] = []
    config = {"labels_a": str(pictures / "numbersA"), "cache_dir": str(pictures / "cache")}
    data = _open(pictures, say=said.append, **config)
    assert "3 classes, numbers 0 9 40; 25.0% of pixels have none" in said[0]
    smaller = DataConfig(path=(str(pictures),), crop_size=24, load_size=28, flip=False, **config)  # pyright: ignore
    data = open_data(smaller, task=lambda name: lambda done, total: None, say=print)
    found = np.unique(np.concatenate([data.beside["label_a"].domain.image(n).ravel() for n in range(4)]))
    assert found.tolist() == [0, 9, 40, 255]
    batch = PairLoader(data.a, data.b, smaller, seed=0, device="cpu", beside=data.beside).batch(0)
    assert set(batch["label_a"].unique().tolist()) == {-1, 0, 1, 2}


def test_a_picture_without_a_map_has_no_classes_and_is_counted(pictures: Path) -> None:
    (pictures / "coloursA/2.png").unlink()
    said: list[str] = []
    data = _open(pictures, say=said.append, labels_a=str(pictures / "coloursA"))
    assert "has none for 1 of 4 pictures, which may change their classes, for example 2.png" in said[0]
    loader = PairLoader(
        data.a, data.b, DataConfig(crop_size=32, load_size=40), seed=0, device="cpu", beside=data.beside
    )
    for position in range(4):
        lacking = data.a.names[int(loader.plan(position).A[0, 0])] == "2.png"
        assert bool((loader.batch(position)["label_a"] == -1).all()) == lacking


def test_maps_that_do_not_fit_are_refused(pictures: Path) -> None:
    with pytest.raises(ValueError, match="these are no label maps, which have a few flat colours"):
        _open(pictures, labels_a=str(pictures / "trainB"))
    with pytest.raises(ValueError, match="give label maps of one kind"):
        _open(pictures, labels_a=str(pictures / "coloursA"), labels_b=str(pictures / "numbersB"))
    save_picture(pictures / "numbersA/1.png", Picture(np.full((40, 40, 1), 33001, np.uint16)))
    with pytest.raises(ValueError, match=r"numbers from 0 to 33001 are no classes: give maps of 2 to 255 numbers"):
        _open(pictures, labels_a=str(pictures / "numbersA"))
    with pytest.raises(ValueError, match=re.escape("data.labels_a=x is not for method=onepair: set method=cyclegan")):
        Config().change(data={"labels_a": "x"}, method="onepair")
    config = Config().change(data={"channels_a": 1})
    with pytest.raises(ValueError, match="segmenter sees pictures of both domains, but A has 1 channel and B 3"):
        build_roles(config.method, config.spec, seed=0, colours=torch.zeros(2, 3))


def test_classes_that_one_domain_lacks_are_said(pictures: Path) -> None:
    asked = {f"labels_{letter}": str(pictures / f"numbers{letter.upper()}") for letter in "ab"}
    said: list[str] = []
    _open(pictures, say=said.append, **asked)
    assert not [line for line in said if "are the classes of both domains the same?" in line]
    for name in (pictures / "numbersB").iterdir():
        save_picture(name, Picture(np.full((40, 40, 1), 9, np.uint8)))
    _open(pictures, say=said.append, **asked)
    asking = [line for line in said if "are the classes of both domains the same?" in line]
    assert [line.split(":")[0] for line in asking] == ["labels A", "labels B"]
    assert ("is of class 9:" in asking[0], "is of class 0 7 26:" in asking[1]) == (True, True)


def test_maps_that_have_changed_are_noticed_when_a_run_goes_on(pictures: Path) -> None:
    asked: dict[str, Any] = {f"labels_{letter}": str(pictures / f"numbers{letter.upper()}") for letter in "ab"}
    data = _open(pictures, **asked)
    record = new_record({}, data)
    assert changed_domains(record, data) == []
    shutil.copy(pictures / "numbersB/1.png", pictures / "numbersB/0.png")
    assert changed_domains(record, _open(pictures, **asked)) == ["B (label)"]


def test_only_what_the_segmenter_knows_counts() -> None:
    odds = torch.tensor([[0.95, 0.05], [0.04, 0.96], [0.6, 0.4], [0.99, 0.01]])
    logits = odds.log().T[None, :, None]  # (1, 2, 1, 4)
    told, sure = known(logits, None)
    assert told.tolist() == [[[0, 1, 0, 0]]]
    torch.testing.assert_close(sure, torch.tensor([[[0.95, 0.96, 0.0, 0.99]]]))
    labels = torch.tensor([[[0, 0, 1, -1]]])
    classes, right = known(logits, labels)
    assert classes is labels
    torch.testing.assert_close(right, torch.tensor([[[0.95, 0.04, 0.4, 0.0]]]))
    assert wrong_classes(logits, labels, torch.zeros(1, 1, 4)).item() == 0
    expected = nn.functional.cross_entropy(logits, told)
    torch.testing.assert_close(wrong_classes(logits, told, torch.ones(1, 1, 4)), expected)


class _Inner:
    """An objective of one phase, whose translation is its input turned by a network."""

    def __init__(self) -> None:
        self.draws: Mapping[str, int] = {"train": 0}
        self.state = nn.Module()

    def phases(self) -> list[Phase]:
        def loss(nets: dict[str, nn.Module], batch: dict[str, Tensor], carry: object) -> Out:
            fake = nets["G_A"](batch["A"])
            return Out(total=fake.mean() * 0, terms={}, carry={"fake_b": fake})

        return [Phase(name="generator", trains=("G_A",), loss=loss)]  # pyright: ignore[reportArgumentType]


def test_the_loss_is_that_of_the_parts_of_a_batch_and_falls_as_classes_return() -> None:
    torch.manual_seed(0)
    objective = WithClasses(_Inner(), lambda carry: {"a2b": carry["fake_b"]}, name="generator")
    learn, generator = objective.phases()
    segmenter = build_network({"network": "segmenter", "in_channels": 3, "classes": 3, "channels": 8})
    nets = {SEGMENTER: segmenter, "G_A": nn.Conv2d(3, 3, 1)}
    labels = torch.randint(0, 3, (4, 4, 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    images = _levels(labels)[:, None].repeat(1, 3, 1, 1)
    batch = {"A": images, "B": images, "label_a": labels}
    optimizer = torch.optim.Adam(segmenter.parameters(), lr=1e-2)
    assert generator.loss(nets, batch, {}).terms["classes_a"].item() < 1.2  # little is known yet
    for _ in range(40):
        optimizer.zero_grad()
        out = learn.loss(nets, batch, {})
        out.total.backward()
        optimizer.step()
    assert out.terms["right_a"] > 0.95
    half = torch.where(torch.arange(16) < 8, labels, -1)  # without a class, and neither right nor wrong
    assert learn.loss(nets, {**batch, "label_a": half}, {}).terms["right_a"] > 0.9
    with torch.no_grad():
        whole = generator.loss(nets, batch, {}).total
        halves = [generator.loss(nets, {n: v[i : i + 2] for n, v in batch.items()}, {}).total for i in (0, 2)]
        torch.testing.assert_close(whole, torch.stack(halves).mean())
        nets["G_A"] = nn.Identity()
        assert generator.loss(nets, batch, {}).total < 0.5 * whole


def test_a_run_with_labels_keeps_its_segmenter_apart_from_its_generators(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    labels = {f"labels_{letter}": str(pictures / f"colours{letter.upper()}") for letter in "ab"}
    config = tiny_config(
        data={"path": (str(pictures),), "validation": 0, **labels},
        train={"length": "2 images"},
        optimizer={"rules": ("S:lr=1e-3",)},
    )
    with Display() as display:
        train(config, tmp_path / "run", display=display, origin={})
    told = (tmp_path / "run/stats.jsonl").read_text()
    for name in ("segmenter/classes_a", "segmenter/right_b", "generator/classes_a", "generator/classes_b"):
        assert name in told
    last = list_checkpoints(tmp_path / "run")[-1]
    header, weights = load_weights(last / "S.safetensors")
    assert header["colours"] == [[0, 0, 0], [20, 200, 250], [250, 20, 30]]
    build_network(header).load_state_dict(weights)
    for name in ("G_A", "G_B.ema"):
        header, weights = load_weights(last / f"{name}.safetensors")
        build_network(header).load_state_dict(weights)


def test_one_labelled_domain_suffices_and_a_one_sided_method_takes_it(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    of = {"path": (str(pictures),), "validation": 0, "labels_b": str(pictures / "numbersB")}
    config = tiny_config(method="contrast", data=of, train={"length": "2 images"})
    with Display() as display:
        train(config, tmp_path / "run", display=display, origin={})
    told = (tmp_path / "run/stats.jsonl").read_text()
    assert "generator/classes_a" in told
    assert "segmenter/classes_b" in told


def test_a_number_is_that_of_the_file_where_a_tag_says_that_it_means_no_data(pictures: Path) -> None:
    pixels = np.array([[1, 255], [6, 1]], np.uint8).repeat(20, axis=0).repeat(20, axis=1)[..., None]
    for index in range(4):
        (pictures / f"numbersA/{index}.png").unlink()
        save_picture(
            pictures / f"numbersA/{index}.tif", Picture(pixels, metadata=FileMetadata(geography=Geography(nodata=255)))
        )
    said: list[str] = []
    _open(pictures, say=said.append, labels_a=str(pictures / "numbersA"))
    assert said[0] == "labels: 2 classes, numbers 1 6; 25.0% of pixels have none"
