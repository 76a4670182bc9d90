"""Finding the pictures: folders, their splits and, where known, the right answers."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.pictures.images import SUFFIXES
from velogan.data.rendered.apples2oranges import VERSION, render_folder
from velogan.types import Letter

FEWEST = 20
"""A domain with fewer training pictures than this holds none of them out."""


@dataclass(frozen=True)
class Folder:
    """Pictures below one directory: their paths relative to it, sorted."""

    directory: Path
    names: tuple[str, ...]


@dataclass(frozen=True)
class Side:
    """One domain, `letter` A or B, on disk.

    `truth`: folder with the true counterpart of each test picture in the other domain, under the same name; `mask`:
    likewise masks, 255 on the object and 0 elsewhere. `validation`: pictures held out of `train`.
    """

    letter: Letter
    name: str
    train: Folder
    test: Folder | None = None
    validation: Folder | None = None
    truth: Path | None = None
    mask: Path | None = None


@dataclass(frozen=True)
class Sources:
    """Both domains. `aligned`: testA and testB hold pairs under equal names, so each is the other's truth."""

    a: Side
    b: Side
    aligned: bool


def cache_directory(config: DataConfig) -> Path:
    """Give the folder for decoded and rendered pictures; other users may share it."""
    return _made(Path(config.cache_dir).expanduser()) if config.cache_dir else code_directory()


def code_directory() -> Path:
    """Give the folder for compiled code, which ignores `data.cache_dir`: no other user may write to it."""
    return _made(Path(os.environ.get("VELOGAN_CACHE") or "~/.cache/velogan").expanduser())


def _made(cache: Path) -> Path:
    """Make the folder for its owner alone; if that fails, the first write there raises the error."""
    with suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache


def find_sources(config: DataConfig, *, progress: Callable[[int, int], None] | None = None) -> Sources:
    """Find both domains; render the built-in set first if it is asked for and not in the cache.

    Raises `ValueError` that names the field, the folder and the mend if a folder is missing or empty, or if
    `data.group` finds no groups or only one.
    """
    sources = _find(config, progress)
    sides = (sources.a, sources.b)
    groups = [_groups(side, config.group) for side in sides]
    if config.validation and min(len(side.train.names) for side in sides) >= FEWEST:
        a, b = (_hold_out(side, names, config) for side, names in zip(sides, groups))
        sources = replace(sources, a=a, b=b)
    return sources


def _groups(side: Side, expression: str | None) -> list[list[str]]:
    """Divide a side's training names into groups, in the order of the hashes of the groups' names."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for name in side.train.names:
        found = _group_of(name, expression)
        groups.setdefault((bool(found), found or name), []).append(name)
    if expression is not None and not any(found for found, _ in groups):
        raise ValueError(
            f"data.group={expression!r} finds nothing in the names of {side.train.directory} (domain {side.letter}), "
            f"for example in {side.train.names[0]}: mend the regular expression, or leave it out"
        )
    return [groups[key] for key in sorted(groups, key=lambda key: hashlib.sha256(os.fsencode(key[1])).digest())]


def _group_of(name: str, expression: str | None) -> str | None:
    match = re.search(expression, name) if expression is not None else None
    return match and match[1 if match.re.groups else 0]


def _hold_out(side: Side, groups: list[list[str]], config: DataConfig) -> Side:
    """Move whole groups with at most `data.validation` pictures, at most a tenth of all, to validation.

    The groups whose names have the lowest hashes are taken: at least one group, but none with more than half of the
    pictures. So both domains hold out equal names, which keeps pairs together, and a few new files change little.
    """
    total = len(side.train.names)
    most, held = min(config.validation, total // 10), set[str]()
    for group in (group for group in groups if 2 * len(group) <= total):
        if held and len(held) + len(group) > most:
            break
        held.update(group)
    if not held:
        raise ValueError(
            f"data.group={config.group!r} puts all {total} training pictures of domain {side.letter} into one group, "
            "so that none can be held out for validation: let it find smaller groups, or set data.validation=0"
        )
    train, validation = (
        Folder(side.train.directory, tuple(name for name in side.train.names if (name in held) == wanted))
        for wanted in (False, True)
    )
    return replace(side, train=train, validation=validation)


def _find(config: DataConfig, progress: Callable[[int, int], None] | None) -> Sources:
    if len(config.path) == 2:
        return _two_folders(Path(config.path[0]), Path(config.path[1]))
    if config.path[0] == BUILT_IN:
        return _one_folder(_rendered(config, progress), ("apples", "oranges"))
    root = Path(config.path[0]).expanduser()
    named = re.fullmatch(r"(.+?)2(.+)", root.resolve().name)
    return _one_folder(root, (named[1], named[2]) if named else ("A", "B"))


def _rendered(config: DataConfig, progress: Callable[[int, int], None] | None) -> Path:
    whole = config.preprocess in ("crop", "none")
    load, test = config.load_side, config.load_side if whole else config.crop_size
    counts = f"{config.render_count}-{config.render_test}"
    name = f"{BUILT_IN}-v{VERSION}-{load}-{test}-{counts}-seed{config.render_seed}"
    return render_folder(
        cache_directory(config) / "rendered" / name,
        count=config.render_count,
        test_count=config.render_test,
        image_size=load,
        test_size=test,
        seed=config.render_seed,
        progress=progress,
    )


def _two_folders(first: Path, second: Path) -> Sources:
    first, second = first.expanduser(), second.expanduser()
    names = (first.resolve().name, second.resolve().name)
    if names[0] == names[1]:
        names = ("A", "B")
    a, b = Side("A", names[0], _folder(first)), Side("B", names[1], _folder(second))
    return Sources(a, b, aligned=False)


def _one_folder(root: Path, names: tuple[str, str]) -> Sources:
    if not (root / "trainA").is_dir() or not (root / "trainB").is_dir():
        raise ValueError(
            f"data.path (--data) {root} must hold trainA and trainB, and testA and testB if you have them, "
            f"but it {_found(root)}; name such a folder, two folders of pictures, or {BUILT_IN}"
        )
    test_a, test_b = (_optional(root / f"test{letter}") for letter in "AB")
    aligned = test_a is not None and test_b is not None and test_a.names == test_b.names
    sides = []
    ordered: tuple[tuple[Letter, str, Folder | None, Folder | None], ...]
    ordered = (("A", names[0], test_a, test_b), ("B", names[1], test_b, test_a))
    for letter, name, test, other in ordered:
        truth, mask = root / f"truth{letter}", root / f"mask{letter}"
        answers = truth if truth.is_dir() else other.directory if aligned and other else None
        train = _folder(root / f"train{letter}")
        objects = mask if mask.is_dir() else None
        sides.append(Side(letter, name, train, test, truth=answers, mask=objects))
    return Sources(sides[0], sides[1], aligned=aligned)


def _found(root: Path) -> str:
    if not root.exists():
        return "does not exist" + ("" if root.is_absolute() else f" (looked in {Path.cwd()})")
    if not root.is_dir():
        return "is a file"
    inside = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
    if not inside:
        return "is empty"
    return f"holds {', '.join(inside[:6])}" + (f" and {len(inside) - 6} more" if len(inside) > 6 else "")


def _optional(directory: Path) -> Folder | None:
    return _folder(directory) if directory.is_dir() else None


def _folder(directory: Path) -> Folder:
    if not directory.is_dir():
        raise ValueError(f"data.path (--data) {directory} {_found(directory)}; name a folder of pictures")
    names = list_images(directory)
    if not names:
        kinds = " ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise ValueError(
            f"data.path (--data) {directory} holds no picture ({kinds}), it {_found(directory)}; "
            "put pictures there or name another folder"
        )
    return Folder(directory, names)


MAP = ".doubt.png"
"""How names of maps of doubt end, which are written beside translations and are no pictures."""


def list_images(directory: Path) -> tuple[str, ...]:
    """List picture files below a directory: paths relative to it, with `/`, sorted, without hidden files and maps.

    Links are followed, except to a folder that contains them.
    """
    names = []
    above = {str(directory): {os.path.realpath(directory)}}
    for parent, folders, files in os.walk(directory, followlinks=True):
        chain = above.pop(parent)
        real = {folder: os.path.realpath(os.path.join(parent, folder)) for folder in folders}
        folders[:] = [folder for folder in folders if real[folder] not in chain]
        above |= {os.path.join(parent, folder): chain | {real[folder]} for folder in folders}
        for file in files:
            if not file.startswith(".") and not file.endswith(MAP) and Path(file).suffix.lower() in SUFFIXES:
                names.append((Path(parent) / file).relative_to(directory).as_posix())
    return tuple(sorted(names))
