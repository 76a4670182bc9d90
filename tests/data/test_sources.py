from __future__ import annotations

from pathlib import Path

import pytest

from velogan.data.config import DataConfig
from velogan.data.sources import find_sources


def find(*path: Path | str):
    return find_sources(DataConfig(path=tuple(str(one) for one in path)))


def test_one_folder_searched_recursively(make_folder, tmp_path: Path) -> None:
    make_folder("cat2dog/trainA", count=1)
    make_folder("cat2dog/trainA/deep/er", count=1, suffix=".JPG")
    make_folder("cat2dog/trainB", count=2)
    (tmp_path / "cat2dog/trainA/notes.txt").write_text("no picture")
    (tmp_path / "cat2dog/trainA/._000.png").write_text("left by a file manager")
    sources = find(tmp_path / "cat2dog")
    assert sources.a.train.names == ("000.png", "deep/er/000.JPG")
    assert (sources.a.name, sources.b.name) == ("cat", "dog")
    assert sources.a.test is None
    assert not sources.aligned


def test_two_folders_are_trained_on(make_folder) -> None:
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
    ("made", "named", "message"),
    [
        (
            (),
            ("nowhere",),
            r"data.path \(--data\).*nowhere must hold trainA and trainB.*does not exist; name",
        ),
        (("x/apples",), ("x",), r"must hold trainA and trainB.*holds apples; name"),
        (
            ("x/trainA", "x/trainB/"),
            ("x",),
            r"trainB holds no picture \(bmp jpeg.*is empty; put pictures there",
        ),
        (("x",), ("x", "y"), r"data.path \(--data\) .*y does not exist; name a folder"),
    ],
)
def test_errors(make_folder, tmp_path: Path, made: tuple, named: tuple, message: str) -> None:
    for name in made:
        make_folder(name, count=0 if name.endswith("/") else 1)
    with pytest.raises(ValueError, match=message):
        find(*(tmp_path / name for name in named))


def test_built_in_set_is_rendered_once_with_its_answers(tmp_path: Path) -> None:
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
