"""Slices of medical volumes as images: sorted by series, in a range of values, without empty slices.

The index of the files is cached as `<cache>/scans/<key>.json`; the key covers the folder, the range of values, and each
file's name, size, times and inode. Patients are stored as hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import TypeAdapter

from velogan.data.atomic_dirs import cache_subdir
from velogan.data.config import WINDOWS, DataConfig
from velogan.data.pictures.images import Picture
from velogan.data.pictures.picture import convert_decode_errors
from velogan.data.pictures.scans import Scan, read_scan, require_library
from velogan.data.pictures.values import PixelFormat, Range
from velogan.data.sets.prefetch import ordered_map
from velogan.files import atomic_write, pluralize, sha256
from velogan.types import Letter, Progress

VERSION = 4
"""Incremented if the same files give another index."""

OWN_RANGE: Range = (0.0, 1000.0)
"""The values to which a volume's `OWN_PERCENTILES` are mapped if each volume has its own scale."""

OWN_PERCENTILES = (0.5, 99.5)

_MIN_CONTENT = 0.01
"""A slice has content if at least this fraction of its pixels is above the fraction `_BRIGHT` of the range."""

_BRIGHT = 0.1
_GAP = 1.5  # times the median distance between slices
_SAMPLE = 2048  # values of a slice that percentiles and content are computed from
_MAX_OPEN_BYTES = 2**28  # of files that stay open between slices

_State = tuple[int, ...]
Slice = tuple[str, int]
"""A file's name, and the slice's index in it."""


@dataclass(frozen=True)
class Volume:
    """The slices of a volume in their order through the body.

    patient: a hash of the patient, else of the series; empty if the file states neither
    empty: for each slice, whether it has no content
    low, high: the values that become -1 and +1
    has_gaps: whether the positions show that slices are missing between others
    """

    patient: str
    modality: str
    slices: tuple[Slice, ...]
    empty: tuple[bool, ...] = ()
    low: float = 0.0
    high: float = 1.0
    has_gaps: bool = False


@dataclass(frozen=True)
class VolumeIndex:
    """The volumes in some files, and the files that cannot be read, with the reason.

    window: how the range of values was chosen
    own_scale: whether each volume has its own range
    is_temporary: whether a file could not be read for a reason that may pass, so that the index is not cached
    """

    volumes: tuple[Volume, ...]
    skipped: tuple[tuple[str, str], ...]
    window: str
    own_scale: bool
    is_temporary: bool = False


class ScanFolder:
    """A folder of scans; keeps the most recently used files in memory; thread-safe."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._open: OrderedDict[str, Scan] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._hashes: dict[tuple[str, _State], str] = {}
        self._lock = threading.Lock()

    def scan(self, name: str) -> Scan:
        """Return a file as a scan. Raises ValueError and OSError as `read_scan` does."""
        with self._lock:
            if name not in self._open:
                path = self.directory / name
                self._open[name], self._sizes[name] = read_scan(path), path.stat().st_size
            self._open.move_to_end(name)
            while len(self._open) > 1 and sum(map(self._sizes.__getitem__, self._open)) > _MAX_OPEN_BYTES:
                self._open.popitem(last=False)
            return self._open[name]

    def values(self, place: Slice) -> np.ndarray:
        """Return a slice `(H, W)`, float32 in the file's units. Raises ValueError if it is in colour."""
        name, index = place
        scan = self.scan(name)
        with convert_decode_errors("scan"):
            pixels = scan.picture(index).pixels
        if pixels.shape[2] != 1:
            raise ValueError("a scan in colour: save its frames as pictures to train on them")
        return pixels[..., 0].astype(np.float32, copy=False)

    def hash_of(self, name: str) -> str:
        """Return the SHA-256 of a file, or why it cannot be read; it is computed again if the file has changed."""
        path = self.directory / name
        try:
            key = (name, _state(path))
            if key not in self._hashes:
                self._hashes[key] = sha256(path)
            return self._hashes[key]
        except OSError as error:
            return f"unreadable: {error.strerror}"


@dataclass(frozen=True)
class Slices:
    """A source of images, like `sources.Folder`, whose images are slices of volumes.

    chosen: for each image, the index of its volume, and the index of its slice in the volume
    neighbours: number of slices below, and as many above, that are additional channels, from below to above; beyond a
        volume's ends, the outermost slice is repeated
    """

    folder: ScanFolder = field(repr=False)
    index: VolumeIndex = field(repr=False)
    chosen: tuple[tuple[int, int], ...] = field(repr=False)
    neighbours: int = 0

    @property
    def location(self) -> str:
        """The directory, for messages."""
        return str(self.folder.directory)

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The files that cannot be read, with the reason."""
        return self.index.skipped

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Each image's name: the file and the slice's index, `p0.nii.gz#0012`; the file alone if it has one slice."""
        return tuple(self._name_of(place) for place in self.chosen)

    @cached_property
    def patients(self) -> tuple[str, ...]:
        """Each image's patient, or the first file of its volume if the volume states no patient."""
        volumes = (self.index.volumes[number] for number, _ in self.chosen)
        return tuple(volume.patient or volume.slices[0][0] for volume in volumes)

    @property
    def value_range(self) -> Range:
        """The values that become -1 and +1."""
        return OWN_RANGE if self.index.own_scale else (self.index.volumes[0].low, self.index.volumes[0].high)

    @property
    def note(self) -> str:
        """A line for the user on volumes, patients, the window, and empty and missing slices."""
        volumes = [self.index.volumes[number] for number in sorted({number for number, _ in self.chosen})]
        origin = f"{pluralize(len(volumes), 'volume')}, {pluralize(len(set(self.patients)), 'patient')}"
        low, high = self.value_range
        shown = "" if self.index.own_scale else f" ({low:g} to {high:g})"
        parts = [f"{pluralize(len(self.chosen), 'slice')} of {origin}; window {self.index.window}{shown}"]
        if empty := sum(sum(volume.empty) for volume in volumes):
            total = sum(len(volume.slices) for volume in volumes)
            parts.append(f"{empty} of {total} slices are left out, since they are dark in it")
        if gaps := [volume.slices[0][0] for volume in volumes if volume.has_gaps]:
            parts.append(f"slices are missing between others in {pluralize(len(gaps), 'volume')}, as of {gaps[0]}")
        return "; ".join(parts)

    def format(self, pixel_format: PixelFormat) -> PixelFormat:
        """Return `pixel_format` completed by the range of values and the number of neighbours."""
        return replace(pixel_format, range=self.value_range, own_scale=self.index.own_scale, neighbours=self.neighbours)

    def select(self, indices: Iterable[int]) -> Self:
        """Return a source of only the images with these indices."""
        return replace(self, chosen=tuple(self.chosen[index] for index in indices))

    def select_names(self, names: Iterable[str]) -> Self:
        """Return a source of only the images with these names."""
        return replace(self, chosen=tuple(self._places[name] for name in names))

    def path_of(self, name: str) -> str:
        """Return the path of a slice's file, with its index."""
        return str(self.folder.directory / name)

    def read(self, name: str) -> Picture:
        """Read a slice `(H, W, 1 + 2 * neighbours)`, float32. Raises OSError and ValueError as `read_scan` does."""
        number, index = self._places[name]
        volume = self.index.volumes[number]

        def read_slice(place: Slice) -> np.ndarray:
            return rescale(self.folder.values(place), volume, own_scale=self.index.own_scale)

        return Picture(stack_neighbours(read_slice, volume, index, self.neighbours))

    def content(self, name: str) -> str:
        """Return a hash of everything that determines an image, or why one of its files cannot be read."""
        number, index = self._places[name]
        volume = self.index.volumes[number]
        files = [(self.folder.hash_of(file), place) for file, place in _with_neighbours(volume, index, self.neighbours)]
        if reason := next((hashed for hashed, _ in files if hashed.startswith("unreadable")), ""):
            return reason
        facts = (VERSION, files, volume.low, volume.high, self.index.own_scale, self.neighbours)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        volumes = enumerate(self.index.volumes)
        places = [(number, index) for number, volume in volumes for index in range(len(volume.slices))]
        return {self._name_of(place): place for place in places}

    @cached_property
    def _single_slice_files(self) -> set[str]:
        """The files that hold a single slice."""
        counts = Counter(file for volume in self.index.volumes for file, _ in volume.slices)
        return {file for file, count in counts.items() if count == 1}

    def _name_of(self, place: tuple[int, int]) -> str:
        file, index = self.index.volumes[place[0]].slices[place[1]]
        return file if file in self._single_slice_files else f"{file}#{index:04d}"


def _with_neighbours(volume: Volume, index: int, neighbours: int) -> list[Slice]:
    """Return the slice at `index` with its neighbours, from below to above; the outermost slice is repeated."""
    last = len(volume.slices) - 1
    return [volume.slices[min(max(index + step, 0), last)] for step in range(-neighbours, neighbours + 1)]


def stack_neighbours(read: Callable[[Slice], np.ndarray], volume: Volume, index: int, neighbours: int) -> np.ndarray:
    """Stack a slice and its neighbours, which `read` returns as `(H, W)`, to `(H, W, 1 + 2 * neighbours)`."""
    return np.stack([read(place) for place in _with_neighbours(volume, index, neighbours)], axis=-1)


def rescale(values: np.ndarray, volume: Volume, *, own_scale: bool) -> np.ndarray:
    """Clip values to the volume's range; with `own_scale`, map that range to `OWN_RANGE`."""
    if own_scale:
        values = (values - volume.low) * (OWN_RANGE[1] / (volume.high - volume.low))
        return values.clip(*OWN_RANGE)
    return values.clip(volume.low, volume.high)


def open_slices(
    directory: Path,
    files: Sequence[str],
    config: DataConfig,
    cache: Path,
    *,
    letter: Letter,
    progress: Progress | None = None,
) -> Slices:
    """Return the slices with content in the medical `files` below `directory`; index the files if no cached index fits.

    Raises ValueError, with the folder and a hint, if there are no such slices, or if a library is missing.
    """
    for name in files:
        require_library(directory / name)
    folder = ScanFolder(directory)
    index = _cached_index(cache, folder, files, config.requested_range(letter), config.workers, progress)
    if not index.volumes:
        name, reason = index.skipped[0]
        raise ValueError(f"data.path (--data) {directory / name} cannot be read ({reason}), nor any other file there")
    chosen = [
        (number, position)
        for number, volume in enumerate(index.volumes)
        for position, is_empty in enumerate(volume.empty)
        if not is_empty
    ]
    if not chosen:
        raise ValueError(
            f"data.path (--data) {directory}: no slice has content in the window {index.window}: name another as "
            "data.window, or numbers as data.range_a (domain B: data.range_b)"
        )
    return Slices(folder, index, tuple(chosen), config.context_slices)


def _cached_index(
    cache: Path,
    folder: ScanFolder,
    files: Sequence[str],
    requested_range: Range | str | None,
    workers: int | None,
    progress: Progress | None,
) -> VolumeIndex:
    """Return the result of `index_volumes`, from the cache if possible."""
    states = [(name, _state(folder.directory / name)) for name in files]
    facts = repr((VERSION, requested_range, os.path.realpath(folder.directory), states))
    key = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()
    file = cache_subdir(cache, "scans") / f"{key}.json"
    with suppress(OSError, ValueError):
        return TypeAdapter(VolumeIndex).validate_python(json.loads(file.read_text()))
    index = index_volumes(folder, files, requested_range, workers=workers, progress=progress)
    if not index.is_temporary:
        with suppress(OSError), atomic_write(file) as tmp_path:  # it can be computed again
            tmp_path.write_text(json.dumps(asdict(index)))
    return index


def _state(path: Path) -> _State:
    """Return a file's size, times and inode, since times alone may stay equal when it is replaced; empty on failure."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@dataclass(frozen=True)
class _IndexedSlice:
    """A slice with its position in mm or None, phase (see `ScanInfo`), numbers of file and slice, and some values."""

    slice: Slice
    position: float | None
    phase: tuple[str, ...]
    number: tuple[int, int]
    sample: np.ndarray


def index_volumes(
    folder: ScanFolder,
    files: Sequence[str],
    requested_range: Range | str | None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VolumeIndex:
    """Read every slice once, to find the volumes, their ranges, and which slices have no content.

    `requested_range`: the range, or the name of a window; None: the window for soft tissue for CT, else each volume's
    own percentiles. Slices of one DICOM series, orientation, size and phase are a volume; a NIfTI file holds one for
    each time. Raises ValueError if CT is mixed with other modalities and no range is requested.
    """
    series: dict[tuple[str, ...], list[_IndexedSlice]] = {}
    skipped: list[tuple[str, str]] = []
    is_temporary = False
    count = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(count) as pool:
        results = ordered_map(pool, partial(_index_file, folder), files, ahead=2 * count)
        for done, (name, result) in enumerate(results, start=1):
            if isinstance(result, Exception):
                skipped.append((name, getattr(result, "strerror", "") or str(result) or type(result).__name__))
                is_temporary |= isinstance(result, _TEMPORARY) and not isinstance(result, PermissionError)
            else:
                for key, indexed in result:
                    series.setdefault(key, []).append(indexed)
            if progress:
                progress(done, len(files))
    window, value_range = _choose_range(requested_range, sorted({key[1] for key in series}), folder.directory)
    volumes = [
        _build_volume(key, part, value_range)
        for key, slices in sorted(series.items(), key=lambda item: item[1][0].slice)
        for part in _split_phases(slices)
    ]
    return VolumeIndex(tuple(volumes), tuple(skipped), window, value_range is None, is_temporary)


def _choose_range(
    requested_range: Range | str | None, modalities: Sequence[str], directory: Path
) -> tuple[str, Range | None]:
    """Return a description of the range of values, and the range, which is None if each volume has its own."""
    if isinstance(requested_range, tuple):
        return "by data.range", requested_range
    if requested_range is not None:
        return requested_range, WINDOWS[requested_range]
    if "CT" not in modalities:
        return "percentiles of each volume, the default for all but CT", None
    if len(modalities) > 1:
        kinds = ", ".join(modality or "not stated" for modality in modalities)
        raise ValueError(
            f"data.path (--data) {directory} holds scans of several kinds ({kinds}), which have no range in common: "
            "name a folder for each, or set data.window"
        )
    return "CT-soft-tissue, the default for CT", WINDOWS["CT-soft-tissue"]


def _split_phases(slices: list[_IndexedSlice]) -> list[list[_IndexedSlice]]:
    """Split a series into volumes if several slices share a position, as phases, echoes and repetitions do."""
    repeats = max(Counter(indexed.position for indexed in slices).values())
    if repeats == 1 or any(indexed.position is None for indexed in slices):
        return [slices]
    phases = sorted({indexed.phase for indexed in slices})
    if len(phases) == repeats:
        return [[indexed for indexed in slices if indexed.phase == phase] for phase in phases]
    volumes: list[list[_IndexedSlice]] = [[] for _ in range(repeats)]
    counts = Counter[float | None]()
    for indexed in sorted(slices, key=lambda indexed: indexed.number):
        volumes[counts[indexed.position]].append(indexed)
        counts[indexed.position] += 1
    return volumes


def _build_volume(key: tuple[str, ...], slices: list[_IndexedSlice], value_range: Range | None) -> Volume:
    slices = sorted(slices, key=lambda indexed: (indexed.position or 0.0, indexed.number))
    steps = np.diff([indexed.position or 0.0 for indexed in slices])
    has_gaps = len(steps) > 1 and bool((steps > _GAP * np.median(steps)).any())
    if value_range is None:
        samples = np.concatenate([indexed.sample for indexed in slices])
        low, high = map(float, np.percentile(samples, OWN_PERCENTILES))
        value_range = (low, high if high > low else low + 1)
    bright = value_range[0] + _BRIGHT * (value_range[1] - value_range[0])
    empty = tuple(bool((indexed.sample > bright).mean() < _MIN_CONTENT) for indexed in slices)
    return Volume(key[0], key[1], tuple(indexed.slice for indexed in slices), empty, *value_range, has_gaps)


_TEMPORARY = OSError, MemoryError


def _index_file(folder: ScanFolder, name: str) -> list[tuple[tuple[str, ...], _IndexedSlice]] | Exception:
    """Return the slices of a file, each with the key of its series, or the error if the file cannot be read."""
    try:
        scan = folder.scan(name)
        info, slices = scan.info, []
        count = len(scan) // info.times
        owner = info.patient or info.series
        patient = hashlib.sha256(owner.encode("utf-8", "replace")).hexdigest()[:16] if owner else ""
        series = name if len(scan) > 1 or not info.series else info.series
        for index in range(len(scan)):
            values = folder.values((name, index))
            step = max(1, values.size // _SAMPLE) | 1  # odd, so that no column of pixels is taken alone
            position = info.positions[index] if info.positions else None
            key = (patient, info.modality, series, str(index // count), str(values.shape))
            order, sample = (info.number or 0, index), values.reshape(-1)[::step].copy()
            slices.append((key, _IndexedSlice((name, index), position, info.phase, order, sample)))
        return slices
    except (*_TEMPORARY, ValueError) as error:
        return error
