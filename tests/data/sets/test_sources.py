from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from velogan.data.config import DataConfig
from velogan.data.sets.sources import check_output_outside_data, find_sources, list_files


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


def test_hidden_folders_are_not_searched(make_folder, tmp_path: Path) -> None:
    for name in ("cat", "cat/.Trash-1000/files", "cat/deep/.ipynb_checkpoints", ".hidden"):
        make_folder(name, count=1)
    assert list_files(tmp_path / "cat") == ("000.png",)
    assert list_files(tmp_path / ".hidden") == ("000.png",)


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
            r"trainB holds no picture \(avif bmp gif.*is empty; put pictures there",
        ),
        (("x",), ("x", "x/"), r"data.path \(--data\) names .*x and .*x, which are one folder"),
        (("x", "x/y"), ("x", "x/y"), r"names .*x and .*x/y, which .* lie one in the other, .*: name two"),
        (("x", "x/y"), ("x/y", "x"), "lie one in the other"),
        (("x",), ("x", "y"), r"data.path \(--data\) .*y does not exist; name a folder"),
    ],
)
def test_errors(make_folder, tmp_path: Path, made: tuple, named: tuple, message: str) -> None:
    for name in made:
        make_folder(name, count=0 if name.endswith("/") else 1)
    with pytest.raises(ValueError, match=message):
        find(*(tmp_path / name for name in named))


def test_a_run_does_not_lie_among_the_pictures(make_folder, tmp_path: Path) -> None:
    for name in ("trainA", "trainB"):
        make_folder(f"set/{name}", count=1)
    root = str(tmp_path / "set")
    (tmp_path / "link").symlink_to(tmp_path / "set/trainA")
    one, two = DataConfig(path=(root,)), DataConfig(path=(f"{root}/trainA", f"{root}/trainB"))
    for data in (one, two):
        check_output_outside_data(data, tmp_path / "set/run")
        for inside in ("set/trainB", "set/trainA/runs/1", "link/run"):
            with pytest.raises(ValueError, match=f"--out .*{inside} lies in .*train[AB], so .*: name a folder"):
                check_output_outside_data(data, tmp_path / inside)


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


def _empty_files(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:04d}.png").touch()
    return folder


def _held_out(*path: Path, validation: int = 32) -> list[tuple[int, int]]:
    """Counts of validation and training pictures of both domains."""
    sources = find_sources(DataConfig(path=tuple(map(str, path)), validation=validation))
    return [(len(s.validation.names) if s.validation else 0, len(s.train.names)) for s in (sources.a, sources.b)]


def test_a_part_of_train_is_held_out_and_nothing_else(tmp_path: Path) -> None:
    a, b = _empty_files(tmp_path / "x2y" / "trainA", 25), _empty_files(tmp_path / "x2y" / "trainB", 400)
    for letter in "AB":
        _empty_files(tmp_path / "x2y" / f"test{letter}", 30)
    sources = find(tmp_path / "x2y")
    for side, folder, count in ((sources.a, a, 2), (sources.b, b, 32)):
        assert side.validation is not None
        assert side.validation.location == str(folder)
        assert len(side.validation.names) == count
        assert sorted([*side.validation.names, *side.train.names]) == [path.name for path in sorted(folder.iterdir())]
        assert side.validation.names == tuple(sorted(side.validation.names))
        assert side.test is not None
        assert len(side.test.names) == 30
    assert _held_out(tmp_path / "x2y", validation=5) == [(2, 23), (5, 395)]
    assert _held_out(tmp_path / "x2y", validation=0) == [(0, 25), (0, 400)]


def test_nothing_is_held_out_where_a_domain_is_tiny(tmp_path: Path) -> None:
    a, b = _empty_files(tmp_path / "a", 19), _empty_files(tmp_path / "b", 100)
    assert _held_out(a, b) == [(0, 19), (0, 100)]
    (a / "one more.png").touch()
    assert _held_out(a, b) == [(2, 18), (10, 90)]


def test_equal_names_are_held_out_in_both_domains_and_new_files_change_few(tmp_path: Path) -> None:
    a, b = _empty_files(tmp_path / "a", 300), _empty_files(tmp_path / "b", 300)
    before = find(a, b)
    assert before.a.validation is not None
    assert before.b.validation is not None
    assert before.a.validation.names == before.b.validation.names
    assert before.a.validation.names != tuple(f"{number:04d}.png" for number in range(30))
    _empty_files(a, 320)
    after = find(a, b).a.validation
    assert after is not None
    assert len(set(after.names) & set(before.a.validation.names)) >= 25


def _patients(folder: Path, slices: dict[str, int]) -> Path:
    folder.mkdir(parents=True)
    for patient, count in slices.items():
        for number in range(count):
            (folder / f"{patient}-slice{number:03d}.png").touch()
    return folder


def _split(a: Path, b: Path, **fields: object) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Names held out and trained on, of both domains."""
    sources = find_sources(DataConfig.model_validate({"path": (str(a), str(b)), **fields}))
    return [(side.validation.names if side.validation else (), side.train.names) for side in (sources.a, sources.b)]


@pytest.mark.parametrize("group", ["^p[0-9]+", "(p[0-9]+)-slice"])
def test_a_group_lies_on_one_side_in_both_domains(group: str, tmp_path: Path) -> None:
    """Slices of one patient are much alike: what is chosen on them is not chosen on pictures never seen."""
    counts = {f"p{number}": 3 + number % 4 for number in range(60)}
    a, b = _patients(tmp_path / "a", counts), _patients(tmp_path / "b", counts)
    (a / "no patient.png").touch()
    patients = []
    for held, trained in _split(a, b, group=group):
        assert 20 <= len(held) <= 27
        patients.append({name.split("-")[0] for name in held})
        assert not patients[-1] & {name.split("-")[0] for name in trained}
    assert patients[0] - {"no patient.png"} == patients[1]
    assert _split(a, b, group=group) == _split(a, b, group=group)
    straddling = _split(a, b)[0]
    assert {name.split("-")[0] for name in straddling[0]} & {name.split("-")[0] for name in straddling[1]}


def test_without_groups_the_split_is_the_one_of_earlier_runs(tmp_path: Path) -> None:
    a = _empty_files(tmp_path / "a", 30)
    held = ("0015.png", "0019.png", "0027.png")
    for group in (None, ".*"):  # the whole name: each picture is its own group
        assert _split(a, shutil.copytree(a, tmp_path / "b", dirs_exist_ok=True), group=group)[0][0] == held


@pytest.mark.parametrize(("slices", "held"), [({"p1": 30, "p2": 10}, 10), ({"p1": 20, "p2": 20}, 20)])
def test_few_groups_leave_something_on_both_sides(slices: dict[str, int], held: int, tmp_path: Path) -> None:
    a = _patients(tmp_path / "a", slices)
    assert [
        len(part) for part in _split(a, shutil.copytree(a, tmp_path / "b", dirs_exist_ok=True), group="p[0-9]")[0]
    ] == [held, 40 - held]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group": "p[0-9"}, r"(?s)group.*'p\[0-9' is no regular expression: unterminated.*write one like"),
        (
            {"group": "q[0-9]"},
            r"data.group='q\[0-9\]' matches no name in .*/a \(domain A\).*p1-slice000.png",
        ),
        ({"group": "q?"}, "matches no name"),
        (
            {"group": "p"},
            r"'p': more than half of the 40 training pictures of domain A are of one group.*set data",
        ),
    ],
)
def test_groups_that_are_none_are_refused(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    a = _patients(tmp_path / "a", {"p1": 40})
    with pytest.raises(ValueError, match=message):
        _split(a, shutil.copytree(a, tmp_path / "b", dirs_exist_ok=True), **fields)
