"""Prepared pictures: decoded and resized once, then kept in a cache.

An entry is a directory `<cache>/prepared/<key>` with `pixels.bin` (all pictures, end to end, in one type) and
`index.json` (names, shapes, type, checksum, what was left out). The key covers every file's name and bytes and every
setting that changes a pixel, so an entry never goes stale. The checksum is verified whenever an entry is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from velogan.data.atomic_dirs import cache_subdir, locked_temp_dir, move_into_place
from velogan.data.config import DataConfig
from velogan.data.pictures.formats import can_read_heic
from velogan.data.pictures.values import PixelFormat, Range, can_hold_range
from velogan.data.sets.pixels import PixelFile, Shape, offsets
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import ImageSource, cache_directory, content_hash
from velogan.data.sets.writing import conform, to_disk, write_raw
from velogan.files import pluralize
from velogan.types import Progress

VERSION = 5
"""Rises when the same files and settings give other bytes."""


@dataclass(frozen=True)
class Domain:
    """The prepared pictures of one folder, in the order of their names.

    `pixels` is a flat array of uint8, uint16 or float32, in memory or in a file, in which the pictures of
    `shapes` (H, W, C) lie one after another; `format` says what its values stand for; `skipped` names the
    files that could not be read, with the reason; `digest` is equal for equal domains; `note` is a line for the user,
    or empty.
    """

    names: Sequence[str]
    shapes: Sequence[Shape]
    pixels: np.ndarray | PixelFile = field(repr=False)
    skipped: tuple[tuple[str, str], ...] = ()
    digest: str = ""
    format: PixelFormat = field(default_factory=PixelFormat)
    note: str = ""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _offsets(self) -> np.ndarray:
        return offsets(self.shapes)

    def image(self, index: int) -> np.ndarray:
        """Give one picture as `(H, W, C)`. Raises `OSError` if its file can no longer be read."""
        return self.rows(index, 0, self.shapes[index][0])

    def rows(self, index: int, first: int, stop: int) -> np.ndarray:
        """Give some rows of one picture as `(stop - first, W, C)`. Raises `OSError` as `image` does."""
        _, width, channels = self.shapes[index]
        start, row = int(self._offsets[index]), width * channels
        return self.pixels[start + first * row : start + stop * row].reshape(-1, width, channels)

    def sample(self, count: int) -> np.ndarray:
        """Give all values of `count` pictures, evenly spread, as one row."""
        numbers = np.unique(np.linspace(0, len(self) - 1, count).astype(int)) if len(self) else ()
        return np.concatenate([np.empty(0, self.pixels.dtype), *(self.image(int(n)).reshape(-1) for n in numbers)])

    @cached_property
    def uniform(self) -> bool:
        """Whether all pictures have one shape."""
        return len(set(self.shapes)) == 1

    @property
    def skipped_line(self) -> str | None:
        """One line that names the files left out, or None if there are none."""
        if not self.skipped:
            return None
        shown = "; ".join(f"{name} ({reason})" for name, reason in self.skipped[:5])
        more = f"; and {len(self.skipped) - 5} more, see `velogan data check`" if len(self.skipped) > 5 else ""
        total = len(self) + len(self.skipped)
        return f"left out {len(self.skipped)} of {pluralize(total, 'picture')} that cannot be read: {shown}{more}"


def open_domain(
    folder: ImageSource,
    config: DataConfig,
    *,
    test: bool,
    channels: int | None = None,
    value_range: Range | None = None,
    progress: Progress | None = None,
) -> Domain:
    """Open a folder's prepared pictures; prepare them first if no earlier run did.

    `test`: the pictures will not be cropped at random, see `preprocess.prepared_shape`. `channels`: None means the
    most that any of the pictures has. Grey pictures become colour, colour pictures grey; a picture that cannot be
    converted is left out. `value_range`: the pixel values that stand for -1 and +1; None means the whole range of the
    integer type.
    Raises `ValueError` if no picture can be read, or if pixels that are
    floats come without a range.
    """
    workers = config.workers or os.cpu_count() or 1
    domain, note, damage, directory = None, "", "", Path()
    with ThreadPoolExecutor(workers) as pool:  # hashing, decoding and resizing release Python's lock
        contents, prepared_in = _contents(folder, pool), cache_subdir(cache_directory(config), "prepared")
        for asked in dict.fromkeys((None, channels)):  # the pictures' own channels may be those asked for
            directory = prepared_in / _key(contents, config, test=test, channels=asked, value_range=value_range)
            domain, damage = _load(directory)
            if damage:
                note = f"the prepared pictures in {directory} {damage}: preparing them again"
            if domain is not None and channels in (None, domain.format.channels):
                note = ""
                break
        else:
            how: Any = {"test": test, "channels": channels, "value_range": value_range}
            _build(directory, folder, config, pool, progress=progress, **how)
            domain, damage = _load(directory)
    if domain is None:
        raise ValueError(
            f"data.cache_dir={directory.parents[1]} does not keep what is written to it ({damage}); name another"
        )
    return _checked(replace(domain, note=note), folder, config, value_range)


def _checked(domain: Domain, folder: ImageSource, config: DataConfig, value_range: Range | None) -> Domain:
    """Give the domain with its range; raises `ValueError` as `open_domain` does."""
    if domain.skipped and not len(domain):
        raise unreadable_error(folder, *domain.skipped[0], looked_at=len(domain.skipped))
    form = replace(domain.format, pages=config.pages)
    if isinstance(folder, Slices):
        return replace(domain, format=folder.format(form), skipped=(*folder.skipped, *domain.skipped))
    form = replace(form, range=value_range)
    check_range(folder, domain.names, form)
    return replace(domain, format=form)


def check_range(folder: ImageSource, names: Sequence[str], form: PixelFormat) -> None:
    """Raise `ValueError` if the pictures `names` hold floats, whose range `form` does not say."""
    if form.dtype == "float32" and form.range is None:
        name = next((one for one in names if folder.read(one).pixels.dtype.kind == "f"), names[0])
        pixels = folder.read(name).pixels
        low, high = f"{pixels.min():g}", f"{pixels.max():g}"
        raise ValueError(
            f"data.path (--data) {folder.where} holds floating-point or signed pixels, whose range is not known: "
            f"set data.range_a (domain B: data.range_b) to the two values that stand for darkest and brightest "
            f"({name} goes from {low} to {high}), for example --data.range-a {low} {high}"
        )


def unreadable_error(folder: ImageSource, name: str, reason: str, *, looked_at: int) -> ValueError:
    """The error for pictures of which none can be read, `name` for that `reason`."""
    return ValueError(
        f"data.path (--data) {folder.path_of(name)} cannot be read (nor any of the "
        f"{pluralize(looked_at, 'file')} in {folder.where} that were looked at): {reason}; mend them, or name another "
        "folder"
    )


def _contents(folder: ImageSource, pool: ThreadPoolExecutor) -> bytes:
    """List every file's name and the hash of its content."""
    hashes = pool.map(folder.content, folder.names)
    return "".join(f"{name!r}\0{content}\n" for name, content in zip(folder.names, hashes)).encode()


def _key(contents: bytes, config: DataConfig, *, test: bool, channels: int | None, value_range: Range | None) -> str:
    """The name of an entry. Of the range only the types that can follow it change what is kept."""
    units = () if value_range is None else tuple(can_hold_range(dtype, value_range) for dtype in ("uint8", "uint16"))
    settings = (VERSION, config.preprocess, config.load_side, config.crop_size, test, channels or "in common")
    settings += (can_read_heic(), *units)
    return hashlib.sha256(repr(settings).encode() + contents).hexdigest()


def _load(directory: Path) -> tuple[Domain | None, str]:
    """Open an entry: the domain, or None and what is wrong with the entry (empty if there is no entry)."""
    if not directory.exists():
        return None, ""
    try:
        index = json.loads((directory / "index.json").read_text())
        shapes = tuple((height, width, channels) for height, width, channels in index["shapes"])
        dtype = np.dtype({"uint8": "u1", "uint16": "<u2", "float32": "<f4"}[index["dtype"]])
        total = sum(height * width * channels for height, width, channels in shapes) * dtype.itemsize
        if (directory / "pixels.bin").stat().st_size != total or len(index["names"]) != len(shapes):
            return None, "are cut short"
        if content_hash(directory / "pixels.bin") != index["sha256"]:
            return None, "do not match their checksum"
        pixels = PixelFile(directory / "pixels.bin", dtype)
        skipped = tuple((name, reason) for name, reason in index["skipped"])
        form = PixelFormat(shapes[0][2] if shapes else 1, index["dtype"])
        digest = hashlib.sha256(repr((index["names"], index["dtype"], shapes, index["sha256"])).encode()).hexdigest()
        return Domain(tuple(index["names"]), shapes, pixels, skipped, digest, form), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"cannot be read ({error})"


def _build(
    directory: Path,
    folder: ImageSource,
    config: DataConfig,
    pool: ThreadPoolExecutor,
    *,
    test: bool,
    channels: int | None,
    value_range: Range | None,
    progress: Progress | None,
) -> None:
    try:
        with locked_temp_dir(directory.parent) as fresh:
            index = write_raw(fresh / "pixels.bin", folder, config, pool, test=test, progress=progress)
            conform(fresh / "pixels.bin", index, channels, value_range)
            index["sha256"] = content_hash(fresh / "pixels.bin")
            with (fresh / "index.json").open("w") as file:
                json.dump(index, file)
                to_disk(file)
            now = _contents(folder, pool)
            if _key(now, config, test=test, channels=channels, value_range=value_range) != directory.name:
                raise ValueError(
                    f"data.path (--data) {folder.where}: pictures changed while they were prepared; start again "
                    "when nothing writes there"
                )
            move_into_place(fresh, directory, whole=lambda: _load(directory)[0] is not None)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror} while keeping prepared pictures: make room, or name another folder as data.cache_dir",
            str(directory.parents[1]),
        ) from error
