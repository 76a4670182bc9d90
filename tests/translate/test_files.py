from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from velogan.data.pictures.images import Picture, read_picture, save_picture
from velogan.kernels.inference import Accelerator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.translate.files import translate
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.summary import Summary

from ..models import Negative, in_memory


class CountingNegative(Negative):
    """Remembers the shapes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(tuple(x.shape))
        return super().forward(x)


@pytest.fixture
def model() -> Translator:
    return in_memory(CountingNegative())


def _picture(path: Path, *, size: tuple[int, int] = (20, 12), seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def test_keeps_tree_names_and_sizes(tmp_path: Path, model: Translator) -> None:
    sizes = {"one.png": (20, 12), "deep/two.png": (21, 13), "deep/er/three.bmp": (7, 40)}
    pictures = {name: _picture(tmp_path / "in" / name, size=size) for name, size in sizes.items()}
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    progress: list[tuple[int, int]] = []
    summary = translate(
        model, tmp_path / "in", tmp_path / "out", progress=lambda done, total: progress.append((done, total))
    )
    assert (summary.translated, summary.skipped, summary.failed) == (3, 0, ())
    for name, pixels in pictures.items():
        np.testing.assert_array_equal(_pixels(tmp_path / "out" / name), 255 - pixels)
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 3
    assert progress == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_batches_pictures_of_equal_size(tmp_path: Path, model: Translator) -> None:
    expected = {}
    for i in range(100):
        name, size = f"{i:03}.png", (16, 16) if i % 3 else (8, 16)
        expected[name] = 255 - _picture(tmp_path / "in" / name, size=size, seed=i)
    summary = translate(model, tmp_path / "in", tmp_path / "out", TranslateOptions(batch_pixels=4 * 16 * 16))
    assert summary.translated == 100
    for name, pixels in expected.items():
        np.testing.assert_array_equal(_pixels(tmp_path / "out" / name), pixels)
    assert isinstance(model.net, CountingNegative)
    assert {shape[0] for shape in model.net.batches if shape[2] == 16} == {4, 2}  # 66 pictures
    assert max(shape[0] for shape in model.net.batches if shape[2] == 8) == 8
    assert len(model.net.batches) == 17 + 5


def test_translates_more_sizes_than_it_reads_ahead(tmp_path: Path, model: Translator) -> None:
    for i in range(60):
        _picture(tmp_path / "in" / f"{i}.png", size=(8 + i, 8))
    assert translate(model, tmp_path / "in", tmp_path / "out").translated == 60


def test_reports_pictures_that_cannot_be_saved(tmp_path: Path, model: Translator) -> None:
    _picture(tmp_path / "in" / "a" / "x.png")
    _picture(tmp_path / "in" / "b.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("a file where a folder must be")
    summary = translate(model, tmp_path / "in", tmp_path / "out")
    assert (summary.translated, [name for name, _ in summary.failed]) == (1, ["a/x.png"])


def test_reports_pictures_of_a_batch_that_fails(tmp_path: Path) -> None:
    class Narrow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] > 16:
                raise RuntimeError("out of memory")
            return x

    _picture(tmp_path / "in" / "small.png", size=(16, 16))
    _picture(tmp_path / "in" / "large.png", size=(16, 20))
    summary = translate(in_memory(Narrow()), tmp_path / "in", tmp_path / "out")
    assert (summary.translated, summary.failed) == (1, (("large.png", "out of memory"),))


def test_skips_existing_results_unless_overwritten(tmp_path: Path, model: Translator) -> None:
    pixels = _picture(tmp_path / "in" / "x.png")
    _picture(tmp_path / "in" / "y.png", seed=1)
    _picture(tmp_path / "out" / "x.png", seed=2)
    before = (tmp_path / "out" / "x.png").read_bytes()
    (tmp_path / "G_A.safetensors").touch()
    os.utime(tmp_path / "out" / "x.png", (1, 1))  # translated before these weights were saved
    model = replace(model, file=tmp_path / "G_A.safetensors")
    summary = translate(model, tmp_path / "in", tmp_path / "out")
    assert (summary.translated, summary.skipped, summary.stale) == (1, 1, ("x.png",))
    assert translate(model, tmp_path / "in", tmp_path / "out").stale == ("x.png",), "y.png is new"
    assert (tmp_path / "out" / "x.png").read_bytes() == before
    assert translate(model, tmp_path / "in", tmp_path / "out", TranslateOptions(overwrite=True)).translated == 2
    np.testing.assert_array_equal(_pixels(tmp_path / "out" / "x.png"), 255 - pixels)


def test_writes_one_picture_to_a_file_or_into_a_folder(tmp_path: Path, model: Translator) -> None:
    pixels = _picture(tmp_path / "x.png")
    translate(model, tmp_path / "x.png", tmp_path / "new" / "named.bmp")
    translate(model, tmp_path / "x.png", tmp_path / "folder")
    np.testing.assert_array_equal(_pixels(tmp_path / "new" / "named.bmp"), 255 - pixels)
    np.testing.assert_array_equal(_pixels(tmp_path / "folder" / "x.png"), 255 - pixels)


def test_ignores_results_inside_the_input(tmp_path: Path, model: Translator) -> None:
    _picture(tmp_path / "x.png")
    assert translate(model, tmp_path, tmp_path / "out").translated == 1
    assert translate(model, tmp_path, tmp_path / "out", TranslateOptions(overwrite=True)).translated == 1


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ("absent", "out", {}, "does not exist: name a picture or a folder"),
        ("empty", "out", {}, r"contains no pictures \(avif .* jp2 .*\): name a folder that does"),
        ("in", "in/../in", {"overwrite": True}, "is the input folder itself"),
        ("in/x.png", "in", {"overwrite": True}, "is the input itself"),
        ("in", "in/x.png", {}, "is a file, but the input is a folder"),
        ("in", "out", {"format": "jpg"}, r"x\.bmp and x\.png would both become .*x\.jpg: rename one"),
        ("in/x.png", "out", {"format": "gif"}, "format=gif: not a known format"),
        ("in/x.png", "out", {"tile": -1}, "tile=-1: not a side"),
        ("in/x.png", "out.png", {"format": "jpg"}, r"out\.png and format=jpg contradict"),
    ],
)
def test_rejects_wrong_arguments_before_writing(
    source: str, target: str, options: dict[str, Any], message: str, tmp_path: Path, model: Translator
) -> None:
    (tmp_path / "empty").mkdir()
    pixels = _picture(tmp_path / "in" / "x.png")
    _picture(tmp_path / "in" / "x.bmp")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        translate(model, tmp_path / source, tmp_path / target, TranslateOptions(**options))
    assert sorted(tmp_path.rglob("*")) == before
    np.testing.assert_array_equal(_pixels(tmp_path / "in" / "x.png"), pixels)


def _kinds() -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """A name, the pixels and the alpha of every kind of picture that keeps all it has."""
    rng = np.random.default_rng(5)
    kinds = []
    for dtype in ("uint8", "uint16"):
        for channels in (1, 3):
            pixels = rng.integers(0, np.iinfo(dtype).max + 1, (9, 14, channels)).astype(dtype)
            kinds += [(f"{dtype}-{channels}.{suffix}", pixels, None) for suffix in ("png", "tiff", "npy")]
            alpha = rng.integers(0, np.iinfo(dtype).max + 1, (9, 14)).astype(dtype)
            kinds += [(f"{dtype}-{channels}-alpha.png", pixels, alpha)]
    return kinds


@pytest.mark.parametrize("tile", [0, 8])
@pytest.mark.parametrize("channels", [1, 3])
def test_keeps_depth_alpha_and_profile(tmp_path: Path, channels: int, tile: int) -> None:
    model = in_memory(multiple=2, input={"channels": channels}, output={"channels": channels})
    kinds = [kind for kind in _kinds() if kind[1].shape[2] == channels]
    (tmp_path / "in").mkdir()
    for name, pixels, alpha in kinds:
        profile = None if name.endswith("npy") else b"a profile"
        save_picture(tmp_path / "in" / name, Picture(pixels, alpha, profile))
    summary = translate(model, tmp_path / "in", tmp_path / "out", TranslateOptions(tile=tile))
    assert (summary.translated, summary.failed, summary.renamed) == (len(kinds), (), ())
    assert summary.tiled == (len(kinds) if tile else 0)
    for name, pixels, alpha in kinds:
        result = read_picture(tmp_path / "out" / name)
        assert result.pixels.dtype == pixels.dtype
        limit = 0 if pixels.dtype == np.uint8 else 1
        assert np.abs(result.pixels.astype(int) - pixels).max() <= limit
        assert (result.alpha is None) == (alpha is None)
        if alpha is not None and result.alpha is not None:
            np.testing.assert_array_equal(result.alpha, alpha)
        assert result.icc == (None if name.endswith("npy") else b"a profile")


def _formats(source: dict[str, Any], target: dict[str, Any]) -> Translator:
    """An identity between domains that are numbered in different ways."""

    class Between(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1, keepdim=True).expand(-1, target.get("channels", 3), -1, -1)

    return in_memory(Between(), multiple=2, input=source, output=target)


def test_declared_ranges_are_read_and_written(tmp_path: Path) -> None:
    """Houndsfield units to 12 bits, and back."""
    units = np.linspace(-1000, 1000, 96, dtype=np.float32).reshape(8, 12, 1)
    ct = {"channels": 1, "dtype": "float32", "range": [-1000, 1000]}
    twelve = {"channels": 1, "dtype": "uint16", "range": [0, 4095]}
    save_picture(tmp_path / "x.npy", Picture(units))
    translate(_formats(ct, twelve), tmp_path / "x.npy", tmp_path / "there" / "x.png")
    there = read_picture(tmp_path / "there" / "x.png").pixels
    assert there.dtype == np.uint16
    assert (there.min(), there.max()) == (0, 4095)
    translate(_formats(twelve, ct), tmp_path / "there" / "x.png", tmp_path / "back" / "x.npy")
    back = read_picture(tmp_path / "back" / "x.npy").pixels
    assert np.abs(back - units).max() <= 2000 / 4095 / 2 + 1e-3


def test_reports_floats_without_a_range_and_wrong_channels(tmp_path: Path, model: Translator) -> None:
    _picture(tmp_path / "in" / "a.png")
    save_picture(tmp_path / "in" / "b.tiff", Picture(np.zeros((4, 4, 3), np.float32)))
    save_picture(tmp_path / "in" / "c.tiff", Picture(np.zeros((4, 4, 5), np.uint8)))
    summary = translate(model, tmp_path / "in", tmp_path / "out")
    assert summary.translated == 1
    reasons = dict(summary.failed)
    assert "data.range_a" in reasons["b.tiff"]
    assert "5 channels" in reasons["c.tiff"]


def test_drops_the_profile_if_grey_becomes_colour(tmp_path: Path, model: Translator) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    save_picture(tmp_path / "x.png", Picture(grey, None, b"a grey profile"))
    translate(model, tmp_path / "x.png", tmp_path / "out")
    result = read_picture(tmp_path / "out" / "x.png")
    np.testing.assert_array_equal(result.pixels, np.repeat(255 - grey, 3, 2))
    assert result.icc is None


def test_converts_alpha_to_the_depth_of_the_result(tmp_path: Path) -> None:
    alpha = np.array([[0, 1], [128, 255]], np.uint8)
    save_picture(tmp_path / "x.png", Picture(np.zeros((2, 2, 1), np.uint8), alpha))
    twelve = {"channels": 1, "dtype": "uint16", "range": [0, 4095]}
    translate(_formats({"channels": 1}, twelve), tmp_path / "x.png", tmp_path / "out")
    result = read_picture(tmp_path / "out" / "x.png").alpha
    assert result is not None
    np.testing.assert_array_equal(result, alpha.astype(np.uint16) * 257)


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp", "bmp", "npy", "jpg"])
def test_format_applies_to_all_pictures(tmp_path: Path, model: Translator, suffix: str) -> None:
    _picture(tmp_path / "in" / "a.jpg")
    _picture(tmp_path / "in" / "deep" / "b.png")
    summary = translate(model, tmp_path / "in", tmp_path / "out", TranslateOptions(format=suffix))
    assert (summary.translated, summary.renamed) == (2, ())
    for name in (f"a.{suffix}", f"deep/b.{suffix}"):
        assert read_picture(tmp_path / "out" / name).pixels.shape == (20, 12, 3)


def test_merged_summaries_are_sorted() -> None:
    one, other = (Summary(1, 0, ((name, "why"),), 0, ((name, ".png"),), 1.0) for name in ("z.png", "a.dcm"))
    both = one.merge(other)
    assert (both.translated, [name for name, _ in both.failed]) == (2, ["a.dcm", "z.png"])
    assert both.renamed[0] == ("a.dcm", ".png")


def test_reports_animations_of_which_the_first_frame_was_translated(tmp_path: Path, model: Translator) -> None:
    frames = [Image.new("RGB", (16, 12), (number, 90, 200)) for number in (0, 80, 160)]
    (tmp_path / "in").mkdir()
    names = ["a.gif", "b.png", "c.webp", "d.avif"]
    for name in names:
        frames[0].save(tmp_path / "in" / name, save_all=True, append_images=frames[1:])
    _picture(tmp_path / "in" / "plain.png")
    summary = translate(model, tmp_path / "in", tmp_path / "out", TranslateOptions(format="bmp"))
    assert (summary.translated, summary.animated) == (5, tuple((name, 3) for name in names))


def test_changes_the_format_if_it_cannot_hold_the_result(tmp_path: Path, model: Translator) -> None:
    deep = np.zeros((6, 5, 3), np.uint16)
    (tmp_path / "in").mkdir()
    save_picture(tmp_path / "in" / "deep.tiff", Picture(deep))
    _picture(tmp_path / "in" / "plain.png")
    summary = translate(model, tmp_path / "in", tmp_path / "out", TranslateOptions(format="jpg"))
    assert summary.renamed == (("deep.tiff", ".png"),)
    assert read_picture(tmp_path / "out" / "deep.png").pixels.dtype == np.uint16
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["deep.png", "plain.jpg"]
    again = translate(model, tmp_path / "in", tmp_path / "out", TranslateOptions(format="jpg"))
    assert (again.translated, again.skipped, again.failed) == (0, 2, ())


def test_reports_damaged_and_special_files(tmp_path: Path, model: Translator) -> None:
    """A pipe must not be waited for, a loop of links not be followed forever, a name not break a line."""
    folder = tmp_path / "in"
    _picture(folder / "good.png")
    _picture(folder / "two\nlines.png")
    (folder / "two\nlines.jpg").write_bytes(b"")
    os.mkfifo(folder / "pipe.png")
    (folder / "link.png").symlink_to("link.png")
    (folder / "lost.png").symlink_to("absent.png")
    (folder / "sub").mkdir()
    for i in range(3):
        (folder / "sub" / f"up{i}").symlink_to("..")
    summary = translate(model, folder, tmp_path / "out")
    assert summary.translated == 2
    reasons = dict(summary.failed)
    assert sorted(reasons) == ["link.png", "lost.png", "pipe.png", r"two\nlines.jpg"]
    assert "not a regular file" in reasons["pipe.png"]
    assert (tmp_path / "out" / "two\nlines.png").exists()
    for name in ("pipe.png", "link.png"):
        assert len(translate(model, folder / name, tmp_path / "one").failed) == 1


def test_saves_the_longest_possible_name(tmp_path: Path, model: Translator) -> None:
    name = "n" * 251 + ".png"
    _picture(tmp_path / "in" / name)
    assert translate(model, tmp_path / "in", tmp_path / "out").failed == ()
    assert (tmp_path / "out" / name).exists()


@pytest.mark.parametrize("tile", [0, 16])
def test_translates_flat_pictures_to_flat_ones(tile: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = in_memory(build_generator(GeneratorConfig(channels=2, blocks=1)).eval())
    assert model.translate_fast(torch.zeros(1, 3, 8, 8), rounded=True).isfinite().all()
    save_picture(tmp_path / "x.png", Picture(np.full((40, 44, 3), 7, np.uint8)))
    summary = translate(model, tmp_path / "x.png", tmp_path / "out", TranslateOptions(tile=tile))
    assert (summary.translated, summary.tiled) == (1, int(tile > 0))
    result = read_picture(tmp_path / "out" / "x.png").pixels[24:-24, 24:-24]
    assert (result == result[:1, :1]).all()


def test_accelerates_with_rounding_only_for_8_bits(tmp_path: Path) -> None:
    requests: list[bool] = []

    class Accelerate(Accelerator):
        def __call__(self, net: nn.Module, *, rounded: bool) -> nn.Module:
            requests.append(rounded)
            return net

        def dtype(self, *, rounded: bool) -> torch.dtype:
            return torch.float32

    model = replace(in_memory(), accelerate=Accelerate(torch.device("cpu"), tmp_path))
    for i in range(2):
        _picture(tmp_path / "in" / f"{i}.png", size=(8 + i, 8))
        save_picture(tmp_path / "in" / f"deep{i}.png", Picture(np.zeros((8 + i, 8, 3), np.uint16)))
    assert translate(model, tmp_path / "in", tmp_path / "out").translated == 4
    assert sorted(requests) == [False, True]  # each result once
