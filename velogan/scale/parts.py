"""What there is to translate, found while it is being translated: a part of it is what a worker takes at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from glob import has_magic, iglob
from pathlib import Path

from velogan.data.pictures.images import READ, is_picture
from velogan.data.sets.sources import MAP
from velogan.scale.work import WINDOW, WINDOW_BYTES

SHARD = ".tar"


@dataclass(frozen=True)
class Input:
    """Pictures and shards below `root`, or those of them that `pattern` or `file` names; `output` is left out.

    All paths are absolute: other processes work in other folders.
    """

    root: Path
    output: Path
    pattern: str | None = None
    file: str | None = None

    def names(self) -> Iterator[str]:
        """Their paths relative to `root`, in no order, without hidden files and folders; nothing is kept."""
        if self.file is not None:
            yield self.file
        elif self.pattern is not None:
            inside, root = os.path.realpath(self.output) + os.sep, os.path.realpath(self.root)
            for name in iglob(self.pattern, root_dir=self.root, recursive=True):
                path = self.root / name
                made = os.path.realpath(path).startswith(inside) and not root.startswith(inside)
                if _wanted(path) and path.is_file() and not made:
                    yield name
        else:
            yield from _walk(self.root, "", frozenset(), os.path.realpath(self.output))

    def parts(self) -> Iterator[list[str]]:
        """The names in parts: pictures up to a number and size of them, shards one by one."""
        part: list[str] = []
        size = 0
        for name in self.names():
            if is_shard(name):
                yield [name]
                continue
            more = _size(self.root / name)
            if part and (len(part) == WINDOW or size + more > WINDOW_BYTES):
                yield part
                part, size = [], 0
            part.append(name)
            size += more
        if part:
            yield part


def find_input(given: Path, output: Path) -> Input:
    """What `given` names: a folder, a shard, or a pattern of files like `shards/*.tar`.

    `ValueError` with the mend where there is nothing, or where the output would lie over it.
    """
    output = output.absolute()
    if has_magic(str(given)) and not os.path.lexists(given):
        parts = given.absolute().parts
        first = next(number for number, part in enumerate(parts) if has_magic(part))
        found = Input(Path(*parts[:first]), output, pattern=str(Path(*parts[first:])))
    elif given.is_dir():
        found = Input(given.absolute(), output)
    elif is_shard(given.name) and given.is_file():
        found = Input(given.absolute().parent, output, file=given.name)
    elif os.path.lexists(given):
        raise ValueError(f"input {given} is one file: --workers is for a folder or *.tar; leave it out here")
    else:
        raise ValueError(f"input {given} does not exist: name a folder or *.tar")
    if os.path.realpath(output) == os.path.realpath(found.root):
        raise ValueError(f"output {output} is the input folder itself: name another folder")
    if os.path.lexists(output) and not output.is_dir():
        raise ValueError(f"output {output} is a file: with --workers name a folder")
    if next(found.names(), None) is None:
        kinds = " ".join(sorted(kind[1:] for kind in (*READ, SHARD)))
        raise ValueError(f"input {given} holds no picture ({kinds}): name something that does")
    return found


def is_shard(name: str) -> bool:
    """Whether a file of this name is a tar file of pictures."""
    return name.endswith(SHARD)


def _wanted(path: Path) -> bool:
    return not path.name.startswith(".") and (is_shard(path.name) or (not path.name.endswith(MAP) and is_picture(path)))


def _walk(root: Path, below: str, above: frozenset[str], output: str) -> Iterator[str]:
    """Links are followed, except to a folder that contains them."""
    folder = root / below
    real = os.path.realpath(folder)
    if real in above or real == output:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            name = os.path.join(below, entry.name)
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _walk(root, name, above | {real}, output)
            elif not entry.is_dir() and _wanted(folder / entry.name):
                yield name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will say why
