"""Folders that appear whole or not at all: built aside, then renamed into place."""

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
    """The folder `name` of a cache, made with the cache's permissions: who may write there may write here.

    If that fails, the first write there raises the error.
    """
    folder = cache / name
    if not folder.is_dir():
        with suppress(OSError):
            folder.mkdir()
            folder.chmod(stat.S_IMODE(cache.stat().st_mode))
    return folder


@contextmanager
def locked_temp_dir(parent: Path, prefix: str = ".building-") -> Iterator[Path]:
    """Give a new folder in `parent` whose name begins with `prefix`; at the end, remove it if it is still there.

    A builder locks its folder. Folders without a lock were left by killed processes; they are removed first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent, prefix)
    fresh, lock = _fresh(parent, prefix)
    with lock:
        try:
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def move_into_place(fresh: Path, directory: Path, *, is_valid: Callable[[], bool]) -> None:
    """Rename the folder `fresh`, made by `building`, to `directory`, unless that exists and is `is_valid`."""
    parent = os.open(directory.parent, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)  # else one process might remove what another has just put there
        if directory.exists():
            if is_valid():
                return
            if directory.is_dir():
                shutil.rmtree(directory)
            else:
                directory.unlink()
        (fresh / _LOCK).unlink()
        fresh.rename(directory)
    finally:
        os.close(parent)


def _fresh(parent: Path, prefix: str) -> tuple[Path, IO[str]]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        folder.chmod(0o755)
        lock = open(folder / _LOCK, "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        lock.close()  # another process removed it as abandoned before it was locked


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        try:
            with open(folder / _LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or just being made or moved
            continue
