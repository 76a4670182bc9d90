"""An output that is named like a file is that file, or is refused with what can be written; never is it a folder."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest

from velogan.cli import main
from velogan.data.pictures.images import READABLE_SUFFIXES, SUFFIXES, Picture, save_picture
from velogan.translate.files import translate

from ..models import in_memory

OTHERS = {".xyz", ".pdf", ".tar", ".json", ".geotiffs", ".geotiffimages"}
SCANS, VIDEOS = {".nii", ".dcm", ".nii.gz"}, {".mp4", ".mkv"}
REFUSED = {
    "a.png": READABLE_SUFFIXES - SUFFIXES | OTHERS | SCANS | VIDEOS,
    "a.nii": READABLE_SUFFIXES | OTHERS | VIDEOS | {".dcm", ".nii.gz"},
    "a.mp4": READABLE_SUFFIXES | OTHERS | SCANS,
    "in": SUFFIXES | VIDEOS,
}
"""By input: what an output cannot end in."""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    picture = Picture(np.zeros((16, 16, 3), np.uint8))
    (tmp_path / "in").mkdir()
    save_picture(tmp_path / "a.png", picture)
    save_picture(tmp_path / "in/a.png", picture)
    nibabel.Nifti1Image(np.zeros((8, 8, 2), np.uint8), np.eye(4)).to_filename(tmp_path / "a.nii")
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    return tmp_path


@pytest.mark.parametrize(("name", "suffix"), [(name, one) for name, all_ in REFUSED.items() for one in sorted(all_)])
def test_rejects_outputs_named_like_another_file(name: str, suffix: str, given: Path) -> None:
    before = sorted(given.rglob("*"))
    with pytest.raises(ValueError, match=r"is named like a file|is not a video|is of another kind"):
        translate(in_memory(), given / name, given / f"res{suffix}")
    assert sorted(given.rglob("*")) == before


def test_rejects_an_input_that_is_not_read_whatever_the_output(given: Path) -> None:
    (given / "a.avi").write_bytes(b"RIFF\0\0\0\0AVI LIST")
    with pytest.raises(ValueError, match=r"a\.avi is not a picture, video or scan"):
        translate(in_memory(), given / "a.avi", given / "out.avi")


@pytest.mark.parametrize("name", ["out.v2", "results.2026", "out"])
def test_accepts_folders_with_a_dot(name: str, given: Path) -> None:
    translate(in_memory(), given / "a.png", given / name)
    assert (given / name / "a.png").is_file()


@pytest.mark.parametrize("form", ["onnx", "torch", "hub", "web", "reference"])
def test_rejects_exports_named_like_another_file(form: str, given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = given / "net.xyz"
    assert main(["export", "apples2oranges", str(out), "--format", form]) == 2
    assert "looks like a file name" in capsys.readouterr().err
    assert not out.exists()
