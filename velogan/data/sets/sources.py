"""Find the pictures of both domains: folders, their splits and, if known, the true translations."""

from __future__ import annotations

import hashlib
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
from velogan.files import join_first, sha256
from velogan.types import Letter, Progress

LETTERS: tuple[Letter, Letter] = ("A", "B")

_MAX_KINDS = 8  # of skipped files, in one line

MIN_TO_HOLD_OUT = 20
"""Minimum number of training pictures in each domain for some to be held out."""


@dataclass(frozen=True)
class Folder:
    """The pictures below one directory. `names`: their paths relative to it, sorted.

    `pages_are_channels` and `filled`: see `read_picture`; `filled` is False for masks and label maps.
    """

    directory: Path
    names: tuple[str, ...]
    pages_are_channels: bool = False
    filled: bool = True

    @property
    def location(self) -> str:
        """The directory, for messages."""
        return str(self.directory)

    def select(self, indices: Iterable[int]) -> Self:
        """Return a folder of only the pictures with these indices."""
        return self.select_names(self.names[index] for index in indices)

    def select_names(self, names: Iterable[str]) -> Self:
        """Return a folder of only the pictures with these names."""
        return replace(self, names=tuple(names))

    def path_of(self, name: str) -> str:
        """Return the path of a picture."""
        return str(self.directory / name)

    def read(self, name: str) -> Picture:
        """Read a picture. Raises OSError and ValueError as `read_picture` and `check_has_data` do."""
        path, pages_are_channels = self.directory / name, self.pages_are_channels
        return check_has_data(read_picture(path, pages_are_channels=pages_are_channels, filled=self.filled))

    def content(self, name: str) -> str:
        """Return a hash of a picture's bytes and of how they are read, or why the file cannot be read."""
        path = self.directory / name
        size = path.stat().st_size if path.is_file() else 0
        if size > MAX_BYTES + MAX_HEADER_BYTES:
            return f"unreadable: {size} bytes"
        digest = content_hash(path) + " pages are channels" * self.pages_are_channels
        return digest + " as it is" * (not self.filled and detect_suffix(read_first_bytes(path, 12)) == ".tiff")


ImageSource = Folder | Slices
"""A source of images, which are read by name."""


class LabelMaps(Folder):
    """Label maps below one directory, which are resized by nearest neighbour."""

    def content(self, name: str) -> str:
        """Return a hash of a label map's file; it differs from the hash of the same file read as a picture."""
        return f"labels {super().content(name)}"


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, or the reason why they cannot be read."""
    if not path.is_file():  # opening a pipe would wait for a writer
        return "unreadable: not a regular file"
    try:
        return sha256(path)
    except OSError as error:
        return f"unreadable: {error.strerror}"


@dataclass(frozen=True)
class DomainSource:
    """One domain, `letter` A or B, on disk.

    validation: pictures held out of `train`
    truth: folder with the true translation of each test picture, under the same name
    mask: folder with a mask of each test picture, 255 on the object and 0 elsewhere
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
    """Return the folder for decoded and rendered pictures; other users may share it."""
    return _create_private(Path(config.cache_dir).expanduser()) if config.cache_dir else code_directory()


def code_directory() -> Path:
    """Return the folder for compiled code. It is not in `data.cache_dir`, since no other user may write to it."""
    return _create_private(Path(os.environ.get("VELOGAN_CACHE") or "~/.cache/velogan").expanduser())


def _create_private(cache: Path) -> Path:
    """Create a folder that only its owner can read; if that fails, the first write there raises the error."""
    with suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache


def find_sources(config: DataConfig, *, progress: Progress | None = None) -> Sources:
    """Find both domains; render the built-in set first if no earlier run did.

    Raises ValueError, with field, folder and hint, if a folder is missing or empty, or if `data.group` matches no
    name, or if all pictures are of one group or patient.
    """
    sources = _find_domains(config, progress)
    for source in (sources.a, sources.b):
        _check_names(source, config)
    if config.validation and min(len(source.train.names) for source in (sources.a, sources.b)) >= MIN_TO_HOLD_OUT:
        sources = replace(sources, a=_hold_out(sources.a, config), b=_hold_out(sources.b, config))
    return sources


def check_output_outside_data(config: DataConfig, out: Path) -> None:
    """Raise ValueError if `out` lies among the pictures: what is written there would be trained on, too."""
    roots = [Path(path).expanduser() for path in config.path]
    parts = (roots[0] / f"{part}{letter}" for part in ("train", "test") for letter in LETTERS)
    for folder in roots if len(roots) > 1 else parts:
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"--out {out} lies in {folder}, so that pictures of this run would become training data: name a folder "
                "elsewhere"
            )


def _check_names(source: DomainSource, config: DataConfig) -> None:
    """Raise ValueError if `data.group` matches no name, or `data.context_slices` is set without volumes."""
    train, domain = source.train, f"{source.train.location} (domain {source.letter})"
    if config.group is not None and not any(_group_of(name, config.group) for name in train.names):
        raise ValueError(
            f"data.group={config.group!r} matches no name in {domain}, for example {train.names[0]}: correct the "
            "regular expression, or leave it out"
        )
    has_volumes = isinstance(train, Slices) and any(len(volume.slices) > 1 for volume in train.index.volumes)
    if config.context_slices and not has_volumes:
        raise ValueError(
            f"data.context_slices={config.context_slices} is for volumes of several slices, of DICOM or NIfTI, and "
            f"{domain} holds none: leave it out"
        )


def _group_of(name: str, expression: str) -> str | None:
    match = re.search(expression, name)
    return match and match[1 if match.re.groups else 0]


def _hold_out(source: DomainSource, config: DataConfig) -> DomainSource:
    """Hold out complete groups for validation: at most `data.validation` pictures and a tenth of all.

    The groups whose names have the lowest hashes are chosen: at least one group, but none with more than half of the
    pictures. So both domains hold out equal names, which keeps pairs together, and a few new files change little.
    """
    names, train = source.train.names, source.train
    groups: Sequence[str | None] = train.patients if isinstance(train, Slices) else [None] * len(names)
    field, fix = f"data.path (--data) {train.location}", "add patients"
    if config.group is not None:
        groups = [_group_of(name, config.group) for name in names]
        field, fix = f"data.group={config.group!r}", "let it match smaller groups"
    keys = [(bool(group), group or name) for group, name in zip(groups, names)]
    held_out = _choose_groups(keys, min(config.validation, len(names) // 10))
    if not held_out:
        raise ValueError(
            f"{field}: more than half of the {len(names)} training pictures of domain {source.letter} are of one group "
            f"or patient, so that none can be held out for validation: {fix}, or set data.validation=0"
        )
    rest = train.select(index for index in range(len(names)) if index not in held_out)
    validation = train.select(sorted(held_out))
    if isinstance(validation, Slices):  # `rest` reports the unreadable scans
        validation = replace(validation, index=replace(validation.index, skipped=()))
    return replace(source, train=rest, validation=validation)


def _choose_groups(keys: Sequence[tuple[bool, str]], max_pictures: int) -> set[int]:
    """Choose complete groups; return their pictures' indices. `keys`: (True, group) or (False, name) per picture."""
    groups: dict[tuple[bool, str], list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    chosen: set[int] = set()
    for key in sorted(groups, key=lambda key: hashlib.sha256(os.fsencode(key[1])).digest()):
        if 2 * len(groups[key]) > len(keys):
            continue
        if chosen and len(chosen) + len(groups[key]) > max_pictures:
            break
        chosen.update(groups[key])
    return chosen


def _find_domains(config: DataConfig, progress: Progress | None) -> Sources:
    if len(config.path) == 2:
        return _find_in_two_folders(config, progress)
    if config.path[0] == BUILT_IN:
        return _find_in_one_folder(_render(config, progress), ("apples", "oranges"), config, progress)
    root = Path(config.path[0]).expanduser()
    match = re.fullmatch(r"(.+?)2(.+)", root.resolve().name)  # such as horse2zebra
    return _find_in_one_folder(root, (match[1], match[2]) if match else LETTERS, config, progress)


def _render(config: DataConfig, progress: Progress | None) -> Path:
    is_uncropped = config.preprocess in ("crop", "none")
    train_size, test_size = config.load_side, config.load_side if is_uncropped else config.crop_size
    name = f"{BUILT_IN}-v{VERSION}-{train_size}-{test_size}-{config.render_count}-{config.render_test}-seed0"
    return render_folder(
        cache_subdir(cache_directory(config), "rendered") / name,
        count=config.render_count,
        test_count=config.render_test,
        image_size=train_size,
        test_size=test_size,
        seed=0,
        progress=progress,
    )


def _find_in_two_folders(config: DataConfig, progress: Progress | None) -> Sources:
    a, b = folders = [Path(path).expanduser().resolve() for path in config.path]
    if a.is_relative_to(b) or b.is_relative_to(a):
        raise ValueError(
            f"data.path (--data) names {config.path[0]} and {config.path[1]}, which are one folder or lie one in the "
            "other, so that pictures would be in both domains: name two folders side by side"
        )
    names = LETTERS if a.name == b.name else [folder.name for folder in folders]
    sources = [
        DomainSource(letter, name, _find_images(Path(path).expanduser(), letter, config, progress))
        for letter, name, path in zip(LETTERS, names, config.path)
    ]
    return Sources(*sources, aligned=False)


def _find_in_one_folder(root: Path, names: tuple[str, str], config: DataConfig, progress: Progress | None) -> Sources:
    if not (root / "trainA").is_dir() or not (root / "trainB").is_dir():
        raise ValueError(
            f"data.path (--data) {root} must hold trainA and trainB, and testA and testB if you have them, but it "
            f"{_describe_folder(root)}; name such a folder, two folders of pictures, or {BUILT_IN}"
        )
    tests = [
        _find_images(root / f"test{letter}", letter, config, progress) if (root / f"test{letter}").is_dir() else None
        for letter in LETTERS
    ]
    a, b = tests
    aligned = isinstance(a, Folder) and isinstance(b, Folder) and a.names == b.names
    sources = []
    for letter, name, test, other in zip(LETTERS, names, tests, reversed(tests)):
        truth, mask = root / f"truth{letter}", root / f"mask{letter}"
        pairs = other.directory if aligned and isinstance(other, Folder) else None
        sources.append(
            DomainSource(
                letter,
                name,
                _find_images(root / f"train{letter}", letter, config, progress),
                test,
                truth=truth if truth.is_dir() else pairs,
                mask=mask if mask.is_dir() else None,
            )
        )
    return Sources(*sources, aligned=aligned)


def _describe_folder(root: Path) -> str:
    if not root.exists():
        return "does not exist" + ("" if root.is_absolute() else f" (looked in {Path.cwd()})")
    if not root.is_dir():
        return "is a file"
    names = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
    return f"holds {join_first(names, 6)}" if names else "is empty"


def _find_images(directory: Path, letter: Letter, config: DataConfig, progress: Progress | None) -> ImageSource:
    """Find the pictures of a folder, else the slices of its medical files; `directory` may also be a medical file."""

    def open_scans(folder: Path, files: Sequence[str]) -> Slices:
        return open_slices(folder, files, config, cache_directory(config), letter=letter, progress=progress)

    if directory.is_file() and scan_suffix(directory) is not None:
        return open_scans(directory.parent, [directory.name])
    if not directory.is_dir():
        raise ValueError(f"data.path (--data) {directory} {_describe_folder(directory)}; name a folder of pictures")
    names = list_images(directory)
    if names and config.pages == "slices":
        if others := [name for name in names if Path(name).suffix.lower() not in STACK_SUFFIXES]:
            raise ValueError(
                f"data.pages=slices is for folders of TIFF files, and {directory} holds other pictures, for example "
                f"{others[0]}: move them away, or leave it out"
            )
        return open_scans(directory, names)
    if names:
        return folder_of_pictures(directory, names, config)
    files = list_files(directory, POSSIBLE_SUFFIXES)
    if scans := [name for name in files if scan_suffix(directory / name) is not None]:
        return open_scans(directory, scans)
    kinds = " ".join(sorted(suffix[1:] for suffix in READABLE_SUFFIXES))
    raise ValueError(
        f"data.path (--data) {directory} holds no picture ({kinds}), it {_describe_folder(directory)}; put pictures "
        "there or name another folder"
    )


def folder_of_pictures(directory: Path, names: tuple[str, ...], config: DataConfig) -> Folder:
    """Return the pictures `names` of a directory as a `Folder`; `config` states the meaning of TIFF pages."""
    return Folder(directory, names, pages_are_channels=config.pages == "channels")


UNCERTAINTY_SUFFIX = ".uncertainty.png"
"""The ending of uncertainty maps, which are written next to translations and are not read as pictures."""


def list_images(directory: Path) -> tuple[str, ...]:
    """List the pictures among the files that `list_files` finds below a directory, without uncertainty maps."""
    names = list_files(directory)
    return tuple(name for name in names if not name.endswith(UNCERTAINTY_SUFFIX) and is_picture(directory / name))


def list_by_stem(directory: Path) -> dict[str, str]:
    """Return the pictures that `list_images` finds, by their `stem`. Raises ValueError if two have the same stem."""
    by_stem: dict[str, str] = {}
    for name in list_images(directory):
        if (other := by_stem.setdefault(stem(name), name)) is not name:
            raise ValueError(f"{directory} holds both {other} and {name}, for one picture: keep one of them")
    return by_stem


def describe_unmatched_files(directory: Path, by_stem: Mapping[str, str], names: Iterable[str]) -> str:
    """Return a line on the masks or label maps `by_stem` that belong to no picture of `names`; empty if all do."""
    unmatched = [by_stem[key] for key in sorted(by_stem.keys() - {stem(name) for name in names})]
    if not unmatched:
        return ""
    return f"skipped in {directory}, since no picture has their name: {len(unmatched)}, for example {unmatched[0]}"


def stem(name: str) -> str:
    """Return a picture's name without its suffix, by which masks and label maps are found."""
    return str(PurePosixPath(name).with_suffix(""))


def describe_skipped_files(directory: Path, *, no_scans: bool) -> str:
    """Return a line that counts, by suffix, the files below a folder that are not pictures; empty if there are none.

    no_scans: whether medical files are left out of the count
    """
    if not directory.is_dir():
        return ""
    paths = [directory / name for name in list_files(directory) if not name.endswith(UNCERTAINTY_SUFFIX)]
    pictures = {path for path in paths if is_picture(path)}
    others = [path for path in paths if path not in pictures and not (no_scans and scan_suffix(path) is not None)]
    counts = Counter(path.suffix.lower() or "without a suffix" for path in others).most_common()
    shown = ", ".join(f"{count} {kind}" for kind, count in counts[:_MAX_KINDS])
    rest = sum(count for _, count in counts[_MAX_KINDS:])
    shown += f" and {rest} of other kinds" if rest else ""
    return f"skipped in {directory}, since they are not pictures that can be read: {shown}" if counts else ""


def list_files(directory: Path, suffixes: Collection[str] | None = None) -> tuple[str, ...]:
    """List the files below a directory, with one of `suffixes` if given, as sorted relative paths.

    Hidden files and folders are skipped. Links are followed, except to a folder that contains them. Raises ValueError
    if a folder cannot be read.
    """

    def reject(error: OSError) -> None:
        reason = f"cannot be read ({error.strerror})"
        raise ValueError(f"folder {error.filename} {reason}: make it readable, or move it away")

    names = []
    ancestors_of = {str(directory): {os.path.realpath(directory)}}
    for parent, folders, files in os.walk(directory, onerror=reject, followlinks=True):
        ancestors = ancestors_of.pop(parent)
        real_paths = {folder: os.path.realpath(os.path.join(parent, folder)) for folder in folders}
        folders[:] = [name for name in folders if not name.startswith(".") and real_paths[name] not in ancestors]
        ancestors_of |= {os.path.join(parent, folder): ancestors | {real_paths[folder]} for folder in folders}
        for file in files:
            if not file.startswith(".") and (suffixes is None or Path(file).suffix.lower() in suffixes):
                names.append((Path(parent) / file).relative_to(directory).as_posix())
    return tuple(sorted(names))
