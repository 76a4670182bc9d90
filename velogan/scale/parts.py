"""What there is to translate, found while it is being translated: a part of it is what a worker takes at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from velogan.data.pictures.images import READ, is_picture
from velogan.data.sets.sources import MAP
from velogan.scale.work import WINDOW, WINDOW_BYTES


@dataclass(frozen=True)
class Input:
    """Pictures below `root`; `output` is left out.

    All paths are absolute: other processes work in other folders.
    """

    root: Path
    output: Path

    def names(self) -> Iterator[str]:
        """Their paths relative to `root`, in no order, without hidden files and folders; nothing is kept."""
        yield from _walk(self.root, "", frozenset(), os.path.realpath(self.output))

    def parts(self) -> Iterator[list[str]]:
        """The names in parts: pictures up to a number and size of them."""
        part: list[str] = []
        size = 0
        for name in self.names():
            more = _size(self.root / name)
            if part and (len(part) == WINDOW or size + more > WINDOW_BYTES):
                yield part
                part, size = [], 0
            part.append(name)
            size += more
        if part:
            yield part


def find_input(given: Path, output: Path) -> Input:
    """Check the folder `given`.

    Raises ValueError with the hint if it holds no picture, or if the output would lie over it.
    """
    output = output.absolute()
    if not given.is_dir():
        what = "is one file: --workers is for a folder; leave it out here"
        raise ValueError(f"input {given} {what if os.path.lexists(given) else 'does not exist: name a folder'}")
    found = Input(given.absolute(), output)
    if os.path.realpath(output) == os.path.realpath(found.root):
        raise ValueError(f"output {output} is the input folder itself: name another folder")
    if os.path.lexists(output) and not output.is_dir():
        raise ValueError(f"output {output} is a file: with --workers name a folder")
    if next(found.names(), None) is None:
        kinds = " ".join(sorted(kind[1:] for kind in READ))
        raise ValueError(f"input {given} holds no picture ({kinds}): name something that does")
    return found


def _wanted(path: Path) -> bool:
    return not path.name.startswith(".") and not path.name.endswith(MAP) and is_picture(path)


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
