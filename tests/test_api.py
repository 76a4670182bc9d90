"""velogan from Python: pictures of every kind go in and come out as the same kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import velogan
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.store.checkpoint import save_checkpoint


def _run(folder: Path, *, channels: int = 3) -> Path:
    torch.manual_seed(0)
    config = GeneratorConfig(channels=4, blocks=1, init="kaiming")
    form = {"channels": channels, "dtype": "uint8"}
    header = {"role": "G_A", "network": "generator", "config": config.model_dump(mode="json")}
    header |= {"in_channels": channels, "out_channels": channels, "input": form, "output": form}
    net = build_generator(config, in_channels=channels, out_channels=channels)
    save_checkpoint(folder, images=3, networks={"G_A": net}, headers={"G_A": header}, state={}, clock={})
    return folder


@pytest.fixture
def model(tmp_path: Path) -> velogan.Model:
    return velogan.load(_run(tmp_path / "run"), fp32=True)


def _photo(height: int = 26, width: int = 37, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def test_importing_is_light_and_names_exist():
    code = "import sys, velogan; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
    assert set(velogan.__all__) <= set(dir(velogan))
    assert all(getattr(velogan, name) is not None for name in velogan.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        velogan.lod  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_loading_starts_no_threads_so_that_a_process_may_fork_afterwards(start: Callable[..., Any]):
    count = "len(os.listdir('/proc/self/task'))"
    code = f"import os, torch, velogan\ntorch.set_num_threads(4)\nbefore = {count}\nvelogan.load('apples2oranges')\n"
    exit_code, log = start(["--help"], code=f"{code}assert {count} == before").wait()
    assert exit_code == 0, log


def test_translates_arrays_images_files_and_tensors_alike(model: velogan.Model, tmp_path: Path):
    photo = _photo()
    result = model.translate(photo)
    assert (result.shape, result.dtype) == (photo.shape, np.uint8)
    assert result.std() > 5
    assert np.array_equal(np.asarray(model.translate(Image.fromarray(photo))), result)
    Image.fromarray(photo).save(tmp_path / "in.png")
    assert model.translate_files(tmp_path / "in.png", tmp_path / "out.png").translated == 1
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), result)
    unit = torch.from_numpy(photo).permute(2, 0, 1) / 127.5 - 1
    translated = model.translate(unit)
    assert translated.shape == unit.shape
    assert (((translated + 1) * 127.5).round().permute(1, 2, 0).numpy() == result).mean() > 0.999


def test_rejects_images_without_pixels_or_values(model: velogan.Model):
    dense = torch.zeros(3, 16, 16)
    for wrong, message in (
        (Image.new("RGB", (0, 5)), "a PIL image of 0x5 pixels"),
        (dense.to_sparse(), r"torch\.sparse_coo on cpu: give a dense one"),
        (dense.to("meta"), r"torch\.strided on meta: give a dense one that has values"),
    ):
        with pytest.raises(ValueError, match=message):
            model.translate(wrong)


def test_translates_files_with_the_options_of_the_command(model: velogan.Model, tmp_path: Path):
    photo = _photo()
    Image.fromarray(photo).save(tmp_path / "in.png")
    model.translate_files(tmp_path / "in.png", tmp_path / "out", format="tiff", tile=0)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out/in.tiff")), model.translate(photo))
    with pytest.raises(ValueError, match=r"smooth=0\.5: input .* is not a video"):
        model.translate_files(tmp_path / "in.png", tmp_path / "out.png", smooth=0.5)


def test_translates_batches_and_lists(model: velogan.Model):
    photos = np.stack([_photo(), _photo()[:, ::-1]])
    alone = [model.translate(photo) for photo in photos]
    assert np.abs(model.translate(photos).astype(int) - np.stack(alone)).max() <= 1
    first, second = model.translate([Image.fromarray(_photo(16, 24)), _photo(40, 24)])
    assert (type(first), first.size) == (Image.Image, (24, 16))
    assert isinstance(second, np.ndarray)
    assert second.shape == (40, 24, 3)
    half = torch.rand(2, 3, 16, 24, dtype=torch.float16, requires_grad=True)
    result = model.translate(half)
    assert (result.dtype, result.requires_grad, result.is_inference()) == (torch.float16, False, False)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_translates_rotated_photos_upright(model: velogan.Model, tmp_path: Path, orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(_photo(channels=4)).save(tmp_path / "in.png", exif=exif)
    with Image.open(tmp_path / "in.png") as photo:
        result = model.translate(photo)
    assert result.size == ((37, 26) if orientation < 5 else (26, 37))
    model.translate_files(tmp_path / "in.png", tmp_path / "out.png")
    assert np.array_equal(np.asarray(result), np.asarray(Image.open(tmp_path / "out.png")))


def test_keeps_grey_depth_and_alpha(model: velogan.Model, tmp_path: Path):
    assert model.translate(_photo()[..., 0]).shape == (26, 37, 3)  # the model writes RGB
    grey = velogan.load(_run(tmp_path / "grey", channels=1), fp32=True)
    deep = (_photo(channels=1)[..., 0].astype(np.uint16) << 8) + 7
    assert (grey.translate(deep).shape, grey.translate(deep).dtype) == (deep.shape, np.uint16)
    assert grey.translate(Image.fromarray(deep)).mode == "I;16"
    older = Image.fromarray(deep.astype(np.int32))  # as PIL opened 16 bits before
    assert np.array_equal(np.asarray(grey.translate(older)), grey.translate(deep))
    assert grey.translate(Image.fromarray(_photo()[..., 0])).mode == "L"
    clear = Image.fromarray(_photo(channels=4))
    assert np.array_equal(np.asarray(model.translate(clear))[..., 3], np.asarray(clear)[..., 3])
    assert model.translate(Image.fromarray(_photo()).quantize(8)).mode == "RGB"
    assert model.translate(Image.fromarray(_photo()).convert("CMYK")).mode == "RGB"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("photo.jpg", "images=str: not an image"),
        (_photo().astype(np.float32), "an array of float32: give uint8"),
        (_photo(channels=5), "5 channels, but 3 are needed"),
        (torch.zeros(16, 16), r"a tensor of \(16, 16\): give \(3, H, W\)"),
        (torch.full((3, 16, 16), 200.0), r"a tensor of values from 200 to 200: give \[-1, 1\]"),
        (torch.full((3, 16, 16), torch.nan), "a tensor of values from nan to nan"),
        (Image.fromarray(np.full((16, 16), 0.5, np.float32)), "declare"),
    ],
)
def test_rejects_other_inputs(model: velogan.Model, wrong: object, message: str):
    with pytest.raises(ValueError, match=message):
        model.translate(wrong)


def test_rejects_unknown_names(model: velogan.Model, tmp_path: Path):
    wrong: Any = "foo"
    with pytest.raises(ValueError, match="direction=foo: choose a2b or b2a"):
        velogan.load(tmp_path / "run", direction=wrong)
    with pytest.raises(ValueError, match="config='foo' is not a Config: pass velogan"):
        velogan.train(wrong, tmp_path / "other")
    with pytest.raises(ValueError, match="format=foo: choose onnx, torch"):
        velogan.export(tmp_path / "run", tmp_path / "file", format=wrong)
