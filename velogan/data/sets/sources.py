"""Finding the pictures: folders, their splits and, where known, the right answers."""

from __future__ import annotations

import hashlib
import heapq
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Self

from velogan.data.atomic_dirs import cache_subdir
from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.pictures.geography import find_world_files
from velogan.data.pictures.images import (
    READABLE_SUFFIXES,
    Picture,
    check_has_data,
    detect_suffix,
    is_picture,
    read_picture,
)
from velogan.data.pictures.picture import MAX_BYTES, MAX_HEADER_BYTES, read_first_bytes
from velogan.data.pictures.scans import POSSIBLE_SUFFIXES, STACK_SUFFIXES, scan_suffix
from velogan.data.rendered.apples2oranges import VERSION, render_folder
from velogan.data.sets.slices import Slices, open_slices
from velogan.files import sha256
from velogan.types import Letter, Progress

LETTERS: tuple[Letter, Letter] = ("A", "B")

_KINDS = 8  # that a line names of files that are left out

FEWEST = 20
"""A domain with fewer training pictures than this holds none of them out."""


@dataclass(frozen=True)
class Folder:
    """Pictures below one directory: their paths relative to it, sorted.

    `pages_are_channels`: pages of a TIFF that does not say what they are. `filled`: as of `read_picture`; False of
    masks and label maps.
    """

    directory: Path
    names: tuple[str, ...]
    pages_are_channels: bool = False
    filled: bool = True

    @property
    def where(self) -> str:
        """The directory."""
        return str(self.directory)

    def some(self, numbers: Iterable[int]) -> Self:
        """Choose by numbers."""
        return replace(self, names=tuple(self.names[number] for number in numbers))

    def named(self, names: Iterable[str]) -> Self:
        """Choose by names."""
        return replace(self, names=tuple(names))

    def path_of(self, name: str) -> str:
        """The path of a picture."""
        return str(self.directory / name)

    def read(self, name: str) -> Picture:
        """Read a picture. Raises `OSError` and `ValueError` as `read_picture` and `check_has_data` do."""
        path, how = self.directory / name, self.pages_are_channels
        return check_has_data(read_picture(path, pages_are_channels=how, filled=self.filled))

    def content(self, name: str) -> str:
        """Give the hash of a picture's file; one too large for a picture is not read."""
        path = self.directory / name
        size = path.stat().st_size if path.is_file() else 0
        if size > MAX_BYTES + MAX_HEADER_BYTES:
            return f"unreadable: {size} bytes"
        found = content_hash(path) + " pages are channels" * self.pages_are_channels
        return found + " as it is" * (not self.filled and detect_suffix(read_first_bytes(path, 12)) == ".tiff")


ImageSource = Folder | Slices
"""Pictures by name; `where` is for messages."""


class LabelMaps(Folder):
    """Label maps below one directory, which are resized by the nearest pixel."""

    def content(self, name: str) -> str:
        """Give the hash of a map's file, which is not that of the same file as a picture."""
        return f"labels {super().content(name)}"


def content_hash(path: Path) -> str:
    """Give the SHA-256 of a file's bytes, or the reason why they cannot be read."""
    if not path.is_file():  # opening a pipe would wait for a writer
        return "unreadable: not a regular file"
    try:
        return sha256(path)
    except OSError as error:
        return f"unreadable: {error.strerror}"


@dataclass(frozen=True)
class DomainSource:
    """One domain, `letter` A or B, on disk.

    `truth`: folder with the true counterpart of each test picture in the other domain, under the same name; `mask`:
    likewise masks, 255 on the object and 0 elsewhere. `validation`: pictures held out of `train`.
    """

    letter: Letter
    name: str
    train: ImageSource
    test: ImageSource | None = None
    validation: ImageSource | None = None
    truth: Path | None = None
    mask: Path | None = None


@dataclass(frozen=True)
class Sources:
    """Both domains. `aligned`: testA and testB hold pairs under equal names, so each is the other's truth."""

    a: DomainSource
    b: DomainSource
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


def find_sources(config: DataConfig, *, progress: Progress | None = None) -> Sources:
    """Find both domains; render the built-in set first if no earlier run did.

    Raises `ValueError` that names the field, the folder and the hint if a folder is missing or empty, or if
    `data.group` finds no groups or only one.
    """
    sources = _find(config, progress)
    sides = (sources.a, sources.b)
    for side in sides:
        if config.group is not None:
            _check_groups(side, config.group)
        if config.context_slices:
            _check_volumes(side, config.context_slices)
    if config.validation and min(len(side.train.names) for side in sides) >= FEWEST:
        a, b = (_hold_out(side, config) for side in sides)
        sources = replace(sources, a=a, b=b)
    return sources


def check_output_outside_data(config: DataConfig, out: Path) -> None:
    """ValueError where `out` lies among the pictures: those that are written there would be trained on, too."""
    given = [Path(one).expanduser() for one in config.path]
    parts = (given[0] / f"{part}{letter}" for part in ("train", "test") for letter in LETTERS)
    for folder in given if len(given) > 1 else parts:
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"--out {out} lies in {folder}, so that pictures of this run would become pictures of the data: name "
                "a folder elsewhere"
            )


def _check_volumes(side: DomainSource, neighbours: int) -> None:
    train = side.train
    if not isinstance(train, Slices) or all(len(one.slices) == 1 for one in train.look.series):
        raise ValueError(
            f"data.context_slices={neighbours} is for volumes of several slices, of DICOM or NIfTI, and {train.where} "
            f"(domain {side.letter}) holds none: leave it out"
        )


def _check_groups(side: DomainSource, expression: str) -> None:
    if not any(_group_of(name, expression) for name in side.train.names):
        raise ValueError(
            f"data.group={expression!r} finds nothing in the names of {side.train.where} (domain {side.letter}), "
            f"for example in {side.train.names[0]}: mend the regular expression, or leave it out"
        )


def _group_of(name: str, expression: str | None) -> str | None:
    match = re.search(expression, name) if expression is not None else None
    return match and match[1 if match.re.groups else 0]


def _hold_out(side: DomainSource, config: DataConfig) -> DomainSource:
    """Move whole groups with at most `data.validation` pictures, at most a tenth of all, to validation.

    The groups whose names have the lowest hashes are taken: at least one group, but none with more than half of the
    pictures. So both domains hold out equal names, which keeps pairs together, and a few new files change little.
    """
    total = len(side.train.names)
    most = min(config.validation, total // 10)
    names = side.train.names
    patients = side.train.patients if isinstance(side.train, Slices) else None
    if config.group is None and patients is None:
        held = set(heapq.nsmallest(most, range(total), key=lambda number: _rank(names[number])))
    else:
        groups = [_group_of(name, config.group) for name in names] if config.group is not None else patients or ()
        held = _whole_groups([(bool(group), group or name) for group, name in zip(groups, names)], most)
    if not held:
        asked, mend = f"data.path (--data) {side.train.where}", "add patients"
        if config.group is not None:
            asked, mend = f"data.group={config.group!r}", "let it find smaller groups"
        raise ValueError(
            f"{asked}: more than half of the {total} training pictures of domain {side.letter} are of one group or "
            f"patient, so that none can be held out for validation: {mend}, or set data.validation=0"
        )
    train = side.train.some([number for number in range(total) if number not in held])
    return replace(side, train=train, validation=side.train.some(sorted(held)))


def _rank(name: str) -> bytes:
    return hashlib.sha256(os.fsencode(name)).digest()


def _whole_groups(named: Sequence[tuple[bool, str]], most: int) -> set[int]:
    """The numbers of the pictures of some groups, in the order of the hashes of the groups' names.

    `named`: each picture's group, or False and its own name.
    """
    groups: dict[tuple[bool, str], list[int]] = {}
    for number, key in enumerate(named):
        groups.setdefault(key, []).append(number)
    held: set[int] = set()
    for key in sorted(groups, key=lambda key: _rank(key[1])):
        if 2 * len(groups[key]) > len(named):
            continue
        if held and len(held) + len(groups[key]) > most:
            break
        held.update(groups[key])
    return held


def _find(config: DataConfig, progress: Progress | None) -> Sources:
    if len(config.path) == 2:
        return _two_sets(config, progress)
    if config.path[0] == BUILT_IN:
        return _one_folder(_rendered(config, progress), ("apples", "oranges"), config, progress)
    root = Path(config.path[0]).expanduser()
    named = re.fullmatch(r"(.+?)2(.+)", root.resolve().name)
    return _one_folder(root, (named[1], named[2]) if named else ("A", "B"), config, progress)


def _rendered(config: DataConfig, progress: Progress | None) -> Path:
    whole = config.preprocess in ("crop", "none")
    load, test = config.load_side, config.load_side if whole else config.crop_size
    counts = f"{config.render_count}-{config.render_test}"
    name = f"{BUILT_IN}-v{VERSION}-{load}-{test}-{counts}-seed0"
    return render_folder(
        cache_subdir(cache_directory(config), "rendered") / name,
        count=config.render_count,
        test_count=config.render_test,
        image_size=load,
        test_size=test,
        seed=0,
        progress=progress,
    )


def _two_sets(config: DataConfig, progress: Progress | None) -> Sources:
    first, second = config.path
    places = [Path(one).expanduser().resolve() for one in config.path]
    if places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]):
        raise ValueError(
            f"data.path (--data) names {first} and {second}, which are one place or lie one in the other, so that "
            "pictures would be in both domains: name two folders side by side"
        )
    sides: list[DomainSource] = []
    names = [place.name for place in places]
    for letter, name, given in zip(LETTERS, names if names[0] != names[1] else LETTERS, config.path):
        sides.append(DomainSource(letter, name, _pictures(Path(given).expanduser(), letter, config, progress)))
    return Sources(sides[0], sides[1], aligned=False)


def _one_folder(root: Path, names: tuple[str, str], config: DataConfig, progress: Progress | None) -> Sources:
    if not (root / "trainA").is_dir() or not (root / "trainB").is_dir():
        raise ValueError(
            f"data.path (--data) {root} must hold trainA and trainB, and testA and testB if you have them, "
            f"but it {_found(root)}; name such a folder, two folders of pictures, or {BUILT_IN}"
        )
    test_a, test_b = [
        _pictures(root / f"test{letter}", letter, config, progress) if (root / f"test{letter}").is_dir() else None
        for letter in LETTERS
    ]
    aligned = isinstance(test_a, Folder) and isinstance(test_b, Folder) and test_a.names == test_b.names
    sides = []
    for letter, name, test, other in zip(LETTERS, names, (test_a, test_b), (test_b, test_a)):
        truth, mask = root / f"truth{letter}", root / f"mask{letter}"
        answers = truth if truth.is_dir() else other.directory if aligned and isinstance(other, Folder) else None
        train = _pictures(root / f"train{letter}", letter, config, progress)
        objects = mask if mask.is_dir() else None
        sides.append(DomainSource(letter, name, train, test, truth=answers, mask=objects))
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


def _pictures(directory: Path, letter: Letter, config: DataConfig, progress: Progress | None) -> ImageSource:
    """Find the pictures of a folder or, if there are none, the slices of the medical files in it.

    A medical file that is named itself gives its slices, too.
    """

    def slices(folder: Path, files: Sequence[str]) -> Slices:
        return open_slices(folder, files, config, cache_directory(config), letter=letter, progress=progress)

    if directory.is_file() and scan_suffix(directory) is not None:
        return slices(directory.parent, [directory.name])
    if not directory.is_dir():
        raise ValueError(f"data.path (--data) {directory} {_found(directory)}; name a folder of pictures")
    names = list_images(directory)
    if names and config.pages == "slices":
        if others := [name for name in names if Path(name).suffix.lower() not in STACK_SUFFIXES]:
            raise ValueError(
                f"data.pages=slices is for folders of TIFF files, and {directory} holds other pictures, for example "
                f"{others[0]}: move them away, or leave it out"
            )
        return slices(directory, names)
    if names:
        return folder_of_pictures(directory, names, config)
    if scans := [
        name for name in list_files(directory, POSSIBLE_SUFFIXES) if scan_suffix(directory / name) is not None
    ]:
        return slices(directory, scans)
    kinds = " ".join(sorted(suffix[1:] for suffix in READABLE_SUFFIXES))
    raise ValueError(
        f"data.path (--data) {directory} holds no picture ({kinds}), it {_found(directory)}; "
        "put pictures there or name another folder"
    )


def folder_of_pictures(directory: Path, names: tuple[str, ...], config: DataConfig) -> Folder:
    """Pictures of a folder, whose pages are what `config` says."""
    return Folder(directory, names, pages_are_channels=config.pages == "channels")


MAP = ".uncertainty.png"
"""How names of uncertainty maps end, which are written beside translations and are no pictures."""


def list_images(directory: Path) -> tuple[str, ...]:
    """List picture files below a directory, as `list_files` does, without uncertainty maps."""
    names = list_files(directory)
    return tuple(name for name in names if not name.endswith(MAP) and is_picture(directory / name))


def list_by_stem(directory: Path) -> dict[str, str]:
    """The pictures that `list_images` finds, by their `stem`. ValueError where two have one."""
    found: dict[str, str] = {}
    for name in list_images(directory):
        if (other := found.setdefault(stem(name), name)) is not name:
            raise ValueError(f"{directory} holds both {other} and {name}, for one picture: leave one of them")
    return found


def describe_unmatched_files(directory: Path, there: Mapping[str, str], names: Iterable[str]) -> str:
    """A line that counts the files of masks or label maps, `there` by their stems, that are of none of the pictures.

    Nothing where there are none.
    """
    alone = sorted(there.keys() - {stem(name) for name in names})
    if not alone:
        return ""
    return f"left out of {directory}, since no picture has their name: {len(alone)}, for example {there[alone[0]]}"


def stem(name: str) -> str:
    """A picture's name without its suffix, under which masks and label maps are found."""
    return str(PurePosixPath(name).with_suffix(""))


def describe_skipped_files(directory: Path, *, scans: bool) -> str:
    """A line that counts, by the ends of their names, the files below a folder that are no pictures; `scans` are none.

    World files go with their pictures and are not counted. Nothing where there are none, or no folder.
    """
    if not directory.is_dir():
        return ""
    paths = [directory / name for name in list_files(directory) if not name.endswith(MAP)]
    pictures = {path for path in paths if is_picture(path)}
    others = [path for path in paths if path not in pictures and not (scans and scan_suffix(path) is not None)]
    along = {str(file).lower() for path in pictures for file in find_world_files(path)} if others else set()
    others = [path for path in others if str(path).lower() not in along]
    counts = Counter(path.suffix.lower() or "without a suffix" for path in others).most_common()
    shown = ", ".join(f"{count} {kind}" for kind, count in counts[:_KINDS])
    shown += f" and {sum(count for _, count in counts[_KINDS:])} of other kinds" if len(counts) > _KINDS else ""
    return f"left out of {directory}, since they are no pictures that are read: {shown}" if counts else ""


def list_files(directory: Path, suffixes: Collection[str] | None = None) -> tuple[str, ...]:
    """List files, all or with one of `suffixes`, below a directory: paths relative to it, sorted, none hidden.

    Hidden folders are left out. Links are followed, except to a folder that contains them. ValueError for a folder that
    cannot be read.
    """

    def refuse(error: OSError) -> None:
        why = f"cannot be read ({error.strerror})"
        raise ValueError(f"folder {error.filename} {why}: make it readable, or move it away")

    names = []
    above = {str(directory): {os.path.realpath(directory)}}
    for parent, folders, files in os.walk(directory, onerror=refuse, followlinks=True):
        chain = above.pop(parent)
        real = {folder: os.path.realpath(os.path.join(parent, folder)) for folder in folders}
        folders[:] = [folder for folder in folders if not folder.startswith(".") and real[folder] not in chain]
        above |= {os.path.join(parent, folder): chain | {real[folder]} for folder in folders}
        for file in files:
            if not file.startswith(".") and (suffixes is None or Path(file).suffix.lower() in suffixes):
                names.append((Path(parent) / file).relative_to(directory).as_posix())
    return tuple(sorted(names))
