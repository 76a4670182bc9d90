from __future__ import annotations

import fcntl
import shutil
import stat
from pathlib import Path

import pytest

from velogan.data.atomic_dirs import cache_subdir, locked_temp_dir, move_into_place


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with locked_temp_dir(tmp_path / "new") as fresh:
        (fresh / "file").write_text("content")
        assert not (tmp_path / "new" / "made").exists()
        move_into_place(fresh, tmp_path / "new" / "made", is_valid=lambda: False)
    assert _names(tmp_path / "new") == ["made"]
    assert _names(tmp_path / "new" / "made") == ["file"]


@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_who_may_write_to_a_cache_may_write_to_its_parts(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    assert cache_subdir(tmp_path, "prepared") == tmp_path / "prepared"
    assert stat.S_IMODE((tmp_path / "prepared").stat().st_mode) == mode
    (tmp_path / "prepared").chmod(0o755)
    assert stat.S_IMODE(cache_subdir(tmp_path, "prepared").stat().st_mode) == 0o755  # what is there stays as it is


def test_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked_temp_dir(tmp_path) as fresh:
        (fresh / "file").rename(tmp_path / "made")
    assert _names(tmp_path) == []


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_there_stays_where_it_is_whole(whole: bool, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file").write_text("old")
    with locked_temp_dir(tmp_path) as fresh:
        (fresh / "file").write_text("new")
        move_into_place(fresh, tmp_path / "made", is_valid=lambda: whole)
    assert (tmp_path / "made" / "file").read_text() == ("old" if whole else "new")
    assert _names(tmp_path) == ["made"]


def test_builders_at_work_are_left_alone_and_what_dead_ones_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".building-dead").mkdir()
    (tmp_path / ".building-dead" / ".lock").touch()
    (tmp_path / ".building-foreign").mkdir()
    with locked_temp_dir(tmp_path) as first, locked_temp_dir(tmp_path) as second:
        assert _names(tmp_path) == sorted([".building-foreign", first.name, second.name])


def test_a_folder_taken_for_abandoned_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, []

    def late(file, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            shutil.rmtree(removed[0])
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked_temp_dir(tmp_path) as fresh:
        assert fresh.is_dir()
        assert fresh != removed[0]
