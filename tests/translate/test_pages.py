"""TIFF files of several pages that say nothing of them: refused, until a flag says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

import velogan
from velogan.cli import main
from velogan.data.config import DataConfig
from velogan.data.sets.sources import find_sources
from velogan.translate.files import translate
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions

from ..models import Negative, in_memory

STACK = np.random.default_rng(0).integers(0, 256, (3, 16, 24), dtype=np.uint8)
FEW = ["--image-size", "32", "--generator.channels", "2", "--generator.blocks", "1", "--discriminator.channels", "2"]
FEW += ["--train.samples", "2", "--train.logger", "none", "--engine.precision", "fp32", "--images", "1"]


def _model(channels: int, pages: str | None = None) -> Translator:
    form = {"channels": channels, "dtype": "uint8", "pages": pages}
    return in_memory(Negative(), input=form, output=form)


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in/a.tif", STACK, photometric="minisblack", metadata=None, resolution=(30, 20))
    return tmp_path / "in/a.tif"


@pytest.mark.parametrize("channels", [1, 3])
def test_reports_ambiguous_pages_with_the_flag(stack: Path, tmp_path: Path, channels: int) -> None:
    ((_, reason),) = translate(_model(channels), stack, tmp_path / "out").failed
    assert "--pages slices" in reason
    assert "--pages channels" in reason


def test_translations_avoid_the_value_that_means_no_data(tmp_path: Path) -> None:
    pixels = np.full((16, 24, 3), 255, np.uint8)
    pixels[:4] = 0
    tag: Any = (42113, "s", 0, "0", True)
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in/a.tif", pixels, photometric="rgb", metadata=None, extratags=[tag])
    translate(_model(3), tmp_path / "in", tmp_path / "out")
    made = tifffile.imread(tmp_path / "out/a.tif")
    assert (made[:4] == 0).all()
    assert (made[4:] == 1).all()  # of 255, by a negative


@pytest.mark.parametrize("pages", [None, "slices"])
def test_reports_slices_of_several_channels(tmp_path: Path, pages: str | None) -> None:
    (tmp_path / "in").mkdir()
    values = np.zeros((3, 2, 16, 24), np.uint8)
    tifffile.imwrite(tmp_path / "in/a.ome.tif", values, photometric="minisblack", metadata={"axes": "ZCYX"})
    ((_, reason),) = translate(_model(1, pages), tmp_path / "in", tmp_path / "out").failed
    assert "save each channel" in reason


def test_pages_are_channels(stack: Path, tmp_path: Path) -> None:
    done = translate(_model(3, "channels"), stack, tmp_path / "out")
    assert (done.translated, done.failed) == (1, ())
    assert np.array_equal(tifffile.imread(tmp_path / "out/a.tif"), 255 - np.moveaxis(STACK, 0, -1))


@pytest.mark.parametrize("named", ["in", "in/a.tif"])
def test_pages_are_slices(stack: Path, tmp_path: Path, named: str) -> None:
    done = translate(_model(3, "slices"), tmp_path / named, tmp_path / "out")
    assert (done.translated, done.failed) == (1, ())
    with tifffile.TiffFile(tmp_path / "out/a.tif") as file:
        assert len(file.pages) == 3
        first = file.pages.first
        assert file.series[0].axes == "ZYXS"
        assert [first.tags[tag].value for tag in (282, 283)] == [(30, 1), (20, 1)]
    written = tifffile.imread(tmp_path / "out/a.tif")
    assert np.abs(written[..., 0].astype(int) - (255 - STACK)).max() <= 1
    ((_, reason),) = translate(_model(1), tmp_path / "out/a.tif", tmp_path / "again").failed
    assert "colour pages" in reason


def test_grey_slices_stay_grey_slices(stack: Path, tmp_path: Path) -> None:
    for name in ("out", "again"):
        assert translate(_model(1, "slices"), stack, tmp_path / name).failed == ()
        stack = tmp_path / name / "a.tif"
    assert np.array_equal(tifffile.imread(stack), STACK)
    asked: list[tuple[str, dict[str, Any]]] = [("x", {"format": "png"}), ("x.nii", {})]
    for target, more in asked:
        with pytest.raises(ValueError, match="a stack of slices"):
            translate(_model(1, "slices"), stack, tmp_path / target, TranslateOptions(**more))
    ((_, reason),) = translate(_model(1), stack, tmp_path / "more").failed
    assert "slices" in reason


def test_training_reads_pages_by_the_same_flag(stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b").mkdir()
    tifffile.imwrite(tmp_path / "b/b.tif", 255 - STACK, photometric="minisblack", metadata=None)
    folders = (str(stack.parent), str(tmp_path / "b"))
    sources = find_sources(DataConfig(path=folders, pages="channels", validation=0))
    assert sources.a.train.read("a.tif").pixels.shape == (16, 24, 3)
    sources = find_sources(DataConfig(path=folders, pages="slices", range_a=(0, 255), range_b=(0, 255), validation=0))
    assert list(sources.a.train.names) == [f"a.tif#{number:04d}" for number in range(3)]
    assert np.array_equal(sources.a.train.read("a.tif#0001").pixels[..., 0], STACK[1])
    (tmp_path / "b/c.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ValueError, match=r"data.pages=slices is for folders of TIFF files, .* for example c.png"):
        find_sources(DataConfig(path=folders, pages="slices"))
    for flag in (["--workers", "2"], ["--uncertainty"]):
        assert main(["translate", "apples2oranges", *folders, *flag, "--pages", "slices"]) == 2
        assert "TIFF pages that are slices" in capsys.readouterr().err


def test_a_run_remembers_its_pages_in_translation_and_evaluation_unless_overruled(stack: Path, tmp_path: Path) -> None:
    for name in ("trainA", "trainB", "testA", "testB"):
        (tmp_path / "data" / name).mkdir(parents=True)
        tifffile.imwrite(tmp_path / "data" / name / "a.tif", STACK, photometric="minisblack", metadata=None)
    run, pages = tmp_path / "run", ["--data", str(tmp_path / "data"), "--data.pages", "channels"]
    assert main(["train", "cyclegan", *FEW, *pages, "--out", str(run)]) == 0
    assert main(["evaluate", str(run), "--features", "none", "--checkpoint", "last"]) == 0
    data = json.loads((run / "scores.json").read_text())["protocol"]["data"]
    assert [data[letter]["with_truth"] for letter in "ab"] == [1, 1]
    assert main(["translate", str(run), str(stack), str(tmp_path / "one"), "--uncertainty"]) == 0
    assert tifffile.imread(tmp_path / "one/a.tif").shape == (16, 24, 3)
    assert main(["translate", str(run), str(stack), str(tmp_path / "other"), "--pages", "slices"]) == 0
    assert tifffile.imread(tmp_path / "other/a.tif").shape == (3, 16, 24, 3)
    velogan.load(run).save_pretrained(tmp_path / "hub")
    assert velogan.load(tmp_path / "hub").translate_files(stack, tmp_path / "api").failed == ()
