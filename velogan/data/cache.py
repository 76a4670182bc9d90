"""Prepared pictures, decoded and resized once and kept as one memory-mapped block of bytes.

An entry is a directory `<cache>/prepared/<key>` with `pixels.bin` (all pictures, uint8, end to end) and
`index.json` (names, shapes, what was left out). The key covers every file's name and bytes and every setting
that changes a pixel, so an entry never goes stale.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np

from velogan.data.config import DataConfig
from velogan.data.images import decode
from velogan.data.preprocess import prepare
from velogan.data.sources import Folder, cache_directory

VERSION = 1
"""Rises when the same files and settings give other bytes."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Domain:
    """The prepared pictures of one folder, in the order of their names.

    `pixels` is a flat uint8 array (usually a memory map) in which the pictures of `shapes` lie one after
    another; `skipped` names the files that could not be read, with the reason; `digest` tells equal domains.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, int, int], ...]
    pixels: np.ndarray = field(repr=False)
    skipped: tuple[tuple[str, str], ...] = ()
    digest: str = ""

    @classmethod
    def from_arrays(cls, images: Sequence[np.ndarray], names: Sequence[str] = ()) -> Domain:
        """Make a domain of `(H, W, C)` uint8 arrays in memory."""
        names = tuple(names) or tuple(f"{index:05d}" for index in range(len(images)))
        pixels = np.concatenate([image.reshape(-1) for image in images])
        digest = hashlib.sha256(repr((names, [image.shape for image in images])).encode() + pixels.tobytes())
        return cls(names, tuple(image.shape for image in images), pixels, digest=digest.hexdigest())

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum([np.prod(shape) for shape in self.shapes])]).astype(np.int64)

    def shape(self, index: int) -> tuple[int, int, int]:
        """Give one picture's `(H, W, C)`."""
        return self.shapes[index]

    def image(self, index: int) -> np.ndarray:
        """View one picture as `(H, W, C)` uint8."""
        start, stop = self._offsets[index], self._offsets[index + 1]
        return self.pixels[start:stop].reshape(self.shapes[index])

    @cached_property
    def uniform(self) -> bool:
        """Whether all pictures have one shape."""
        return len(set(self.shapes)) == 1

    @property
    def array(self) -> np.ndarray:
        """View all pictures as `(N, H, W, C)` uint8; they must be uniform."""
        assert self.uniform
        return self.pixels.reshape(len(self), *self.shapes[0])

    @property
    def skipped_line(self) -> str | None:
        """One line that names the files left out, or None where there are none."""
        if not self.skipped:
            return None
        shown = "; ".join(f"{name} ({reason})" for name, reason in self.skipped[:5])
        more = f"; and {len(self.skipped) - 5} more" if len(self.skipped) > 5 else ""
        total = len(self) + len(self.skipped)
        return f"left out {len(self.skipped)} of {total} pictures that cannot be read: {shown}{more}"


def open_domain(folder: Folder, config: DataConfig, *, test: bool, progress: Progress | None = None) -> Domain:
    """Open a folder's prepared pictures, preparing them first where no earlier run has.

    `test` prepares for use without a random part: see `preprocess.prepared_shape`. Raises `ValueError`
    where no picture can be read, or, under `data.strict`, where one cannot.
    """
    workers = config.workers or os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:  # hashing, decoding and resizing all run outside Python's lock
        key = _key(folder, config, pool, test=test)
        directory = cache_directory(config) / "prepared" / key
        domain = _load(directory, key)
        if domain is None:
            _build(directory, folder, config, pool, test=test, progress=progress)
            domain = _load(directory, key)
    if domain is None:
        raise ValueError(f"data.cache_dir={directory.parents[1]} does not keep what is written to it; name another")
    if domain.skipped and (config.strict or not len(domain)):
        name, reason = domain.skipped[0]
        mend = "mend or remove it, or set data.strict to false" if len(domain) else "put pictures there"
        count = "" if len(domain) else f" (nor any of the {len(domain.skipped)} files in {folder.directory})"
        raise ValueError(f"data.path (--data) {folder.directory / name} cannot be read{count}: {reason}; {mend}")
    return domain


def _key(folder: Folder, config: DataConfig, pool: ThreadPoolExecutor, *, test: bool) -> str:
    settings = (VERSION, config.preprocess, config.load_side, config.crop_size, test)
    digest = hashlib.sha256(repr(settings).encode())
    paths = [folder.directory / name for name in folder.names]
    for name, content in zip(folder.names, pool.map(content_hash, paths)):
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def content_hash(path: Path) -> str:
    """Give the SHA-256 of a file's bytes, or the reason why they cannot be had."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _load(directory: Path, key: str) -> Domain | None:
    """Open an entry; None where there is none or where it is damaged."""
    try:
        index = json.loads((directory / "index.json").read_text())
        shapes = tuple((height, width, channels) for height, width, channels in index["shapes"])
        total = sum(height * width * channels for height, width, channels in shapes)
        if (directory / "pixels.bin").stat().st_size != total or len(index["names"]) != len(shapes):
            return None
        # Copy on write: pages are shared, and torch takes the array without complaint.
        pixels = np.memmap(directory / "pixels.bin", np.uint8, "c") if total else np.zeros(0, np.uint8)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    skipped = tuple((name, reason) for name, reason in index["skipped"])
    return Domain(tuple(index["names"]), shapes, pixels, skipped, key)


def _build(
    directory: Path,
    folder: Folder,
    config: DataConfig,
    pool: ThreadPoolExecutor,
    *,
    test: bool,
    progress: Progress | None,
) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".building-"))
    index: dict[str, list] = {"names": [], "shapes": [], "skipped": []}
    try:
        with (fresh / "pixels.bin").open("wb") as file:
            prepared = _prepared(folder, config, pool, test=test)
            for done, (name, result) in enumerate(prepared, start=1):
                if isinstance(result, str):
                    index["skipped"].append((name, result))
                else:
                    index["names"].append(name)
                    index["shapes"].append(result.shape)
                    file.write(np.ascontiguousarray(result).data)
                if progress:
                    progress(done, len(folder.names))
            _to_disk(file)
        with (fresh / "index.json").open("w") as file:
            json.dump(index, file)
            _to_disk(file)
        _move_into_place(fresh, directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _to_disk(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _move_into_place(fresh: Path, directory: Path) -> None:
    for _ in range(2):
        try:
            fresh.rename(directory)
            return
        except OSError:
            if _load(directory, "") is not None:  # another process was first with the same bytes
                return
            shutil.rmtree(directory, ignore_errors=True)  # a damaged entry


def _prepared(
    folder: Folder, config: DataConfig, pool: ThreadPoolExecutor, *, test: bool
) -> Iterator[tuple[str, np.ndarray | str]]:
    """Yield each name with its prepared picture or the reason why there is none, at most 256 ahead."""
    work = partial(_prepare_one, folder.directory, config=config, test=test)
    for names in _chunks(folder.names, 256):
        yield from zip(names, pool.map(work, names))


def _prepare_one(directory: Path, name: str, *, config: DataConfig, test: bool) -> np.ndarray | str:
    try:
        return prepare(decode((directory / name).read_bytes()), config, test=test)
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)


def _chunks(names: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(names)
    while chunk := list(islice(rest, size)):
        yield chunk
