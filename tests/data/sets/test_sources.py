from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from velogan.cli.evaluate import scored_folders
from velogan.data.config import DataConfig
from velogan.data.pictures.images import read_picture
from velogan.data.sets.sources import (
    DomainSource,
    check_output_outside_data,
    describe_skipped_files,
    find_sources,
    list_files,
    list_images,
)


def find(*path: Path, **fields: Any):
    return find_sources(DataConfig.model_validate({"path": tuple(map(str, path)), **fields}))


def test_finds_one_folder_with_pictures_at_any_depth(make_folder, tmp_path: Path) -> None:
    make_folder("cat2dog/trainA", count=1)
    make_folder("cat2dog/trainA/deep/er", count=1, suffix=".JPG")
    make_folder("cat2dog/trainA/.Trash-1000/files", count=1)
    make_folder("cat2dog/trainB", count=2)
    (tmp_path / "cat2dog/trainA/notes.txt").write_text("not a picture")
    (tmp_path / "cat2dog/trainA/._000.png").write_text("left by a file manager")
    sources = find(tmp_path / "cat2dog")
    assert sources.a.train.names == ("000.png", "deep/er/000.JPG")
    assert (sources.a.name, sources.b.name) == ("cat", "dog")
    assert sources.a.test is None
    assert not sources.aligned
    make_folder(".hidden", count=1)  # a hidden folder may be named itself
    assert list_files(tmp_path / ".hidden") == ("000.png",)


def test_finds_two_folders(make_folder) -> None:
    sources = find(make_folder("summer", count=2), make_folder("winter", count=1))
    assert (sources.a.name, len(sources.a.train.names)) == ("summer", 2)
    assert (sources.b.name, len(sources.b.train.names), sources.b.test) == ("winter", 1, None)


def test_equal_test_names_are_aligned_pairs(make_folder, tmp_path: Path) -> None:
    for name in ("trainA", "trainB", "testA", "testB"):
        make_folder(f"set/{name}", count=2)
    sources = find(tmp_path / "set")
    assert sources.aligned
    assert (sources.a.truth, sources.b.truth) == (tmp_path / "set/testB", tmp_path / "set/testA")
    make_folder("set/testB", count=3)
    assert not find(tmp_path / "set").aligned


@pytest.mark.parametrize(
    ("folders", "named", "message"),
    [
        ((), ("nowhere",), r"data.path \(--data\).*nowhere must hold trainA and trainB.*does not exist; name"),
        (("x/apples",), ("x",), r"must hold trainA and trainB.*holds apples; name"),
        (("x/trainA", "x/trainB/"), ("x",), r"trainB holds no picture \(avif bmp gif.*is empty; put pictures there"),
        (("x",), ("x", "x/"), r"data.path \(--data\) names .*x and .*x, which are one folder"),
        (("x", "x/y"), ("x", "x/y"), r"names .*x and .*x/y, which .* lie one in the other, .*: name two"),
        (("x", "x/y"), ("x/y", "x"), "lie one in the other"),
        (("x",), ("x", "y"), r"data.path \(--data\) .*y does not exist; name a folder"),
    ],
)
def test_rejects_paths(make_folder, tmp_path: Path, folders: tuple, named: tuple, message: str) -> None:
    for name in folders:
        make_folder(name, count=0 if name.endswith("/") else 1)
    with pytest.raises(ValueError, match=message):
        find(*(tmp_path / name for name in named))


def test_rejects_an_output_among_the_pictures(make_folder, tmp_path: Path) -> None:
    for name in ("trainA", "trainB"):
        make_folder(f"set/{name}", count=1)
    root = str(tmp_path / "set")
    (tmp_path / "link").symlink_to(tmp_path / "set/trainA")
    for path in ((root,), (f"{root}/trainA", f"{root}/trainB")):
        check_output_outside_data(DataConfig(path=path), tmp_path / "set/run")
        for output in ("set/trainB", "set/trainA/runs/1", "link/run"):
            with pytest.raises(ValueError, match=f"--out .*{output} lies in .*train[AB], so .*: name a folder"):
                check_output_outside_data(DataConfig(path=path), tmp_path / output)


def test_renders_the_built_in_set_once_with_its_truth(tmp_path: Path) -> None:
    config = DataConfig(crop_size=16, render_count=3, render_test=2, cache_dir=str(tmp_path))
    calls: list[tuple[int, int]] = []
    sources = find_sources(config, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (10, 10)
    assert (sources.a.name, sources.b.name, len(sources.a.train.names)) == ("apples", "oranges", 3)
    assert sources.a.test is not None
    for answers in (sources.a.truth, sources.a.mask):
        assert answers is not None
        assert all((answers / name).is_file() for name in sources.a.test.names)
    calls.clear()
    assert find_sources(config, progress=lambda done, total: calls.append((done, total))) == sources
    assert not calls


# Pictures held out for validation


def _empty_files(folder: Path, names: dict[str, int]) -> Path:
    """Write `count` empty files for each beginning of a name."""
    folder.mkdir(parents=True, exist_ok=True)
    for start, count in names.items():
        for number in range(count):
            (folder / f"{start}{number:04d}.png").touch()
    return folder


def _split(source: DomainSource) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names held out and trained on."""
    return source.validation.names if source.validation else (), source.train.names


def _counts(*path: Path, **fields: Any) -> list[tuple[int, ...]]:
    sources = find(*path, **fields)
    return [tuple(map(len, _split(source))) for source in (sources.a, sources.b)]


def test_holds_out_a_tenth_of_the_training_pictures(tmp_path: Path) -> None:
    counts = {"trainA": 25, "trainB": 400, "testA": 30, "testB": 30}
    folders = {name: _empty_files(tmp_path / "x2y" / name, {"": count}) for name, count in counts.items()}
    sources = find(tmp_path / "x2y")
    for source, count in ((sources.a, 2), (sources.b, 32)):
        folder = folders[f"train{source.letter}"]
        held_out, trained = _split(source)
        assert len(held_out) == count
        assert held_out == tuple(sorted(held_out))
        assert sorted([*held_out, *trained]) == [path.name for path in sorted(folder.iterdir())]
        assert source.test is not None
        assert len(source.test.names) == 30
    assert _counts(tmp_path / "x2y", validation=5) == [(2, 23), (5, 395)]
    assert _counts(tmp_path / "x2y", validation=0) == [(0, 25), (0, 400)]


def test_holds_out_nothing_if_a_domain_is_tiny(tmp_path: Path) -> None:
    a, b = _empty_files(tmp_path / "a", {"": 19}), _empty_files(tmp_path / "b", {"": 100})
    assert _counts(a, b) == [(0, 19), (0, 100)]
    (a / "another.png").touch()
    assert _counts(a, b) == [(2, 18), (10, 90)]


def test_holds_out_equal_names_in_both_domains_and_new_files_change_few(tmp_path: Path) -> None:
    a, b = _empty_files(tmp_path / "a", {"": 300}), _empty_files(tmp_path / "b", {"": 300})
    before = find(a, b)
    held_out = _split(before.a)[0]
    assert held_out == _split(before.b)[0] != tuple(f"{number:04d}.png" for number in range(30))
    assert len(set(_split(find(_empty_files(a, {"": 320}), b).a)[0]) & set(held_out)) >= 25


@pytest.mark.parametrize("group", [None, ".*"])  # the complete name: each picture is its own group
def test_the_split_without_groups_stays_that_of_earlier_versions(group: str | None, tmp_path: Path) -> None:
    a = _empty_files(tmp_path / "a", {"": 30})
    sources = find(a, shutil.copytree(a, tmp_path / "b"), group=group)
    assert _split(sources.a)[0] == ("0015.png", "0019.png", "0027.png")


@pytest.mark.parametrize("group", ["^p[0-9]+", "(p[0-9]+)-slice"])
def test_a_group_is_either_held_out_or_trained_on(group: str, tmp_path: Path) -> None:
    a = _empty_files(tmp_path / "a", {f"p{number}-slice": 3 + number % 4 for number in range(60)})
    b = shutil.copytree(a, tmp_path / "b")
    (a / "no patient.png").touch()
    sources = find(a, b, group=group)
    patients = []
    for source in (sources.a, sources.b):
        held_out, trained = _split(source)
        assert 20 <= len(held_out) <= 27
        patients.append({name.split("-")[0] for name in held_out})
        assert not patients[-1] & {name.split("-")[0] for name in trained}
    assert patients[0] - {"no patient.png"} == patients[1]


@pytest.mark.parametrize(("counts", "held_out"), [({"p1": 30, "p2": 10}, 10), ({"p1": 20, "p2": 20}, 20)])
def test_few_groups_leave_pictures_on_both_sides(counts: dict[str, int], held_out: int, tmp_path: Path) -> None:
    a = _empty_files(tmp_path / "a", counts)
    assert _counts(a, shutil.copytree(a, tmp_path / "b"), group="p[12]")[0] == (held_out, 40 - held_out)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("p[0-9", r"(?s)group.*'p\[0-9' is not a regular expression: unterminated.*write one like"),
        ("q[0-9]", r"data.group='q\[0-9\]' matches no name in .*/a \(domain A\).*p1-0000.png"),
        ("q?", "matches no name"),
        ("p", r"'p': more than half of the 40 training pictures of domain A are of one group.*set data"),
    ],
)
def test_rejects_groups(group: str, message: str, tmp_path: Path) -> None:
    a = _empty_files(tmp_path / "a", {"p1-": 40})
    with pytest.raises(ValueError, match=message):
        find(a, shutil.copytree(a, tmp_path / "b"), group=group)


# Which files are pictures

PICTURES = {"a.jfif": "JPEG", "b.jpe": "JPEG", "c.gif": "GIF", "d.pgm": "PPM", "e.pbm": "PPM", "j.jp2": "JPEG2000"}
PICTURES |= {"f": "PNG", "g.JPG_original": "JPEG", "h.unknown": "BMP"}
PICTURES |= {"i.avif": "AVIF"} if features.check("avif") else {}
OTHERS = {
    "video.mp4": b"\0\0\0\x18ftypmp42",
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


def test_recognises_pictures_by_their_bytes_and_reports_skipped_files_by_kind(folder: Path) -> None:
    assert list_images(folder) == tuple(sorted(f"inner/{name}" for name in PICTURES))
    for name in list_images(folder):
        assert read_picture(folder / name).pixels.shape[:2] == (24, 32)
    line = describe_skipped_files(folder, no_scans=False)
    assert "\n" not in line
    for part in ("2 .txt", "1 .mp4", "1 .dng", "1 .ima", "1 .mgz", "1 .psd"):
        assert part in line
    for name in OTHERS:
        (folder / name).unlink()
    assert describe_skipped_files(folder, no_scans=False) == ""


def test_evaluate_counts_in_the_folders_of_scored_pictures() -> None:
    sides = {"a": {"split": "test"}, "b": {"split": "validation"}}
    assert scored_folders({"path": ["data"], **sides}) == [Path("data/testA"), Path("data/trainB")]
    assert scored_folders({"path": ["one", "two"], **sides}) == [Path("one"), Path("two")]


def test_rejects_a_folder_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("inner"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=r"inner cannot be read \(Permission denied\): make it readable"):
        list_images(folder)
