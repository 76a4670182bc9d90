"""What masks say must be kept: a mask for each picture, cropped with it, and a loss on what changes outside."""

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
from velogan.data.sets.loader import PairLoader
from velogan.data.sets.pair import Data, open_data
from velogan.objectives.masks import changed_outside
from velogan.observe.progress import Display
from velogan.training.run import train


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four pictures in A and B; the masks of A say where a picture is bright."""
    for index in range(4):
        for letter in "AB":
            pixels = np.random.default_rng([index, ord(letter)]).integers(0, 2, (40, 40, 1), np.uint8) * 255
            for folder, kept in ((f"train{letter}", pixels.repeat(3, axis=2)), (f"mask{letter}", pixels)):
                (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
                save_picture(tmp_path / "set" / folder / f"{index}.png", Picture(kept))
    return tmp_path / "set"


def _open(pictures: Path, *, say: Callable[[str], None] = print, **more: object) -> Data:
    config = DataConfig(path=(str(pictures),), crop_size=32, load_size=40, masks_a=str(pictures / "maskA"), **more)  # pyright: ignore
    return open_data(config, task=lambda name: lambda done, total: None, say=say)


def test_a_mask_is_cropped_and_flipped_with_its_picture(pictures: Path) -> None:
    data = _open(pictures)
    config = DataConfig(crop_size=32, load_size=40, rotate90=True, flip_vertical=True, batch_size=2)
    loader = PairLoader(data.a, data.b, config, seed=0, device="cpu", beside=data.beside)
    plain = PairLoader(data.a, data.b, config, seed=0, device="cpu")
    for position in range(0, 16, 2):
        batch = loader.batch(position)
        assert batch.keys() == {"A", "B", "mask_a"}
        torch.testing.assert_close(batch["mask_a"], (batch["A"][:, :1] > 0).float())
        assert all(torch.equal(batch[letter], plain.batch(position)[letter]) for letter in "AB")


def test_changed_outside() -> None:
    given = torch.zeros(2, 3, 4, 4)
    made, mask = given.clone(), torch.zeros(2, 1, 4, 4)
    mask[:, :, :2] = 1
    made[:, :, :2] = 9.0
    assert changed_outside(made, given, mask).item() == 0
    made[0, :, 2:] = 0.5
    assert changed_outside(made, given, mask).item() == pytest.approx(0.25)
    assert changed_outside(made, given, torch.ones_like(mask)).item() == 0


def test_a_picture_without_a_mask_may_change_everywhere_and_is_counted(pictures: Path) -> None:
    (pictures / "maskA/2.png").unlink()
    said: list[str] = []
    data = _open(pictures, say=said.append)
    assert "none for 1 of 4 pictures, which may change everywhere, for example 2.png" in "".join(said)
    loader = PairLoader(
        data.a, data.b, DataConfig(crop_size=32, load_size=40), seed=0, device="cpu", beside=data.beside
    )
    for position in range(4):
        batch = loader.batch(position)
        free = data.a.names[int(loader.plan(position).A[0, 0])] == "2.png"
        bright = torch.ones(1, 1, 32, 32) if free else (batch["A"][:, :1] > 0).float()
        torch.testing.assert_close(batch["mask_a"], bright)


def test_what_is_inside_is_kept_where_that_is_asked_for(pictures: Path) -> None:
    said: list[str] = []
    _open(pictures, say=said.append)
    (pictures / "maskA/2.png").unlink()
    data = _open(pictures, say=said.append, masks_keep="inside")
    assert "domain A: 4 masks: what is black there stays as it is" in said
    assert "domain A: 3 masks: what is white there stays as it is" in said
    loader = PairLoader(
        data.a, data.b, DataConfig(crop_size=32, load_size=40), seed=0, device="cpu", beside=data.beside
    )
    for position in range(4):
        batch = loader.batch(position)
        free = data.a.names[int(loader.plan(position).A[0, 0])] == "2.png"
        dark = torch.ones(1, 1, 32, 32) if free else (batch["A"][:, :1] <= 0).float()
        torch.testing.assert_close(batch["mask_a"], dark)


def test_masks_that_do_not_fit_are_refused(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_picture(pictures / "maskA/2.png", Picture(np.zeros((20, 40, 1), np.uint8)))
    with pytest.raises(
        ValueError, match=r"data\.masks_a=.*: 2\.png has 40x20 pixels where 2\.png has 40x40, so it does"
    ):
        _open(pictures)
    save_picture(pictures / "maskA/2.png", Picture(np.zeros((21, 21, 1), np.uint8)))
    _open(pictures)
    with pytest.raises(ValueError, match=r"that of 2\.png is 20x20 pixels where its picture is 40x40"):
        _open(pictures, preprocess="none")
    (pictures / "maskA/2.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"data\.masks_a=.*2\.png.*mend them"):
        _open(pictures)
    for mask in (pictures / "maskA").iterdir():
        mask.rename(mask.with_name(f"other-{mask.name}"))
    fresh: dict[str, Any] = {"cache_dir": str(pictures / "cache")}
    with pytest.raises(ValueError, match=r"data\.masks_a=.* holds no masks with the name of a picture, as of 0\.png"):
        _open(pictures, **fresh)
    shutil.rmtree(pictures / "maskA")
    with pytest.raises(ValueError, match=r"data\.masks_a=.* is no folder"):
        _open(pictures, **fresh)
    asked = ["train", "cyclegan", "--data", str(pictures), "--data.masks-a", str(pictures / "maskA"), "--images", "1"]
    assert main([*asked, "--dry-run"]) == 2
    assert "maskA is no folder" in capsys.readouterr().err
    assert not (pictures / "cache/prepared").exists(), "pictures were prepared for nothing"


def test_masks_without_a_picture_are_counted(pictures: Path) -> None:
    shutil.copy(pictures / "maskA/1.png", pictures / "maskA/other.png")
    said: list[str] = []
    _open(pictures, say=said.append)
    (line,) = (one for one in said if "left out of" in one)
    assert line.endswith("maskA, since no picture has their name: 1, for example other.png")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_masks_without_white_are_refused(pictures: Path, dtype: type) -> None:
    for mask in (pictures / "maskA").iterdir():
        save_picture(mask, Picture((read_picture(mask).pixels > 0).astype(dtype)))
    white = np.iinfo(dtype).max
    with pytest.raises(ValueError, match=rf"data\.masks_a=.*: the brightest pixel .* is 1, and white is {white}: save"):
        _open(pictures)


def test_two_masks_of_one_picture_are_refused(pictures: Path) -> None:
    save_picture(pictures / "maskA/1.bmp", Picture(np.zeros((40, 40, 1), np.uint8)))
    with pytest.raises(ValueError, match=r"maskA holds both 1\.bmp and 1\.png, for one picture: leave one of them"):
        _open(pictures)


def test_what_masks_keep_is_asked_only_with_masks() -> None:
    with pytest.raises(ValueError, match="masks_keep=inside says what masks keep, and there are none: add masks_a"):
        DataConfig(masks_keep="inside")


def test_masks_are_for_methods_whose_translations_a_phase_hands_on() -> None:
    with pytest.raises(ValueError, match=re.escape("data.masks_a=x is not for method=onepair: set method=cyclegan")):
        Config().change(data={"masks_a": "x"}, method="onepair")


def test_a_one_sided_run_pays_for_what_it_changes(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    of = {"path": (str(pictures),), "validation": 0, "masks_a": str(pictures / "maskA")}
    config = tiny_config(method="contrast", data=of, train={"length": "2 images"})
    with Display() as display:
        train(config, tmp_path / "run", display=display, origin={})
    assert "generator/kept_a" in (tmp_path / "run/stats.jsonl").read_text()


def test_a_run_with_masks_is_continued_bit_for_bit(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    masks = {f"masks_{letter}": str(pictures / f"mask{letter.upper()}") for letter in "ab"}

    def finish(run: str, images: int, **data: object) -> str:
        of = {"path": (str(pictures),), "validation": 0, **data}
        config = tiny_config(data=of, train={"length": f"{images} images"}, schedule={"kind": "constant"})
        with Display() as display:
            return train(config, tmp_path / run, display=display, origin={}).weights_sha256

    unbroken = finish("unbroken", 6, **masks)
    finish("stopped", 3, **masks)
    assert finish("stopped", 6, **masks) == unbroken
    told = (tmp_path / "unbroken/stats.jsonl").read_text()
    assert "generator/kept_a" in told
    assert "generator/kept_b" in told
    assert finish("without", 6) != unbroken


def test_black_stays_black_where_a_tag_says_that_it_means_no_data(pictures: Path) -> None:
    domains = []
    for _ in range(2):
        domains.append(_open(pictures).beside["mask_a"].domain)
        for index in range(4):  # the same pixels, in a GeoTIFF
            pixels = read_picture(pictures / f"trainA/{index}.png").pixels[..., :1]
            (pictures / f"maskA/{index}.png").unlink(missing_ok=True)
            save_picture(
                pictures / f"maskA/{index}.tif", Picture(pixels, metadata=FileMetadata(geography=Geography(nodata=0)))
            )
    for index in range(4):
        np.testing.assert_array_equal(domains[1].image(index), domains[0].image(index))
