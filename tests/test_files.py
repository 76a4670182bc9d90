from __future__ import annotations

import os
from pathlib import Path

import pytest

from velogan.data.config import DataConfig
from velogan.data.sets.sources import cache_directory, code_directory
from velogan.files import check_not_shared, create_private_folder
from velogan.kernels.native import load_kernels


def test_creates_folders_for_code_for_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = os.umask(0o002)  # many systems' default: what is made is writable for a group
    try:
        monkeypatch.setenv("VELOGAN_CACHE", str(tmp_path / "deep" / "cache"))
        code_folder = create_private_folder(code_directory() / "kernels")
        assert cache_directory(DataConfig(cache_dir=str(tmp_path / "pictures"))) == tmp_path / "pictures"
    finally:
        os.umask(before)
    for folder in (code_folder, code_folder.parent, tmp_path / "pictures"):
        assert folder.stat().st_mode & 0o777 == 0o700, folder


@pytest.mark.parametrize("shared", ["kernels", "cache"])
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_rejects_code_that_others_may_change(shared: str, mode: int, tmp_path: Path):
    folder = create_private_folder(tmp_path / "cache" / "kernels")
    wrong = folder if shared == "kernels" else folder.parent
    wrong.chmod(mode)
    with pytest.raises(ValueError, match=rf"may write to {wrong} .*`chmod go-w {wrong}`; or set .*VELOGAN_CACHE"):
        create_private_folder(folder)
    wrong.chmod(0o755)
    create_private_folder(folder)
    (tmp_path / "cache").chmod(0o1777)  # like /tmp: nobody can replace another's folder there
    create_private_folder(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("shared", ["kernels", "cache"])
def test_rejects_code_of_another_user(shared: str, tmp_path: Path):
    folder = create_private_folder(tmp_path / "cache" / "kernels")
    os.chown(folder if shared == "kernels" else folder.parent, 12345, -1)
    with pytest.raises(ValueError, match=r"belongs to another user, .*VELOGAN_CACHE to a folder of your own"):
        create_private_folder(folder)


def test_rejects_libraries_that_others_may_change(kernels: object, tmp_path: Path):
    """Found there, built or not: a library that a stranger put there would run in this process."""
    folder = tmp_path / "cache" / "kernels"
    assert load_kernels(folder) is not None
    (library,) = folder.glob("*.so")
    assert library.stat().st_mode & 0o077 == 0
    library.chmod(0o777)
    with pytest.raises(ValueError, match=r"other users may write to .*norms-.*\.so"):
        load_kernels(folder)
    library.chmod(0o700)
    folder.chmod(0o777)
    with pytest.raises(ValueError, match=r"other users may write to .*kernels and could"):
        load_kernels(folder)
    with pytest.raises(ValueError, match="other users"):
        check_not_shared(folder)
