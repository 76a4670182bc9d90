"""Prepared images: decoded and resized once, then cached on disk.

An entry is a directory `<cache>/prepared/<key>` with `pixels.bin` (all images, end to end, in one type) and
`index.json` (names, shapes, type, checksum, skipped files). The key covers every file's name and bytes and every
setting that changes a pixel, so that an entry never becomes stale. The checksum is verified when an entry is opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from velogan.data.atomic_dirs import cache_subdir, locked_temp_dir, move_into_place
from velogan.data.config import DataConfig
from velogan.data.pictures.formats import can_read_heic
from velogan.data.pictures.preprocess import prepare
from velogan.data.pictures.values import PixelFormat, Range, can_hold_range, common_channels, promote_dtype, to_channels
from velogan.data.sets.prefetch import ordered_map
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import ImageSource, LabelMaps, cache_directory, content_hash
from velogan.files import pluralize
from velogan.types import Progress

VERSION = 5
"""Incremented if the same files and settings give other bytes."""

DEPTHS = ("uint8", "uint16", "float32")
"""The types of prepared pixels, the shallowest first."""

Shape = tuple[int, int, int]
"""An image's height, width and channels."""


class PixelFile:
    """A flat array of `dtype` on disk, of which only the requested slice is read into memory.

    The file is not mapped: if a mapped file is truncated, or its disk fails, the process is killed by SIGBUS.
    """

    def __init__(self, path: Path, dtype: np.dtype):
        self._path, self.dtype = path, dtype
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self.nbytes = os.fstat(self._file).st_size

    def __getitem__(self, part: slice) -> np.ndarray:
        """Read the values from `part.start` to `part.stop`. Raises OSError with the file and a hint."""
        values = np.empty(part.stop - part.start, self.dtype)
        remaining, offset = values.data.cast("B"), int(part.start) * self.dtype.itemsize
        code, reason = errno.EIO, "this file was truncated after it was opened"
        try:
            while remaining and (count := os.preadv(self._file, [remaining], offset)):  # may read only a part
                remaining, offset = remaining[count:], offset + count
            if not remaining:
                return values
        except OSError as error:
            code, reason = error.errno or errno.EIO, error.strerror or "it cannot be read"
        hint = "start the command again to prepare the images anew, or name another folder as data.cache_dir"
        raise OSError(code, f"{reason}: {hint}", str(self._path))


@dataclass(frozen=True)
class Domain:
    """The prepared images of one folder, in the order of their names.

    pixels: a flat array of uint8, uint16 or float32 with the images of `shapes` (H, W, C), one after another
    skipped: the files that could not be read, with the reason
    digest: a hash, which is equal for equal domains
    format: the meaning of the values
    note: a line for the user, or empty
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
        sizes = (height * width * channels for height, width, channels in self.shapes)
        return np.cumsum([0, *sizes])

    def image(self, index: int) -> np.ndarray:
        """Return one image as `(H, W, C)`. Raises OSError if its file can no longer be read."""
        return self.rows(index, 0, self.shapes[index][0])

    def rows(self, index: int, first: int, stop: int) -> np.ndarray:
        """Return rows `first` to `stop - 1` of an image as `(h, W, C)`. Raises OSError if they cannot be read."""
        _, width, channels = self.shapes[index]
        start, row = int(self._offsets[index]), width * channels
        return self.pixels[start + first * row : start + stop * row].reshape(-1, width, channels)

    def sample(self, count: int) -> np.ndarray:
        """Return all values of up to `count` images, evenly spaced in the domain, as a flat array."""
        indices = np.unique(np.linspace(0, len(self) - 1, count).astype(int)) if len(self) else ()
        return np.concatenate([np.empty(0, self.pixels.dtype), *(self.image(int(i)).reshape(-1) for i in indices)])

    @cached_property
    def has_one_shape(self) -> bool:
        """Whether all images have one shape."""
        return len(set(self.shapes)) == 1

    @property
    def skipped_line(self) -> str | None:
        """A line for the user that names some of the skipped files, or None if there are none."""
        if not self.skipped:
            return None
        shown = "; ".join(f"{name} ({reason})" for name, reason in self.skipped[:5])
        more = f"; and {len(self.skipped) - 5} more, see `velogan data check`" if len(self.skipped) > 5 else ""
        total = len(self) + len(self.skipped)
        return f"skipped {len(self.skipped)} of {pluralize(total, 'picture')} that cannot be read: {shown}{more}"


@dataclass(frozen=True)
class _Settings:
    """How the images of a source are prepared, see `open_domain`."""

    config: DataConfig
    test: bool
    channels: int | None
    value_range: Range | None

    def key(self, contents: bytes) -> str:
        """Return the name of a cache entry; the value range matters only by whether 8 and 16 bits can hold it."""
        span, config = self.value_range, self.config
        can_hold = () if span is None else tuple(can_hold_range(dtype, span) for dtype in ("uint8", "uint16"))
        facts = (VERSION, config.preprocess, config.load_side, config.crop_size, self.test)
        facts += (self.channels or "in common", can_read_heic(), *can_hold)
        return hashlib.sha256(repr(facts).encode() + contents).hexdigest()


def open_domain(
    source: ImageSource,
    config: DataConfig,
    *,
    test: bool,
    channels: int | None = None,
    value_range: Range | None = None,
    progress: Progress | None = None,
) -> Domain:
    """Open the prepared images of a source; prepare them first if no earlier run did.

    test: whether images are prepared for testing, without a random crop; see `preprocess.prepared_shape`
    channels: the number of channels; None: the number that suits most images. Images that cannot have it are skipped
    value_range: the pixel values that become -1 and +1; None: the full range of the integer type

    Raises ValueError if no picture can be read, or if floating-point pixels come without a range.
    """
    settings = _Settings(config, test, channels, value_range)
    domain, note = None, ""
    damage, directory = "", Path()
    with ThreadPoolExecutor(config.workers or os.cpu_count() or 1) as pool:  # the work releases the GIL
        contents, parent = _list_contents(source, pool), cache_subdir(cache_directory(config), "prepared")
        for count in dict.fromkeys((None, channels)):  # images may have these channels without a conversion
            settings = replace(settings, channels=count)
            directory = parent / settings.key(contents)
            domain, damage = _load_entry(directory)
            if damage:
                note = f"the prepared images in {directory} {damage}: preparing them again"
            if domain is not None and channels in (None, domain.format.channels):
                note = ""
                break
        else:
            _build_entry(directory, source, settings, pool, progress)
            domain, damage = _load_entry(directory)
    if domain is None:
        raise ValueError(
            f"data.cache_dir={directory.parents[1]} does not keep what is written to it ({damage}); name another folder"
        )
    if domain.skipped and not len(domain):
        raise unreadable_error(source, *domain.skipped[0], count=len(domain.skipped))
    pixel_format = replace(domain.format, pages=config.pages)
    if isinstance(source, Slices):
        skipped = (*source.skipped, *domain.skipped)
        return replace(domain, format=source.format(pixel_format), skipped=skipped, note=note)
    pixel_format = replace(pixel_format, range=value_range)
    check_range(source, domain.names, pixel_format)
    return replace(domain, format=pixel_format, note=note)


def check_range(source: ImageSource, names: Sequence[str], pixel_format: PixelFormat) -> None:
    """Raise ValueError if the pictures `names` hold floating-point values and `pixel_format` has no range."""
    if pixel_format.dtype == "float32" and pixel_format.range is None:
        name = next((name for name in names if source.read(name).pixels.dtype.kind == "f"), names[0])
        pixels = source.read(name).pixels
        low, high = f"{pixels.min():g}", f"{pixels.max():g}"
        raise ValueError(
            f"data.path (--data) {source.location} holds floating-point or signed pixels, whose range is not known: "
            f"set data.range_a (domain B: data.range_b) to the two values that stand for darkest and brightest "
            f"({name} has {low} to {high}), for example --data.range-a {low} {high}"
        )


def unreadable_error(source: ImageSource, name: str, reason: str, *, count: int) -> ValueError:
    """Return the error that none of `count` pictures can be read, with the `reason` for one of them, `name`."""
    files = f"{pluralize(count, 'file')} in {source.location}"
    return ValueError(
        f"data.path (--data) {source.path_of(name)} cannot be read (nor any other of the {files} that were tried): "
        f"{reason}; replace them, or name another folder"
    )


def _list_contents(source: ImageSource, pool: ThreadPoolExecutor) -> bytes:
    """Return the names of all files, each with a hash of its content, as one string of bytes."""
    hashes = pool.map(source.content, source.names)
    return "".join(f"{name!r}\0{content}\n" for name, content in zip(source.names, hashes)).encode()


def _load_entry(directory: Path) -> tuple[Domain | None, str]:
    """Open an entry: return the domain, or None and what is wrong with the entry (empty if there is no entry)."""
    if not directory.exists():
        return None, ""
    file = directory / "pixels.bin"
    try:
        index = json.loads((directory / "index.json").read_text())
        shapes = tuple((height, width, channels) for height, width, channels in index["shapes"])
        dtype = np.dtype({"uint8": "u1", "uint16": "<u2", "float32": "<f4"}[index["dtype"]])
        size = sum(height * width * channels for height, width, channels in shapes) * dtype.itemsize
        if file.stat().st_size != size or len(index["names"]) != len(shapes):
            return None, "are truncated"
        if content_hash(file) != index["sha256"]:
            return None, "do not match their checksum"
        skipped = tuple((name, reason) for name, reason in index["skipped"])
        pixel_format = PixelFormat(shapes[0][2] if shapes else 1, index["dtype"])
        digest = hashlib.sha256(repr((index["names"], index["dtype"], shapes, index["sha256"])).encode()).hexdigest()
        return Domain(tuple(index["names"]), shapes, PixelFile(file, dtype), skipped, digest, pixel_format), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"cannot be read ({error})"


def _build_entry(
    directory: Path, source: ImageSource, settings: _Settings, pool: ThreadPoolExecutor, progress: Progress | None
) -> None:
    """Prepare all images and write them to the cache entry `directory`."""
    try:
        with locked_temp_dir(directory.parent) as temp_dir:
            file = temp_dir / "pixels.bin"
            index = _write_images(file, source, settings, pool, progress)
            _convert_images(file, index, settings.channels, settings.value_range)
            index["sha256"] = content_hash(file)
            with (temp_dir / "index.json").open("w") as stream:
                json.dump(index, stream)
                _sync(stream)
            if settings.key(_list_contents(source, pool)) != directory.name:
                raise ValueError(
                    f"data.path (--data) {source.location}: pictures changed while they were prepared; start again "
                    "when nothing writes there"
                )
            move_into_place(temp_dir, directory, is_valid=lambda: _load_entry(directory)[0] is not None)
    except OSError as error:
        hint = "free some space, or name another folder as data.cache_dir"
        message = f"{error.strerror} while writing prepared images: {hint}"
        raise OSError(error.errno, message, str(directory.parents[1])) from error


def _write_images(
    path: Path, source: ImageSource, settings: _Settings, pool: ThreadPoolExecutor, progress: Progress | None
) -> dict[str, Any]:
    """Write every prepared image to `path`, with its own type and channels.

    Returns `names`, `shapes` (H, W, C), `dtypes`, and `skipped` (names with reasons). Raises OSError if the file cannot
    be written.
    """
    index: dict[str, Any] = {"names": [], "shapes": [], "dtypes": [], "skipped": []}
    ahead = 4 * (settings.config.workers or os.cpu_count() or 1)
    with path.open("wb") as file:
        prepared = ordered_map(pool, partial(_prepare, source, settings), source.names, ahead=ahead)
        for done, (name, result) in enumerate(prepared, start=1):
            if isinstance(result, str):
                index["skipped"].append((name, result))
            else:
                index["names"].append(name)
                index["shapes"].append(result.shape)
                index["dtypes"].append(str(result.dtype))
                file.write(np.ascontiguousarray(result).data)
            if progress:
                progress(done, len(source.names))
        _sync(file)
    return index


def _prepare(source: ImageSource, settings: _Settings, name: str) -> np.ndarray | str:
    """Return a prepared image, or why it is unreadable. Raises ValueError if only the first attempt failed."""
    try:
        nearest = isinstance(source, LabelMaps)
        return prepare(source.read(name).pixels, settings.config, test=settings.test, nearest=nearest)
    except OSError as error:
        reason, path = error.strerror or str(error), source.path_of(name)
    except ValueError as error:
        return str(error)
    if "unreadable" not in source.content(name):
        raise ValueError(f"data.path (--data) {path} could be read, and then could not ({reason}): start again")
    return reason


def _convert_images(path: Path, index: dict[str, Any], channels: int | None, value_range: Range | None) -> None:
    """Convert the images that `_write_images` wrote to their deepest type and to `channels`; update its `index`."""
    dtypes, shapes = index.pop("dtypes"), index["shapes"]
    index["dtype"] = dtype = max(dtypes, key=DEPTHS.index, default="uint8")
    channels = channels or common_channels([shape[2] for shape in shapes])
    fits = value_range is None or all(can_hold_range(kind, value_range) for kind in dtypes)
    if fits and set(dtypes) <= {dtype} and {shape[2] for shape in shapes} <= {channels}:
        return
    images = list(zip(index["names"], shapes, dtypes))
    index |= {"names": [], "shapes": []}
    raw_path = path.with_name("raw.bin")
    path.rename(raw_path)
    raw, start = np.memmap(raw_path, np.uint8, "r"), 0
    with path.open("wb") as file:
        for name, shape, kind in images:
            stop = start + int(np.prod(shape)) * np.dtype(kind).itemsize
            image, start = raw[start:stop].view(kind).reshape(shape), stop
            try:
                image = to_channels(promote_dtype(image, dtype, value_range), channels)
            except ValueError as error:
                index["skipped"].append((name, str(error)))
                continue
            index["names"].append(name)
            index["shapes"].append(image.shape)
            file.write(np.ascontiguousarray(image).data)
        _sync(file)
    del raw
    raw_path.unlink()


def _sync(file: IO[Any]) -> None:
    """Wait until what was written to `file` is on the disk."""
    file.flush()
    os.fsync(file.fileno())
