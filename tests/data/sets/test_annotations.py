"""Masks and label maps: found by the names of pictures, checked, and cropped and flipped with them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from velogan.cli import main
from velogan.config import Config
from velogan.data.config import DataConfig
from velogan.data.pictures.geography import Geography
from velogan.data.pictures.images import Picture, read_picture, save_picture
from velogan.data.pictures.metadata import FileMetadata
from velogan.data.sets.annotations import Labels
from velogan.data.sets.loader import PairLoader
from velogan.data.sets.pair import TrainingData, open_data
from velogan.training.build import build_roles
from velogan.training.record import create_record, find_changed_domains

LEVELS = np.array([40, 120, 200], np.uint8)
KINDS = {
    "mask": np.array([[0], [0], [255]], np.uint8),
    "colours": np.array([[0, 0, 0], [250, 20, 30], [20, 200, 250]], np.uint8),
    "numbers": np.array([[0], [7], [26]], np.uint8),
}
"""What stands in the annotations of each kind for the three levels of grey of the pictures."""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four pictures of squares in A and B, in three levels of grey, and their annotations of each kind."""
    for index in range(4):
        for letter in "AB":
            classes = np.random.default_rng([index, ord(letter)]).integers(0, 3, (4, 4)).repeat(10, 0).repeat(10, 1)
            folders = {f"train{letter}": LEVELS[classes][..., None].repeat(3, axis=2)}
            for folder, pixels in (folders | {f"{kind}{letter}": KINDS[kind][classes] for kind in KINDS}).items():
                (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
                save_picture(tmp_path / "set" / folder / f"{index}.png", Picture(pixels))
    return tmp_path / "set"


def config(pictures: Path, **fields: Any) -> DataConfig:
    named = {name: str(pictures / value) for name, value in fields.items() if name.startswith(("masks_a", "labels_"))}
    return DataConfig.model_validate({"path": (str(pictures),), "crop_size": 32, "load_size": 40} | fields | named)


def read(settings: DataConfig) -> tuple[TrainingData, list[str]]:
    lines: list[str] = []
    return open_data(settings, task=lambda name: lambda done, total: None, print_line=lines.append), lines


def loader(data: TrainingData, settings: DataConfig, *, device: str = "cpu") -> PairLoader:
    return PairLoader(data.a, data.b, settings, seed=0, device=device, annotations=data.annotations)


@pytest.mark.parametrize("keep", ["outside", "inside"])
def test_a_mask_is_cropped_and_flipped_with_its_image(pictures: Path, keep: str) -> None:
    settings = config(pictures, masks_a="maskA", masks_keep=keep, rotate90=True, flip_vertical=True, batch_size=2)
    data, lines = read(settings)
    colour = "black" if keep == "outside" else "white"
    assert f"domain A: 4 masks: what is {colour} there stays as it is" in lines
    plain = PairLoader(data.a, data.b, settings, seed=0, device="cpu")
    for position in range(0, 16, 2):
        batch = loader(data, settings).batch(position)
        assert batch.keys() == {"A", "B", "mask_a"}
        bright = batch["A"][:, :1] > 0.5
        torch.testing.assert_close(batch["mask_a"], (bright if keep == "outside" else ~bright).float())
        assert all(torch.equal(batch[letter], plain.batch(position)[letter]) for letter in "AB")


@pytest.mark.parametrize(
    ("kind", "shown"), [("colours", "colours #000000 #14c8fa #fa141e"), ("numbers", "numbers 0 7 26")]
)
def test_classes_are_cropped_and_flipped_with_their_image(pictures: Path, kind: str, shown: str) -> None:
    settings = config(pictures, labels_a=f"{kind}A", rotate90=True, flip_vertical=True, batch_size=2)
    data, lines = read(settings)
    assert lines == [f"labels: 3 classes, {shown}; 0.0% of pixels have none"]
    order = torch.tensor([0, 2, 1]) if kind == "colours" else torch.arange(3)
    for position in range(0, 8, 2):
        batch = loader(data, settings).batch(position)
        classes = order[batch["label_a"]]
        torch.testing.assert_close(batch["A"][:, 0], torch.tensor(LEVELS)[classes] / 127.5 - 1)


@pytest.mark.parametrize(
    ("field", "kind", "absent"),
    [("masks", "mask", 1), ("labels", "numbers", -1), ("labels", "colours", -1)],
)
def test_reports_pictures_without_an_annotation(pictures: Path, field: str, kind: str, absent: int) -> None:
    (pictures / f"{kind}A/2.png").unlink()
    shutil.copy(pictures / f"{kind}A/1.png", pictures / f"{kind}A/other.png")
    settings = config(pictures, **{f"{field}_a": f"{kind}A"}, batch_size=2)
    data, lines = read(settings)
    assert re.search("none for 1 of 4 pictures, which may change .*, for example 2.png", "\n".join(lines))
    assert [line for line in lines if line.endswith("since no picture has their name: 1, for example other.png")]
    crops, lacking = loader(data, settings), data.a.names.index("2.png")
    seen = set()
    for position in range(0, 8, 2):
        annotations = crops.batch(position)[f"{field[:-1]}_a"]
        for index, annotation in zip(crops.plan(position).A[:, 0].tolist(), annotations):
            seen.add(index)
            assert bool((annotation == absent).all()) == (index == lacking)
    assert lacking in seen


def test_class_colours_are_on_the_device(pictures: Path) -> None:
    settings = config(pictures, labels_a="coloursA")
    made = loader(read(settings)[0], settings, device="meta")
    labels = made.annotations["label_a"]
    assert isinstance(labels, Labels)
    assert labels.colours.is_meta  # a captured step can copy nothing from the host
    assert made.random_half(0).batch(0)["label_a"].is_meta


def test_reports_classes_that_one_domain_lacks(pictures: Path) -> None:
    for index in range(4):
        for letter, number in (("A", 3), ("B", 5)):
            pixels = np.full((40, 40, 1), number, np.uint8)
            pixels[:20] = 1
            save_picture(pictures / f"numbers{letter}/{index}.png", Picture(pixels))
    _, lines = read(config(pictures, labels_a="numbersA", labels_b="numbersB"))
    assert [line.partition(":")[0] for line in lines] == ["labels", "labels A", "labels B"]
    assert "no sampled pixel is of class 5: do A and B have the same classes?" in lines[1]
    assert "is of class 3:" in lines[2]


def test_maps_are_resized_without_new_values_and_255_is_no_class(pictures: Path) -> None:
    pixels = np.array([[0, 255], [40, 9]], np.uint8).repeat(20, axis=0).repeat(20, axis=1)[..., None]
    for index in range(4):
        save_picture(pictures / f"numbersA/{index}.png", Picture(pixels))
    settings = config(pictures, labels_a="numbersA", crop_size=24, load_size=28, flip=False)
    data, lines = read(settings)
    assert "3 classes, numbers 0 9 40; 25.0% of pixels have none" in lines[0]
    found = np.unique(np.concatenate([data.annotations["label_a"].domain.image(n).ravel() for n in range(4)]))
    assert found.tolist() == [0, 9, 40, 255]
    assert set(loader(data, settings).batch(0)["label_a"].unique().tolist()) == {-1, 0, 1, 2}


def test_annotations_ignore_nodata_tags(pictures: Path) -> None:
    before = read(config(pictures, masks_a="maskA", labels_a="numbersA"))[0]
    for kind in ("mask", "numbers"):
        for index in range(4):
            path = pictures / f"{kind}A/{index}.png"
            picture = Picture(read_picture(path).pixels[..., :1], metadata=FileMetadata(geography=Geography(nodata=0)))
            path.unlink()
            save_picture(path.with_suffix(".tif"), picture)
    after = read(config(pictures, masks_a="maskA", labels_a="numbersA"))[0]
    for name, one in after.annotations.items():
        for index in range(4):
            np.testing.assert_array_equal(one.domain.image(index), before.annotations[name].domain.image(index))


def _grey(folder: Path, name: str, pixels: np.ndarray) -> None:
    save_picture(folder / name, Picture(pixels[..., None]))


def _wide(folder: Path) -> None:
    _grey(folder, "2.png", np.zeros((20, 40), np.uint8))


def _small(folder: Path) -> None:
    _grey(folder, "2.png", np.zeros((21, 21), np.uint8))


def _broken(folder: Path) -> None:
    (folder / "2.png").write_bytes(b"not a picture")


def _twice(folder: Path) -> None:
    _grey(folder, "1.bmp", np.zeros((40, 40), np.uint8))


def _renamed(folder: Path) -> None:
    for path in folder.iterdir():
        path.rename(path.with_name(f"other-{path.name}"))


def _dark(folder: Path) -> None:
    for path in folder.iterdir():
        _grey(folder, path.name, (read_picture(path).pixels[..., 0] > 0).astype(np.uint16))


def _noisy(folder: Path) -> None:
    for number, path in enumerate(folder.iterdir()):
        save_picture(path, Picture(np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)))


def _large_numbers(folder: Path) -> None:
    _grey(folder, "1.png", np.full((40, 40), 33001, np.uint16))


@pytest.mark.parametrize(
    ("spoil", "fields", "message"),
    [
        (_wide, {"masks_a": "maskA"}, "2.png has 40x20 pixels, but 2.png has 40x40"),
        (
            _small,
            {"masks_a": "maskA", "preprocess": "none"},
            "the file for 2.png has 20x20 pixels, but the picture has 40",
        ),
        (_broken, {"masks_a": "maskA"}, "2.png"),
        (_twice, {"masks_a": "maskA"}, "holds both 1.bmp and 1.png"),
        (_renamed, {"masks_a": "maskA"}, "holds no masks named like a picture"),
        (shutil.rmtree, {"masks_a": "maskA"}, "is not a folder"),
        (_dark, {"masks_a": "maskA"}, "the brightest pixel of all masks is 1, and white is 65535"),
        (_large_numbers, {"labels_a": "numbersA"}, "numbers from 0 to 33001 are not classes"),
        (_noisy, {"labels_a": "coloursA"}, "these are not label maps"),
        (None, {"labels_a": "coloursA", "labels_b": "numbersB"}, "give label maps of one kind"),
    ],
)
def test_rejects_annotations_that_do_not_fit(
    pictures: Path, spoil: Callable[[Path], None] | None, fields: dict[str, str], message: str
) -> None:
    if spoil:
        spoil(pictures / next(iter(fields.values())))
    with pytest.raises(ValueError, match=re.escape(message)):
        read(config(pictures, **fields))


def test_a_smaller_mask_of_the_same_shape_fits(pictures: Path) -> None:
    _small(pictures / "maskA")
    assert len(read(config(pictures, masks_a="maskA"))[0].annotations["mask_a"].domain) == 4


def test_rejects_a_missing_folder_before_images_are_prepared(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["train", "cyclegan", "--data", str(pictures), "--data.masks-a", str(pictures / "none"), "--images", "1"]
    assert main([*settings, "--data.cache-dir", str(pictures / "cache"), "--dry-run"]) == 2
    assert "none is not a folder" in capsys.readouterr().err
    with pytest.raises(ValueError, match="none is not a folder"):
        read(config(pictures, masks_a="none", cache_dir=str(pictures / "cache")))
    assert not (pictures / "cache/prepared").exists(), "pictures were prepared for nothing"


def test_rejects_annotations_that_methods_and_networks_do_not_support() -> None:
    with pytest.raises(ValueError, match="masks_keep=inside"):
        DataConfig(masks_keep="inside")
    for field in ("masks_a", "labels_a"):
        with pytest.raises(ValueError, match=re.escape(f"data.{field}=x is not supported by method=onepair")):
            Config().change(data={field: "x"}, method="onepair")
    settings = Config().change(data={"channels_a": 1})
    with pytest.raises(
        ValueError, match="segmenter gets images of both domains, but images of A have 1 and those of B 3 channels"
    ):
        build_roles(settings.method, settings.spec, seed=0, colours=torch.zeros(2, 3))


def test_changed_annotations_are_recognised_on_resume(pictures: Path) -> None:
    settings = config(pictures, masks_a="maskA", labels_b="numbersB")
    data, _ = read(settings)
    record = create_record({}, data)
    assert find_changed_domains(record, data) == []
    shutil.copy(pictures / "numbersB/1.png", pictures / "numbersB/0.png")
    assert find_changed_domains(record, read(settings)[0]) == ["B (label)"]
