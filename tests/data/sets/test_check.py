from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from velogan.cli import main
from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, read_picture, save_picture
from velogan.data.sets.check import check, render_text

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


def _check(*path: Path, **fields: Any) -> dict:
    progress = fields.pop("progress", None)
    return check(DataConfig(path=tuple(map(str, path)), **fields), progress=progress)


@pytest.fixture
def flawed(make_folder, tmp_path: Path) -> Path:
    make_folder("x2y/trainA", count=3, seed=1)
    make_folder("x2y/trainB", count=2, shape=(30, 70), seed=2)
    make_folder("x2y/testA", count=1, seed=3)
    make_folder("x2y/testB", count=2, seed=4)
    root = tmp_path / "x2y"
    shutil.copy(root / "trainA/001.png", root / "trainA/copy.png")
    with Image.open(root / "trainB/000.png") as picture:
        picture.save(root / "testB/leak.bmp")  # other bytes, the same pixels
    (root / "trainA/002.png").write_bytes(b"broken")
    grey = np.random.default_rng(0).integers(0, 256, (40, 50, 1), np.uint8)
    save_picture(root / "trainB/grey.png", Picture(grey))
    save_picture(root / "trainB/grey-as-rgb.png", Picture(np.repeat(grey, 3, axis=2)))
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(root / "testA/deep.png")
    return root


def test_reports_flaws(flawed: Path) -> None:
    (flawed / "trainA" / "a\nb.png").write_bytes(b"broken")
    steps: list[tuple[int, int]] = []
    result = json.loads(json.dumps(_check(flawed, progress=lambda *step: steps.append(step))))
    assert steps[-1] == (14, 14)
    assert result["domains"] == {"A": "x", "B": "y"}
    assert not result["aligned"]
    folders = result["folders"]
    counts = {"trainA": 3, "testA": 2, "trainB": 4, "testB": 3}
    assert {key: folder["pictures"] for key, folder in folders.items()} == counts
    assert {"name": "002.png", "reason": "not a picture that can be read"} in folders["trainA"]["unreadable"]
    assert folders["trainA"]["duplicates"] == [["001.png", "copy.png"]]
    assert folders["trainB"]["width"] == {"min": 50, "median": 60, "max": 70}
    assert folders["trainB"]["modes"] == {"RGB": 3, "grey": 1}
    assert folders["trainB"]["grey"] == ["grey-as-rgb.png"]
    assert folders["trainB"]["duplicates"] == [["grey-as-rgb.png", "grey.png"]]
    assert folders["testA"]["modes"] == {"RGB": 1, "16-bit grey": 1}
    assert result["leaks"] == [{"test": "testB/leak.bmp", "train": "trainB/000.png", "exact": True}]
    text = render_text(result)
    for line in (
        "x (A) and y (B)",
        "trainA: 3 pictures (3 RGB), all 48x48",
        "002.png (not a picture that can be read)",
        "a\\nb.png (not a picture",
        "1 equal pictures: 001.png = copy.png",
        "trainB: 4 pictures (3 RGB, 1 grey), width 50 to 70 (median 60), height 30 to 40 (median 35)",
        "1 without colour: grey-as-rgb.png",
        "uint16 values 40000 to 40000",
        "1 test pictures that are training pictures too (~ almost equal, saved again): testB/leak.bmp",
    ):
        assert line in text


def test_reports_nothing_of_a_clean_set(make_folder, tmp_path: Path) -> None:
    for name, seed in (("trainA", 1), ("trainB", 2), ("testA", 3), ("testB", 4)):
        make_folder(f"set/{name}", count=2, seed=seed)
    result = _check(tmp_path / "set")
    assert result["aligned"]
    assert result["leaks"] == []
    assert not any(f["grey"] or f["unreadable"] or f["duplicates"] for f in result["folders"].values())


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """CT-like floats as A, 12 bits with alpha as B; one test picture of each is almost a training picture."""
    random = np.random.default_rng(0)
    hounsfield = random.uniform(-1024, 3071, (3, 24, 24, 5)).astype(np.float32)
    hounsfield[0, 0, 0, 0], hounsfield[1, 0, 0, 0] = -1024, 3071
    twelve = random.integers(0, 4096, (3, 24, 24, 1), np.uint16)
    for folder in ("trainA", "trainB", "testA", "testB"):
        (tmp_path / "deep" / folder).mkdir(parents=True)
    for split, indices in (("train", (0, 1)), ("test", (1, 2))):
        for index in indices:
            change = split == "test"
            save_picture(tmp_path / f"deep/{split}A/{index}.npy", Picture(hounsfield[index] + np.float32(change / 8)))
            alpha = np.full((24, 24), 9 + change, np.uint16)
            save_picture(tmp_path / f"deep/{split}B/{index}.tiff", Picture(twelve[index], alpha))
    return tmp_path / "deep"


def test_reports_deep_pictures(deep: Path) -> None:
    result = json.loads(json.dumps(_check(deep)))
    folders = result["folders"]
    assert folders["trainA"]["modes"] == {"float32, 5 channels": 2}
    assert folders["trainA"]["values"] == {"float32": {"min": -1024, "max": 3071}}
    assert folders["trainB"]["modes"] == {"16-bit grey+alpha": 2}
    assert folders["trainB"]["values"]["uint16"]["max"] < 4096
    assert not any(folder["grey"] or folder["unreadable"] for folder in folders.values())
    assert result["leaks"] == [
        {"test": "testB/1.tiff", "train": "trainB/1.tiff", "exact": True},
        {"test": "testA/1.npy", "train": "trainA/1.npy", "exact": False},
    ]
    text = render_text(result)
    assert "float32 values -1024 to 3071" in text
    assert re.search(r"training would refuse this: .*trainA holds floating-point .*for example --data.range-a", text)
    assert re.search(r"almost black: .*--data.range-b \d+ \d+ would show all of them", text)


@pytest.mark.shared
@pytest.mark.skipif(not (SHARED / "horse2zebra").is_dir(), reason="the real images are not beside the project")
def test_real_set() -> None:
    result = _check(SHARED / "horse2zebra")
    assert {key: folder["pictures"] for key, folder in result["folders"].items()} == {
        "trainA": 1067,
        "testA": 120,
        "trainB": 1334,
        "testB": 140,
    }
    assert result["folders"]["trainB"]["modes"] == {"RGB": 1327, "grey": 7}
    assert result["folders"]["trainA"]["duplicates"]
    twins = [(leak["test"], leak["train"]) for leak in result["leaks"]]
    assert ("testA/n02381460_1160.jpg", "trainA/n02381460_3811.jpg") in twins


def test_reports_near_duplicates_across_the_validation_split(make_folder, tmp_path: Path) -> None:
    for letter, seed in (("A", 1), ("B", 2)):
        make_folder(f"set/train{letter}", count=20, seed=seed)
    root = tmp_path / "set"
    for number in range(20):
        pixels = read_picture(root / f"trainA/{number:03d}.png").pixels
        save_picture(root / f"trainA/{number:03d}-again.png", Picture(np.minimum(pixels, 254) + np.uint8(1)))
    result = _check(root)
    assert len(result["straddling"]) == 2  # of four held out; the other two are one pair
    for pair in result["straddling"]:
        assert pair["validation"][:10] == pair["train"][:10]  # trainA/012
        assert pair["validation"] != pair["train"]
        assert not pair["exact"]
    assert "2 pictures for validation that are training pictures too, unless --data.group" in render_text(result)
    shutil.rmtree(root / "trainA")
    make_folder("set/trainA", count=40, seed=1)
    assert _check(root)["straddling"] == []


def _volumes(folder: Path, *names: str, scale: float = 1.0) -> Path:
    nibabel = pytest.importorskip("nibabel", reason="the extra medical is not installed")
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        values = np.random.default_rng(number).uniform(0, scale, (16, 16, 24)).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), folder / name)
    return folder


def test_reports_volumes_that_cannot_be_read_and_what_training_rejects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (_volumes(tmp_path / name, "sub-01.nii", "sub-02.nii") for name in ("t1", "t2"))
    (a / "sub-02.nii").write_bytes((a / "sub-02.nii").read_bytes()[:9000])
    assert [file["name"] for file in _check(a, b)["folders"]["trainA"]["unreadable"]] == ["sub-02.nii"]
    assert main(["data", "check", str(a / "sub-01.nii"), str(b / "sub-01.nii")]) == 0
    text = capsys.readouterr().out
    assert "trainA: 24 pictures" in text
    assert re.search(r"training would refuse this: .*none can be held out.*set data\.validation=0", text)


def test_takes_window_pages_and_group_as_training_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"sub-{number // 2}-{number % 2}.nii" for number in range(4)]
    a, b = (_volumes(tmp_path / name, *names, scale=240) for name in ("ct", "mr"))
    folders = ["data", "check", str(a), str(b)]
    assert main([*folders, "--window", "CT-brain", "percentiles", "--group", "sub-[0-9]"]) == 0
    text = capsys.readouterr().out
    assert "window CT-brain (0 to 80)" in text
    assert "window percentiles" in text
    assert main([*folders, "--group", "sub-"]) == 0
    assert "more than half of the 96 training pictures of domain A are of one group" in capsys.readouterr().out
    assert main([*folders, "--group", "patient"]) == 2
    assert "matches no name in" in capsys.readouterr().err
    assert main([*folders, "--group", "("]) == 2
    assert "is not a regular expression" in capsys.readouterr().err
    stack = np.random.default_rng(0).integers(0, 255, (24, 16, 16), np.uint8)
    for name in ("c", "d"):
        (tmp_path / name).mkdir()
        for number in range(2):
            tifffile.imwrite(tmp_path / name / f"{number}.tif", stack + number, photometric="minisblack")
    assert main(["data", "check", str(tmp_path / "c"), str(tmp_path / "d"), "--pages", "slices"]) == 0
    assert "trainA: 48 pictures" in capsys.readouterr().out
