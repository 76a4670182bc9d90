"""Training from shards: the chosen pictures as a source, and their prepared pixels, computed on request."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Self

import numpy as np

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, decode, with_data
from velogan.data.pictures.picture import check_size
from velogan.data.pictures.preprocess import prepare, prepared_shape
from velogan.data.pictures.values import Range, channels_in_common, deepen, to_channels
from velogan.data.sets.indexing import DEPTHS, LazyNames, ShardIndex, open_index
from velogan.data.sets.pixels import Shape, offsets
from velogan.data.sets.shards import Shard
from velogan.types import Progress

_LOOKED_AT = 100
"""How many names of each shard are searched for samples that hold several pictures."""


@dataclass(frozen=True)
class Shards:
    """Pictures of some shards, in the order of the shards and of their members; `where` is what names them.

    `chosen`: those of the pictures that are meant, by their numbers among all. A name is the shard's and the member's,
    `a-000.tar/cats/1.jpg`; `skipped` are names that cannot be read, with the reason.
    """

    where: str
    indexes: tuple[ShardIndex, ...]
    chosen: np.ndarray
    skipped: tuple[tuple[str, str], ...] = ()

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of each shard's first picture, and the count of all."""
        return np.concatenate([[0], np.cumsum([len(index) for index in self.indexes])]).astype(np.int64)

    @property
    def names(self) -> Sequence[str]:
        """The pictures' names."""
        return _Chosen(self, lambda shard, name: f"{self.indexes[shard].shard.label}/{name}")

    @property
    def own_names(self) -> Sequence[str]:
        """The pictures' names within their shards."""
        return _Chosen(self, lambda shard, name: name)

    def place(self, number: int) -> tuple[int, int]:
        """Give a chosen picture's shard and its number there."""
        whole = int(self.chosen[number])
        shard = int(np.searchsorted(self.starts, whole, "right")) - 1
        return shard, whole - int(self.starts[shard])

    def some(self, numbers: Iterable[int] | np.ndarray) -> Self:
        """Returns those of the chosen pictures that have these numbers, counted among the chosen ones."""
        return replace(self, chosen=self.chosen[np.asarray(numbers, np.int64)], skipped=())

    def named(self, names: Iterable[str]) -> Self:
        """Returns the pictures of these names."""
        found = [self._find(name) for name in names]
        return replace(
            self, chosen=np.array([self.starts[shard] + place for shard, place in found], np.int64), skipped=()
        )

    def path_of(self, name: str) -> str:
        """Name a picture for messages, with its shard's whole address."""
        shard, own = self._shard_of(name)
        return f"{self.indexes[shard].shard.address}/{own}"

    def read(self, name: str) -> Picture:
        """Read a picture. Raises `OSError` and `ValueError` as `read_picture` and `with_data` do."""
        return with_data(decode(self._bytes(name)))

    def content(self, name: str) -> str:
        """Give the SHA-256 of a picture's file."""
        return hashlib.sha256(self._bytes(name)).hexdigest()

    def column(self, name: str) -> np.ndarray:
        """Give one of the index's arrays for the chosen pictures."""
        return np.concatenate([index.arrays[name] for index in self.indexes])[self.chosen]

    @property
    def digest(self) -> str:
        """A hash of the shards' contents and the choice."""
        contents = repr([index.sha256 for index in self.indexes]).encode()
        return hashlib.sha256(contents + self.chosen.tobytes()).hexdigest()

    @cached_property
    def _labels(self) -> dict[str, int]:
        return {index.shard.label: number for number, index in enumerate(self.indexes)}

    def _shard_of(self, name: str) -> tuple[int, str]:
        """Give the number of a name's shard, and the name within it."""
        for at in (at for at, letter in enumerate(name) if letter == "/"):
            if (shard := self._labels.get(name[:at])) is not None:
                return shard, name[at + 1 :]
        raise ValueError(name)

    def _find(self, name: str) -> tuple[int, int]:
        shard, own = self._shard_of(name)
        return shard, self.indexes[shard].names.index(own)

    def _bytes(self, name: str) -> bytes:
        shard, place = self._find(name)
        return self.indexes[shard].read(place)


class _Chosen(LazyNames):
    """The names of the chosen pictures, made when they are asked for."""

    def __init__(self, shards: Shards, name: Callable[[int, str], str]):
        self._shards, self._name = shards, name

    def __len__(self) -> int:
        return len(self._shards.chosen)

    def name_at(self, number: int) -> str:
        shard, place = self._shards.place(number)
        return self._name(shard, self._shards.indexes[shard].names[place])


def open_shards(
    where: str,
    shards: Sequence[Shard],
    config: DataConfig,
    cache: Path,
    *,
    progress: Progress | None = None,
) -> Shards:
    """Look through shards that no earlier run has looked through, and choose `data.member` of their pictures.

    `progress` counts shards. Raises `ValueError` with the mend where a shard is damaged, or there is no picture, or
    `data.pages` is given.
    """
    if config.pages:
        raise ValueError(
            f"data.pages={config.pages} is for folders of TIFF files, and {where} names shards: unpack these into a "
            "folder, or leave it out"
        )
    workers, indexes = config.workers or os.cpu_count() or 1, []
    with ThreadPoolExecutor(workers) as pool:
        for done, shard in enumerate(shards, start=1):
            indexes.append(open_index(shard, cache, pool, ahead=4 * workers))
            if progress:
                progress(done, len(shards))
    whole = Shards(where, tuple(indexes), np.arange(sum(map(len, indexes))))
    wanted = config.member and {f".{kind.strip().lstrip('.').lower()}" for kind in config.member.split(";")}
    chosen = whole
    if wanted:
        kept = [number for number, name in enumerate(whole.own_names) if extension(name) in wanted]
        chosen = whole.some(kept)
    skipped = tuple(
        (f"{index.shard.label}/{name}", reason)
        for index in indexes
        for name, reason in index.skipped
        if not wanted or extension(name) in wanted
    )
    if not len(chosen.chosen):
        raise ValueError(_nothing(where, whole, skipped, config))
    return replace(chosen, skipped=skipped)


def extension(name: str) -> str:
    """Give what WebDataset takes for a member's field: what follows the first dot of its file's name."""
    return "".join(PurePosixPath(name).name.partition(".")[1:]).lower()


def _nothing(where: str, whole: Shards, skipped: Sequence[tuple[str, str]], config: DataConfig) -> str:
    if len(whole.chosen):
        kinds = sorted({extension(name)[1:] for name in whole.own_names[:1000]})
        return f"data.member={config.member!r} fits no picture of {where}: there are {', '.join(kinds[:8])}; name one"
    if skipped:
        return f"data.path (--data) {skipped[0][0]} cannot be read ({skipped[0][1]}), nor any other picture of {where}"
    return f"data.path (--data) {where} holds no picture: name shards whose members are jpg, png and the like"


def several_line(shards: Shards) -> str:
    """Give a line if samples hold several pictures, as the first ones of a shard tell."""
    for index, start in zip(shards.indexes, shards.starts.tolist()):
        numbers = np.intersect1d(shards.chosen, np.arange(start, start + min(len(index), _LOOKED_AT)))
        first = [index.names[number - start] for number in numbers.tolist()]
        for one, other in pairwise(first):
            if one.removesuffix(extension(one)) == other.removesuffix(extension(other)):
                return (
                    f"samples of {index.shard.label} hold several pictures, like {one} and {other}: all are trained "
                    f"on; --data.member {extension(one)[1:]} takes one of each"
                )
    return ""


class StreamedPixels:
    """The prepared pixels of shards' pictures, one after another, as `PixelFile` has them; each is made when asked for.

    `shapes` are those of the prepared pictures; `dtype` and `channels` what all are brought to.
    """

    def __init__(
        self,
        shards: Shards,
        config: DataConfig,
        shapes: Sequence[Shape],
        *,
        dtype: str,
        value_range: Range | None,
    ):
        self._shards, self._config, self._shapes, self._range = shards, config, shapes, value_range
        self.dtype = np.dtype(dtype)
        self._offsets = offsets(shapes)
        self.nbytes = int(self._offsets[-1]) * self.dtype.itemsize

    def __getitem__(self, part: slice) -> np.ndarray:
        """Give the values from `part.start` to `part.stop`, which belong to one picture. `OSError` names the shard."""
        number = int(np.searchsorted(self._offsets, part.start, "right")) - 1
        first = int(self._offsets[number])
        return self._picture(number).reshape(-1)[part.start - first : part.stop - first]

    def _picture(self, number: int) -> np.ndarray:
        shard, place = self._shards.place(number)
        pixels = prepare(decode(self._shards.indexes[shard].read(place)).pixels, self._config, test=False)
        return np.ascontiguousarray(to_channels(deepen(pixels, self.dtype.name, self._range), self._shapes[number][2]))


def prepared(
    shards: Shards, config: DataConfig, *, channels: int | None, value_range: Range | None
) -> tuple[Shards, tuple[Shape, ...], str, list[tuple[str, str]]]:
    """Say what preparing will give: the pictures that can be converted, their shapes, their type, and the others.

    As `conform` does it: the deepest type, and `channels` or `channels_in_common`.
    """
    columns = [shards.column(name) for name in ("height", "width", "channels", "depth")]
    kinds, inverse = np.unique(np.stack(columns, axis=1).astype(np.int64), axis=0, return_inverse=True)
    dtype = DEPTHS[int(kinds[:, 3].max(initial=0))]
    wanted = channels or channels_in_common(columns[2].tolist())
    shapes: list[Shape] = []
    reasons: list[str] = []
    for height, width, have, depth in kinds.tolist():
        reasons.append("")
        shape = prepared_shape(config, height, width, test=False)
        try:
            check_size(*shape, have * np.dtype(DEPTHS[depth]).itemsize)
            to_channels(deepen(np.zeros((1, have), DEPTHS[depth]), dtype, value_range), wanted)
        except ValueError as error:
            reasons[-1] = str(error)
        shapes.append((*shape, wanted))
    inverse = inverse.reshape(-1)
    good = np.array([not reason for reason in reasons], bool)[inverse]
    names = shards.names
    bad = [(names[number], reasons[inverse[number]]) for number in np.flatnonzero(~good).tolist()]
    kept = shards.some(np.flatnonzero(good))
    return kept, tuple(shapes[kind] for kind in inverse[good].tolist()), dtype, bad
