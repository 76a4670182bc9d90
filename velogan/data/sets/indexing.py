"""The index of a shard: where each picture lies, and its size, found by decoding all once and kept in the cache.

An entry is a directory `<cache>/shards/<key>` with `arrays.npz` and `index.json`. The key covers
address, size and times of change (of a web address: what its server says of them), so a shard that changes is looked
through again. Nothing in it depends on how the pictures are prepared.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from tarfile import TarInfo
from typing import IO, overload

import numpy as np

from velogan.data.aside import building, move_into_place, part_of
from velogan.data.pictures.formats import knows_heic
from velogan.data.pictures.images import decode
from velogan.data.pictures.picture import HEADERS, MAX_BYTES
from velogan.data.sets.ahead import in_order
from velogan.data.sets.shards import Shard, changed
from velogan.data.sets.tars import damage_told, is_picture, members
from velogan.files import sha256

VERSION = 2
"""Rises when the same shard gives another index."""

DEPTHS = ("uint8", "uint16", "float32")
_TRIES = 3
_ARRAYS = {
    "offset": "<i8",
    "size": "<u4",
    "crc": "<u4",
    "height": "<u2",
    "width": "<u2",
    "channels": "<u2",
    "depth": "u1",
}


class LazyNames(Sequence[str]):
    """A sequence of names, each computed when it is asked for."""

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        """Give one name, or several."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        return self.name_at(range(len(self))[number])

    @abstractmethod
    def name_at(self, number: int) -> str:
        """Returns the name at this index, from 0 on."""


class Names(LazyNames):
    """Many names in one block of bytes."""

    def __init__(self, block: bytes):
        self._block = block
        self._ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 0).astype(np.uint32)

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        """Pack `names`, which hold no zero."""
        return cls(b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in names))

    @property
    def block(self) -> bytes:
        """The names, each ended by a zero."""
        return self._block

    def __len__(self) -> int:
        return len(self._ends)

    def name_at(self, number: int) -> str:
        first = int(self._ends[number - 1]) + 1 if number else 0
        return self._block[first : int(self._ends[number])].decode("utf-8", "surrogateescape")

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Give the number of a name; `ValueError` if it is not here."""
        wanted = value.encode("utf-8", "surrogateescape") + b"\0"
        at = 0 if self._block.startswith(wanted) else self._block.find(b"\0" + wanted) + 1
        if not at and not self._block.startswith(wanted):
            raise ValueError(value)
        return int(np.searchsorted(self._ends, at))


@dataclass(frozen=True)
class ShardIndex:
    """The pictures of one shard, in its order.

    `names`: their paths in it; `arrays`: by picture, `offset` and `size` of its file, `crc` of its bytes, and of the
    decoded picture `height`, `width`, `channels` and `depth` (a place in `DEPTHS`); `skipped`: names that cannot be
    read, with the reason; `sha256`: of the whole shard.
    """

    shard: Shard
    names: Names
    arrays: dict[str, np.ndarray]
    skipped: tuple[tuple[str, str], ...]
    sha256: str

    def __len__(self) -> int:
        return len(self.names)

    def read(self, number: int) -> bytes:
        """Give a picture's bytes; `OSError` if the shard has changed or cannot be read."""
        offset, size, crc = (int(self.arrays[name][number]) for name in ("offset", "size", "crc"))
        data = self.shard.read(offset, size)
        if zlib.crc32(data) != crc:
            raise changed(self.shard.address)
        return data


def open_index(shard: Shard, cache: Path, pool: Executor, *, ahead: int) -> ShardIndex:
    """Open the index of a shard; look through the shard first if no earlier run did.

    Raises `ValueError` that names the shard if it is damaged.
    """
    key = hashlib.sha256(repr((VERSION, knows_heic(), shard.identity)).encode("utf-8", "surrogateescape")).hexdigest()
    directory = part_of(cache, "shards") / key
    found = _load(directory, shard)
    if found is not None:
        return found
    try:
        with building(directory.parent) as fresh:
            _look_through(fresh, shard, pool, ahead=ahead)
            move_into_place(fresh, directory, whole=lambda: _load(directory, shard) is not None)
    except OSError as error:
        if error.filename == shard.address:
            raise
        mend = f"{error.strerror} while keeping a shard's index: make room, or name another folder as data.cache_dir"
        raise OSError(error.errno, mend, str(cache)) from error
    found = _load(directory, shard)
    if found is None:
        raise ValueError(f"data.cache_dir={cache} does not keep what is written to it; name another")
    return found


def _load(directory: Path, shard: Shard) -> ShardIndex | None:
    """Open an entry; None if there is none, or it is damaged."""
    try:
        index = json.loads((directory / "index.json").read_text())
        if sha256(directory / "arrays.npz") != index["files"]["arrays.npz"]:
            return None
        with np.load(directory / "arrays.npz", allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in _ARRAYS}
            names = Names(kept["names"].tobytes())
        skipped = tuple((name, reason) for name, reason in index["skipped"])
        return ShardIndex(shard, names, arrays, skipped, index["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass
class _Found:
    """What was found in a shard: rows as of `_ARRAYS`, names, members that cannot be read, and the shard's SHA-256."""

    rows: list[tuple[int, ...]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    sha256: str = ""


def _look_through(fresh: Path, shard: Shard, pool: Executor, *, ahead: int) -> None:
    for left in reversed(range(_TRIES)):
        try:
            found = _looked(shard, pool, ahead=ahead)
            break
        except (HTTPException, ConnectionError, TimeoutError) as error:  # a web address stopped in the middle
            if not left:
                raise OSError(5, f"it breaks off ({error}), {_TRIES} times", shard.address) from error
    columns = np.array(found.rows, np.int64).reshape(-1, len(_ARRAYS)).T
    arrays = {name: column.astype(kind) for (name, kind), column in zip(_ARRAYS.items(), columns)}
    arrays["names"] = np.frombuffer(Names.of(found.names).block, np.uint8)
    np.savez(fresh / "arrays.npz", **arrays)  # pyright: ignore[reportArgumentType]
    files = {"arrays.npz": sha256(fresh / "arrays.npz")}
    text = json.dumps({"address": shard.address, "sha256": found.sha256, "files": files, "skipped": found.skipped})
    (fresh / "index.json").write_text(text)


def _looked(shard: Shard, pool: Executor, *, ahead: int) -> _Found:
    """Decode every picture of a shard."""
    found = _Found()
    with shard.opened() as file:
        stream = _Hashed(file)
        try:
            with damage_told():
                pictures = _pictures(stream, found)
                for (name, offset, data), seen in in_order(pool, lambda one: _look(one[2]), pictures, ahead=ahead):
                    if isinstance(seen, str):
                        found.skipped.append((name, seen))
                    else:
                        found.rows.append((offset, len(data), *seen))
                        found.names.append(name)
                while stream.read(2**20):
                    pass
        except ValueError as error:
            if stream.cut_short():
                raise ConnectionError(f"{stream.count} bytes came") from error
            raise ValueError(
                f"data.path (--data) {shard.address}: {error}; bring a whole one, or leave it out"
            ) from error
        if stream.cut_short():
            raise ConnectionError(f"{stream.count} bytes came")
    found.sha256 = stream.hash.hexdigest()
    return found


def _pictures(stream: _Hashed, found: _Found) -> Iterator[tuple[str, int, bytes]]:
    """Yield name, offset and bytes of the pictures that may be decoded; of the others, note why not."""
    known: set[str] = set()
    for tar, member in members(stream):  # pyright: ignore[reportArgumentType]
        if not is_picture(member):
            continue
        reason = _unfit(member, known)
        known.add(member.name)
        file = tar.extractfile(member) if not reason else None
        if file is None:
            found.skipped.append((member.name, reason))
        else:
            yield member.name, member.offset_data, file.read()


def _unfit(member: TarInfo, known: set[str]) -> str:
    """Why a member is not read; empty if it is."""
    if member.name in known:
        return "another of the same name comes before it"
    if "\0" in member.name:
        return "its name holds a zero"
    if member.issparse():
        return "it is stored as a sparse file"
    return f"a file of {member.size >> 20} MiB" if member.size > MAX_BYTES + HEADERS else ""


def _look(data: bytes) -> tuple[int, ...] | str:
    """A row of `_ARRAYS` from `crc` on, or why the picture cannot be read."""
    try:
        pixels = decode(data).pixels
    except ValueError as error:
        return str(error)
    return (zlib.crc32(data), *pixels.shape, DEPTHS.index(pixels.dtype.name))


class _Hashed:
    """A file whose bytes are counted and hashed as they are read."""

    def __init__(self, file: IO[bytes] | HTTPResponse):
        self._file, self.hash, self.count = file, hashlib.sha256(), 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        self.count += len(data)
        return data

    def cut_short(self) -> bool:
        """Whether a server said that there is more than came."""
        told = self._file.headers.get("Content-Length") if isinstance(self._file, HTTPResponse) else None
        return told is not None and not self._file.read(1) and self.count < int(told)
