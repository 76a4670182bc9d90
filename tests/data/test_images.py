from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from velogan.data.images import read_image, save_image


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (20, 30, 3), np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".ppm", ".tif"])
def test_round_trip(tmp_path: Path, picture: np.ndarray, suffix: str) -> None:
    save_image(tmp_path / f"x{suffix}", picture)
    assert np.array_equal(read_image(tmp_path / f"x{suffix}"), picture)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_equals_pillow(tmp_path: Path, picture: np.ndarray, mode: str) -> None:
    Image.fromarray(picture).convert(mode).save(tmp_path / "x.jpg", quality=90)
    with Image.open(tmp_path / "x.jpg") as opened:
        wanted = np.asarray(opened.convert("RGB"))
    assert np.array_equal(read_image(tmp_path / "x.jpg"), wanted)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_turns_upright(tmp_path: Path, suffix: str) -> None:
    half = np.zeros((16, 32, 3), np.uint8)
    half[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn by 90 degrees clockwise
    Image.fromarray(half).save(tmp_path / f"x{suffix}", exif=exif)
    upright = read_image(tmp_path / f"x{suffix}")
    assert upright.shape == (32, 16, 3)
    assert upright[:14].mean() > 250
    assert upright[18:].mean() < 5


def test_sixteen_bits_keep_their_range(tmp_path: Path) -> None:
    levels = np.array([[0, 257, 32896, 65535]], np.uint16)
    Image.fromarray(levels).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png")[0, :, 0].tolist() == [0, 1, 128, 255]


def test_palette_with_transparency(tmp_path: Path, picture: np.ndarray) -> None:
    Image.fromarray(picture).quantize(8).save(tmp_path / "x.png", transparency=b"\x00\x80")
    assert read_image(tmp_path / "x.png").shape == picture.shape


def test_reasons(tmp_path: Path, picture: np.ndarray) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_bytes(b"no picture")
    save_image(tmp_path / "cut.jpg", picture)
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:-300])
    save_image(tmp_path / "cut.png", picture)
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-300])
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    for name, reason in [
        ("empty.png", "empty"),
        ("text.png", "not a picture"),
        ("cut.jpg", "truncated"),
        ("cut.png", "truncated"),
        ("float.tif", "floating-point"),
    ]:
        with pytest.raises(ValueError, match=reason):
            read_image(tmp_path / name)
