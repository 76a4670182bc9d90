"""Write folders atomically: to a temporary folder, which is renamed when it is complete."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_LOCK = ".lock"


def cache_subdir(cache: Path, name: str) -> Path:
    """Return a subfolder of a cache, created with the cache's permissions; if that fails, the first write raises."""
    folder = cache / name
    if not folder.is_dir():
        with suppress(OSError):
            folder.mkdir()
            folder.chmod(stat.S_IMODE(cache.stat().st_mode))
    return folder


@contextmanager
def locked_temp_dir(parent: Path, prefix: str = ".building-") -> Iterator[Path]:
    """Yield a new, locked folder in `parent` with a name that begins with `prefix`; remove it at the end unless moved.

    Folders with this prefix that are not locked were left by killed processes; they are removed first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for abandoned in parent.glob(f"{prefix}*"):
        with suppress(OSError), open(abandoned / _LOCK) as lock:  # flock fails if the folder is in use
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(abandoned, ignore_errors=True)
    folder, lock = _create_locked(parent, prefix)
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def move_into_place(folder: Path, target: Path, *, is_valid: Callable[[], bool]) -> None:
    """Rename `folder`, a `locked_temp_dir`, to `target`; replace an invalid target, keep a valid one."""
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)  # else a process might remove the folder that another has just moved there
        if target.exists():
            if is_valid():
                return
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()
        (folder / _LOCK).unlink()
        folder.rename(target)
    finally:
        os.close(parent)


def _create_locked(parent: Path, prefix: str) -> tuple[Path, IO[str]]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        folder.chmod(0o755)
        lock = open(folder / _LOCK, "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        lock.close()  # another process removed it as abandoned before it was locked
