"""Folders of pictures made into shards that WebDataset reads, too."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from velogan.data.aside import building, move_into_place
from velogan.data.pictures.images import READ
from velogan.data.sets.shards import SUFFIX
from velogan.data.sets.sources import list_images
from velogan.data.sets.tars import forget
from velogan.data.sets.writing import to_disk
from velogan.types import Progress

_RECORD = 512


def pack(folder: Path, out: Path, *, most_bytes: int, progress: Progress | None = None) -> list[tuple[str, int]]:
    """Write all pictures below `folder` into shards `out/NAME-000000.tar` and so on, in the order of their names.

    Files are copied as they are, under their paths. A shard is closed before it would pass `most_bytes`, unless it
    holds one picture alone. All of `out` appears at the end, or nothing. Returns the shards' names with their counts
    of pictures. Raises `ValueError` if there is nothing to pack or `out` exists, `OSError` if a file cannot be read.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: name one with pictures, like horse2zebra/trainA")
    if os.path.lexists(out):
        raise ValueError(f"{out} exists, and nothing is overwritten: name a folder that does not, or remove it")
    names = list_images(folder)
    if not names:
        raise ValueError(f"{folder} holds no pictures: name a folder that does")
    if unnamed := [name for name in names if Path(name).suffix.lower() not in READ]:
        raise ValueError(
            f"{folder / unnamed[0]} is a picture ({len(unnamed)} are like it), but its name does not say so, and "
            "readers of shards go by names: rename it"
        )
    with building(out.absolute().parent, f".building-{out.name}-") as fresh:
        made = _write(folder, names, fresh, out.name, most_bytes, progress or (lambda done, total: None))
        move_into_place(fresh, out.absolute(), whole=lambda: True)
        if fresh.exists():
            raise ValueError(f"{out} was made by another process meanwhile: it is left as it is")
    return made


def _write(
    folder: Path,
    names: tuple[str, ...],
    fresh: Path,
    stem: str,
    most_bytes: int,
    progress: Progress,
) -> list[tuple[str, int]]:
    made: list[tuple[str, int]] = []
    done = 0
    while done < len(names):
        shard = fresh / f"{stem}-{len(made):06d}{SUFFIX}"
        first, size = done, 2 * _RECORD  # the end of a tar file
        with open(shard, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                while done < len(names):
                    size += _room(folder / names[done])
                    if size > most_bytes and done > first:
                        break
                    _add(tar, folder / names[done], names[done])
                    done += 1
                    progress(done, len(names))
            to_disk(file)
        made.append((shard.name, done - first))
    return made


def _room(path: Path) -> int:
    """The bytes that a file takes in a tar file."""
    return _RECORD + -(-path.stat().st_size // _RECORD) * _RECORD


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Owner, rights and time are left out: equal pictures give equal shards."""
    with open(path, "rb") as file:
        member = tarfile.TarInfo(name)
        member.size = os.fstat(file.fileno()).st_size
        tar.addfile(member, file)
    forget(tar)
