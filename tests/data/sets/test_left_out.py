"""What is a picture is decided by its bytes; what is left out is counted; a folder that cannot be read is an error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from velogan.cli.evaluate import scored_folders
from velogan.data.pictures.images import read_picture
from velogan.data.sets.sources import describe_skipped_files, list_images

PICTURES = {
    "a.jfif": "JPEG",
    "b.jpe": "JPEG",
    "c.gif": "GIF",
    "d.pgm": "PPM",
    "e.pbm": "PPM",
    "f": "PNG",
    "g.JPG_original": "JPEG",
    "h.unknown": "BMP",
    "j.jp2": "JPEG2000",
}
PICTURES |= {"i.avif": "AVIF"} if features.check("avif") else {}
OTHERS = {
    "film.mp4": b"\0\0\0\x18ftypmp42",
    "notes.txt": b"BMI and P3 are words",
    "more.txt": b"P1",
    "raw.dng": b"II*\0" + bytes(100),
    "slice.IMA": bytes(128) + b"DICM",
    "scan.mgz": b"\x1f\x8b",
    "layers.psd": b"8BPS",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    for name, form in PICTURES.items():
        mode = {"d.pgm": "L", "e.pbm": "1"}.get(name, "RGB")
        Image.fromarray(np.full((24, 32, 3), 90, np.uint8)).convert(mode).save(tmp_path / "inner" / name, form)
    for name, data in OTHERS.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_bytes_say_what_a_picture_is(folder: Path) -> None:
    assert list_images(folder) == tuple(sorted(f"inner/{name}" for name in PICTURES))
    for name in list_images(folder):
        assert read_picture(folder / name).pixels.shape[:2] == (24, 32)


def test_what_is_left_out_is_counted_by_kind(folder: Path) -> None:
    line = describe_skipped_files(folder, scans=False)
    assert "\n" not in line
    for part in ("2 .txt", "1 .mp4", "1 .dng", "1 .ima", "1 .mgz", "1 .psd"):
        assert part in line
    for name in OTHERS:
        (folder / name).unlink()
    assert describe_skipped_files(folder, scans=False) == ""


def test_evaluate_counts_where_scored_pictures_lie() -> None:
    sides = {"a": {"split": "test"}, "b": {"split": "validation"}}
    assert scored_folders({"path": ["data"], **sides}) == [Path("data/testA"), Path("data/trainB")]
    assert scored_folders({"path": ["one", "two"], **sides}) == [Path("one"), Path("two")]


def test_a_folder_that_cannot_be_read_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("inner"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=r"inner cannot be read \(Permission denied\): make it readable"):
        list_images(folder)
