from __future__ import annotations

import fcntl
import shutil
import stat
from pathlib import Path

import pytest

from velogan.data.atomic_dirs import cache_subdir, locked_temp_dir, move_into_place


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    with locked_temp_dir(tmp_path / "new") as folder:
        (folder / "file").write_text("content")
        assert not (tmp_path / "new/entry").exists()
        move_into_place(folder, tmp_path / "new/entry", is_valid=lambda: False)
    assert _names(tmp_path / "new") == ["entry"]
    assert _names(tmp_path / "new/entry") == ["file"]
    with pytest.raises(FileNotFoundError), locked_temp_dir(tmp_path / "other") as folder:
        (folder / "file").rename(tmp_path / "other/entry")
    assert _names(tmp_path / "other") == []


@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_a_part_of_a_cache_has_its_permissions(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    assert cache_subdir(tmp_path, "prepared") == tmp_path / "prepared"
    assert stat.S_IMODE((tmp_path / "prepared").stat().st_mode) == mode
    (tmp_path / "prepared").chmod(0o755)
    assert stat.S_IMODE(cache_subdir(tmp_path, "prepared").stat().st_mode) == 0o755  # an existing folder is unchanged


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_valid_folder_is_not_replaced(is_valid: bool, tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry/file").write_text("old")
    with locked_temp_dir(tmp_path) as folder:
        (folder / "file").write_text("new")
        move_into_place(folder, tmp_path / "entry", is_valid=lambda: is_valid)
    assert (tmp_path / "entry/file").read_text() == ("old" if is_valid else "new")
    assert _names(tmp_path) == ["entry"]


def test_removes_abandoned_folders_and_leaves_those_in_use(tmp_path: Path) -> None:
    (tmp_path / ".building-dead").mkdir()
    (tmp_path / ".building-dead/.lock").touch()
    (tmp_path / ".building-foreign").mkdir()
    with locked_temp_dir(tmp_path) as first, locked_temp_dir(tmp_path) as second:
        assert _names(tmp_path) == sorted([".building-foreign", first.name, second.name])


def test_a_folder_removed_before_it_was_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, []

    def late(file, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            shutil.rmtree(removed[0])
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked_temp_dir(tmp_path) as folder:
        assert folder.is_dir()
        assert folder != removed[0]
