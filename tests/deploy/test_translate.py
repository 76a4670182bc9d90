from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from velogan.deploy.model import Translator
from velogan.deploy.translate import translate


class Negative(nn.Module):
    """Turns every picture into its negative and remembers how many came at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(tuple(x.shape))
        return -x


def _translator(net: nn.Module) -> Translator:
    return Translator(net, multiple=4, device=torch.device("cpu"))


@pytest.fixture
def model() -> Translator:
    return _translator(Negative())


def _picture(path: Path, *, size: tuple[int, int] = (20, 12), seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def test_a_folder_keeps_tree_names_and_sizes(tmp_path: Path, model: Translator) -> None:
    sizes = {"one.png": (20, 12), "deep/two.png": (21, 13), "deep/er/three.bmp": (7, 40)}
    pictures = {name: _picture(tmp_path / "in" / name, size=size) for name, size in sizes.items()}
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    seen: list[tuple[int, int]] = []
    summary = translate(
        model, tmp_path / "in", tmp_path / "out", progress=lambda done, total: seen.append((done, total))
    )
    assert (summary.translated, summary.skipped, summary.failed) == (3, 0, ())
    for name, pixels in pictures.items():
        np.testing.assert_array_equal(_pixels(tmp_path / "out" / name), 255 - pixels)
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 3
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_pictures_of_equal_size_share_a_pass(tmp_path: Path, model: Translator) -> None:
    expected = {}
    for i in range(100):
        name, size = f"{i:03}.png", (16, 16) if i % 3 else (8, 16)
        expected[name] = 255 - _picture(tmp_path / "in" / name, size=size, seed=i)
    summary = translate(model, tmp_path / "in", tmp_path / "out", batch_pixels=4 * 16 * 16)
    assert summary.translated == 100
    for name, pixels in expected.items():
        np.testing.assert_array_equal(_pixels(tmp_path / "out" / name), pixels)
    assert isinstance(model.net, Negative)
    assert {shape[0] for shape in model.net.batches if shape[2] == 16} == {4, 2}  # 66 pictures
    assert max(shape[0] for shape in model.net.batches if shape[2] == 8) == 8
    assert len(model.net.batches) == 17 + 5


def test_many_sizes_do_not_pile_up(tmp_path: Path, model: Translator) -> None:
    for i in range(60):
        _picture(tmp_path / "in" / f"{i}.png", size=(8 + i, 8))
    assert translate(model, tmp_path / "in", tmp_path / "out").translated == 60


def test_a_bad_file_does_not_stop_the_others(tmp_path: Path, model: Translator) -> None:
    for i in range(3):
        _picture(tmp_path / "in" / f"{i}.png")
    (tmp_path / "in" / "1.png").write_bytes(b"not a picture")
    summary = translate(model, tmp_path / "in", tmp_path / "out")
    assert summary.translated == 2
    assert [name for name, _ in summary.failed] == ["1.png"]
    assert summary.failed[0][1]
    assert not (tmp_path / "out" / "1.png").exists()


def test_a_picture_that_cannot_be_saved_is_named(tmp_path: Path, model: Translator) -> None:
    _picture(tmp_path / "in" / "a" / "x.png")
    _picture(tmp_path / "in" / "b.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("a file where a folder must be")
    summary = translate(model, tmp_path / "in", tmp_path / "out")
    assert summary.translated == 1
    assert [name for name, _ in summary.failed] == ["a/x.png"]


def test_a_failing_pass_names_its_pictures(tmp_path: Path) -> None:
    class Narrow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] > 16:
                raise RuntimeError("out of memory")
            return x

    _picture(tmp_path / "in" / "small.png", size=(16, 16))
    _picture(tmp_path / "in" / "large.png", size=(16, 20))
    summary = translate(_translator(Narrow()), tmp_path / "in", tmp_path / "out")
    assert summary.translated == 1
    assert summary.failed == (("large.png", "out of memory"),)


def test_what_is_there_is_skipped_unless_overwritten(tmp_path: Path, model: Translator) -> None:
    pixels = _picture(tmp_path / "in" / "x.png")
    _picture(tmp_path / "in" / "y.png", seed=1)
    _picture(tmp_path / "out" / "x.png", seed=2)
    before = (tmp_path / "out" / "x.png").read_bytes()
    summary = translate(model, tmp_path / "in", tmp_path / "out")
    assert (summary.translated, summary.skipped) == (1, 1)
    assert (tmp_path / "out" / "x.png").read_bytes() == before
    assert translate(model, tmp_path / "in", tmp_path / "out", overwrite=True).translated == 2
    np.testing.assert_array_equal(_pixels(tmp_path / "out" / "x.png"), 255 - pixels)


def test_one_picture_goes_to_a_file_or_into_a_folder(tmp_path: Path, model: Translator) -> None:
    pixels = _picture(tmp_path / "x.png")
    translate(model, tmp_path / "x.png", tmp_path / "new" / "named.bmp")
    translate(model, tmp_path / "x.png", tmp_path / "folder")
    np.testing.assert_array_equal(_pixels(tmp_path / "new" / "named.bmp"), 255 - pixels)
    np.testing.assert_array_equal(_pixels(tmp_path / "folder" / "x.png"), 255 - pixels)


def test_an_output_inside_the_input_is_not_translated_again(tmp_path: Path, model: Translator) -> None:
    _picture(tmp_path / "x.png")
    assert translate(model, tmp_path, tmp_path / "out").translated == 1
    assert translate(model, tmp_path, tmp_path / "out", overwrite=True).translated == 1


def test_refusals_name_the_mend(tmp_path: Path, model: Translator) -> None:
    with pytest.raises(ValueError, match="does not exist: name a picture or a folder"):
        translate(model, tmp_path / "absent", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no picture .*: name a folder that does"):
        translate(model, tmp_path / "empty", tmp_path / "out")
    pixels = _picture(tmp_path / "in" / "x.png")
    with pytest.raises(ValueError, match="is the input folder itself"):
        translate(model, tmp_path / "in", tmp_path / "in" / ".." / "in", overwrite=True)
    with pytest.raises(ValueError, match="is the input itself"):
        translate(model, tmp_path / "in" / "x.png", tmp_path / "in", overwrite=True)
    with pytest.raises(ValueError, match="is a file, but the input is a folder"):
        translate(model, tmp_path / "in", tmp_path / "in" / "x.png")
    np.testing.assert_array_equal(_pixels(tmp_path / "in" / "x.png"), pixels)


def test_levels_survive_an_identity(tmp_path: Path) -> None:
    every_level = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    Image.fromarray(every_level).save(tmp_path / "x.png")
    translate(_translator(nn.Identity()), tmp_path / "x.png", tmp_path / "out")
    np.testing.assert_array_equal(_pixels(tmp_path / "out" / "x.png"), every_level)
    assert torch.is_grad_enabled()
