"""Translations composed with their inputs by masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from velogan.cli import main
from velogan.data.pictures.images import Picture, read_picture, save_picture
from velogan.data.sets.sources import list_images
from velogan.translate import jobs
from velogan.translate.files import translate
from velogan.translate.masking import MaskSide, composite
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions

from ..models import Negative, in_memory


def _model(**formats: Any) -> Translator:
    return in_memory(Negative(), **formats)


def _save(path: Path, *shape: int, seed: int = 0, dtype: type = np.uint8) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_picture(path, Picture(pixels))
    return pixels


def _half(path: Path, height: int, width: int) -> None:
    """A mask that is white in its left half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((height, width, 1), np.uint8)
    pixels[:, : width // 2] = 255
    save_picture(path, Picture(pixels))


@pytest.mark.parametrize("tile", [None, 24], ids=["whole", "tiles"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("keep", ["outside", "inside"])
def test_keeps_masked_pixels_of_the_input(tmp_path: Path, keep: MaskSide, dtype: type, tile: int | None):
    names = ("one.png", "deep/two.png")
    given = {name: _save(tmp_path / "in" / name, 50, 44, 3, seed=n, dtype=dtype) for n, name in enumerate(names)}
    for name in given:
        _half((tmp_path / "masks" / name).with_suffix(".bmp"), 50, 44)
    done = translate(
        _model(),
        tmp_path / "in",
        tmp_path / "out",
        TranslateOptions(tile=tile, masks=tmp_path / "masks", masks_keep=keep),
    )
    assert (done.translated, done.tiled, done.failed) == (2, 2 if tile else 0, ())
    changed = np.s_[:, :22] if keep == "outside" else np.s_[:, 22:]
    for name, pixels in given.items():
        expected = pixels.copy()
        expected[changed] = np.iinfo(dtype).max - pixels[changed]
        np.testing.assert_array_equal(read_picture(tmp_path / "out" / name).pixels, expected)


def test_grey_of_a_mask_mixes() -> None:
    translated, given = np.full((1, 3, 1), 200, np.uint8), np.full((1, 3, 1), 100, np.uint8)
    mask = np.array([0, 51, 255], np.uint8).reshape(1, 3, 1)
    assert composite(translated, given, mask).ravel().tolist() == [100, 120, 200]


@pytest.mark.parametrize("masks", ["masks", "masks/horse.png"], ids=["folder", "file"])
def test_masks_a_grey_picture_of_a_colour_model(tmp_path: Path, masks: str) -> None:
    pixels = _save(tmp_path / "horse.png", 20, 20, 1)
    _half(tmp_path / "masks/horse.png", 20, 20)
    translate(_model(), tmp_path / "horse.png", tmp_path / "out.png", TranslateOptions(masks=tmp_path / masks))
    result = read_picture(tmp_path / "out.png").pixels
    np.testing.assert_array_equal(result[:, 10:], pixels[:, 10:].repeat(3, axis=2))
    np.testing.assert_array_equal(result[:, :10], 255 - pixels[:, :10].repeat(3, axis=2))


def test_rejects_missing_masks_before_writing(tmp_path: Path) -> None:
    for number in range(3):
        _save(tmp_path / "in" / f"{number}.png", 20, 20, 3)
    _half(tmp_path / "masks/1.png", 20, 20)
    with pytest.raises(ValueError, match=r"masks=.*: no mask for 2 of 3 pictures, for example 0\.png; add"):
        translate(_model(), tmp_path / "in", tmp_path / "out", TranslateOptions(masks=tmp_path / "masks"))
    with pytest.raises(ValueError, match=r"masks=.*nowhere: no such folder"):
        translate(_model(), tmp_path / "in", tmp_path / "out", TranslateOptions(masks=tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"1\.png: a file, but input .* is a folder"):
        translate(_model(), tmp_path / "in", tmp_path / "out", TranslateOptions(masks=tmp_path / "masks/1.png"))
    assert not (tmp_path / "out").exists()


def test_reports_masks_without_a_picture_and_formats_that_change_masked_pixels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[Path] = []
    monkeypatch.setattr(jobs, "list_images", lambda folder: listed.append(folder) or list_images(folder))
    for name in ("1.png", "2.jpg"):
        _save(tmp_path / "in" / name, 20, 20, 3)
    for name in ("1.png", "2.png", "3.bmp"):
        _half(tmp_path / "masks" / name, 20, 20)
    command = ["translate", "apples2oranges", str(tmp_path / "in"), str(tmp_path / "out")]
    masks, png = ["--masks", str(tmp_path / "masks")], ["--format", "png", "--overwrite"]
    for more, is_lossy in ((masks, True), (masks + png, False)):
        assert main([*command, *more]) == 0
        output = capsys.readouterr().err
        assert f"skipped in {tmp_path / 'masks'}, since no picture has their name: 1, for" in output
        assert ("1 of 2 written as JPEG or WebP, which change all pixels a little" in output) == is_lossy
    assert listed == [tmp_path / "in"] * 2


def test_reports_masks_that_do_not_fit(tmp_path: Path) -> None:
    _half(tmp_path / "half.png", 20, 20)
    half = read_picture(tmp_path / "half.png").pixels
    colour = half.repeat(3, axis=2)
    masks = {
        "a.png": (Picture(half[:, :10]), "is 10x20 pixels, but the picture 20x20: use equal sizes"),
        "b.png": (None, "not a picture that can be read"),
        "c.tiff": (Picture(np.zeros((20, 20, 1), np.float32)), "has floating-point"),
        "d.png": (Picture(half), ""),
        "e.png": (Picture(half // 255), "has no pixel above 1, and white is 255: save it with 0 and 255"),
        "f.png": (Picture(np.full_like(colour, 255), half[..., 0]), "has transparency: save it in black and white"),
        "g.png": (Picture(colour * np.array([1, 0, 0], np.uint8)), "has colours: save it in black and white"),
        "h.png": (Picture((half // 255).astype(np.uint16) * 255), "has no pixel above 255, and white is 65535"),
        "i.png": (Picture(np.zeros_like(half)), ""),
    }
    (tmp_path / "masks").mkdir()
    for name, (mask, _) in masks.items():
        _save((tmp_path / "in" / name).with_suffix(".png"), 20, 20, 3)
        save_picture(tmp_path / "masks" / name, mask) if mask else (tmp_path / "masks" / name).write_bytes(b"no")
    done = translate(_model(), tmp_path / "in", tmp_path / "out", TranslateOptions(masks=tmp_path / "masks"))
    reasons = dict(done.failed)
    assert done.translated == 2
    for name, (_, reason) in masks.items():
        failure = reasons.get(f"{name[0]}.png", "")
        assert reason in failure
        assert failure.startswith(f"its mask {tmp_path / 'masks' / name}") == bool(reason)


def test_rejects_two_masks_of_one_picture(tmp_path: Path) -> None:
    _save(tmp_path / "in/a.png", 20, 20, 3)
    for name in ("a.png", "a.bmp"):
        _half(tmp_path / "masks" / name, 20, 20)
    with pytest.raises(ValueError, match=r"masks holds both a\.bmp and a\.png, for one picture: keep one of them"):
        translate(_model(), tmp_path / "in", tmp_path / "out", TranslateOptions(masks=tmp_path / "masks"))


@pytest.mark.parametrize("output", [{"channels": 3, "range": (0, 100)}, {"channels": 1}])
def test_reports_masks_of_translations_with_another_format(tmp_path: Path, output: dict[str, object]):
    _save(tmp_path / "in.png", 20, 20, 3)
    _half(tmp_path / "mask.png", 20, 20)
    done = translate(
        _model(input={"channels": 3}, output=output),
        tmp_path / "in.png",
        tmp_path / "out",
        TranslateOptions(masks=tmp_path / "mask.png"),
    )
    assert [reason for _, reason in done.failed] == [
        "its mask cannot be applied: the translation has another type, channels or range; leave masks out"
    ]


def test_rejects_masks_of_films_scans_and_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    with pytest.raises(ValueError, match=r"masks=.*: for pictures only, but .*film\.mp4 is a film; leave masks out"):
        translate(_model(), tmp_path / "film.mp4", tmp_path / "out.mp4", TranslateOptions(masks=tmp_path))
    (tmp_path / "scan.dcm").write_bytes(b"\0" * 128 + b"DICM")
    with pytest.raises(ValueError, match=r"masks=.*: for pictures only, but scan\.dcm is a scan; leave masks out"):
        translate(_model(), tmp_path / "scan.dcm", tmp_path / "out", TranslateOptions(masks=tmp_path))
    command = ["translate", "apples2oranges", str(tmp_path), str(tmp_path / "out")]
    assert main([*command, "--workers", "2", "--masks", str(tmp_path)]) == 2
    assert "--masks cannot be combined with --workers 2" in capsys.readouterr().err
    assert main([*command, "--masks-keep", "inside"]) == 2
    assert "masks_keep=inside: there are no masks; add masks (--masks DIR)" in capsys.readouterr().err


def test_black_of_a_mask_stays_black_if_its_tag_means_no_data(tmp_path: Path) -> None:
    given = _save(tmp_path / "in.png", 20, 20, 3)
    _half(tmp_path / "mask.tif", 20, 20)
    tag: Any = (42113, "s", 0, "0", True)
    tifffile.imwrite(tmp_path / "mask.tif", tifffile.imread(tmp_path / "mask.tif"), extratags=[tag])
    translate(_model(), tmp_path / "in.png", tmp_path / "out.png", TranslateOptions(masks=tmp_path / "mask.tif"))
    np.testing.assert_array_equal(read_picture(tmp_path / "out.png").pixels[:, 10:], given[:, 10:])
