"""Slices of medical volumes as pictures: by series, in a range of values, without those that have no content.

What a look through the files finds is kept in the cache, under `<cache>/scans/<key>.json`; the key covers the folder,
and of each file what `_state` gives. Patients stand there as hashes.
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

from velogan.data.atomic_dirs import cache_subdir
from velogan.data.config import WINDOWS, DataConfig
from velogan.data.pictures.images import Picture
from velogan.data.pictures.picture import convert_decode_errors
from velogan.data.pictures.scans import Scan, read_scan, require_library
from velogan.data.pictures.values import PixelFormat, Range
from velogan.data.sets.prefetch import ordered_map
from velogan.files import atomic_write, pluralize, sha256
from velogan.types import Letter, Progress

VERSION = 3
"""Rises when the same files give another look."""

OWN_RANGE: Range = (0.0, 1000.0)
"""What the percentiles `OWN_PERCENTILES` of a volume become where the volume has its own scale."""

OWN_PERCENTILES = (0.5, 99.5)

CONTENT = 0.01
"""A slice has content where so large a share of it is brighter than a tenth of the range."""

_BRIGHT = 0.1
_GAP = 1.5  # times the usual distance of two slices
_SAMPLE = 2048  # values of a slice that percentiles and content are computed of
_KEPT = 2**28  # bytes of files that stay open between slices

_State = tuple[int, ...]
Slice = tuple[str, int]
"""A file's name, and the slice's number in it."""


@dataclass(frozen=True)
class Series:
    """A volume: its slices in their order through the body, and the values `low` to `high` that training sees of it.

    `patient` is a hash, empty where the file does not say. `empty`: which slices have no content. `has_gaps`: whether
    slices are missing between others, by their positions.
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
    """What is in some files: their volumes, and the files that cannot be read, with the reason.

    `window`: how the values' range was chosen; `own_scale`: each volume has its own; `passing`: a file could not be
    read for a reason that may pass.
    """

    series: tuple[Series, ...]
    skipped: tuple[tuple[str, str], ...]
    window: str
    own_scale: bool
    passing: bool = False


class Scans:
    """The files of a folder, of which the last ones that were read stay in memory. Threads may share it."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._open: OrderedDict[str, Scan] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._hashes: dict[tuple[str, _State], str] = {}
        self._lock = threading.Lock()

    def scan(self, name: str) -> Scan:
        """A file's slices. Raises `ValueError` and `OSError` as `read_scan` does."""
        with self._lock:
            if name not in self._open:
                path = self.directory / name
                self._open[name], self._sizes[name] = read_scan(path), path.stat().st_size
            self._open.move_to_end(name)
            while len(self._open) > 1 and sum(map(self._sizes.__getitem__, self._open)) > _KEPT:
                self._open.popitem(last=False)
            return self._open[name]

    def values(self, one: Slice) -> np.ndarray:
        """A slice `(H, W)` float32 in the values that the file means. `ValueError` for colour."""
        name, number = one
        scan = self.scan(name)
        with convert_decode_errors("scan"):
            pixels = scan.picture(number).pixels
        if pixels.shape[2] != 1:
            raise ValueError("a scan in colour: save its frames as pictures to train on them")
        return pixels[..., 0].astype(np.float32, copy=False)

    def hash_of(self, name: str) -> str:
        """The SHA-256 of a file, or the reason why it cannot be read; computed anew where the file has changed."""
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
    """Slices to train on, a source of pictures as `sources.Folder` is.

    `neighbours`: so many slices below and above are further channels of each, from below to above; at a volume's ends
    the last one is repeated. `chosen` are the slices that are meant, by volume and place.
    """

    scans: Scans = field(repr=False)
    look: VolumeIndex = field(repr=False)
    chosen: tuple[tuple[int, int], ...] = field(repr=False)
    neighbours: int = 0
    note: str = ""
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def where(self) -> str:
        """The directory."""
        return str(self.scans.directory)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """File and number: `p0.nii.gz#0012`; a file of one slice is called by its name."""
        return tuple(self._named(one) for one in self.chosen)

    @cached_property
    def patients(self) -> tuple[str, ...]:
        """Each slice's patient; the first file of its volume, where that names none."""
        found = (self.look.series[volume] for volume, _ in self.chosen)
        return tuple(series.patient or series.slices[0][0] for series in found)

    @property
    def value_range(self) -> Range:
        """The values that stand for -1 and +1."""
        return OWN_RANGE if self.look.own_scale else (self.look.series[0].low, self.look.series[0].high)

    def format(self, form: PixelFormat) -> PixelFormat:
        """`form` with what the values and channels stand for."""
        return replace(form, range=self.value_range, own_scale=self.look.own_scale, neighbours=self.neighbours)

    def some(self, numbers: Iterable[int]) -> Self:
        """Choose by numbers."""
        return replace(self, chosen=tuple(self.chosen[number] for number in numbers))

    def named(self, names: Iterable[str]) -> Self:
        """Choose by names."""
        return replace(self, chosen=tuple(self._places[name] for name in names))

    def path_of(self, name: str) -> str:
        """The path of a slice's file, with its number."""
        return str(self.scans.directory / name)

    def read(self, name: str) -> Picture:
        """A slice `(H, W, 1 + 2 * neighbours)`, float32. Raises `OSError` and `ValueError` as `read_scan` does."""
        volume, place = self._places[name]
        series = self.look.series[volume]

        def values(one: Slice) -> np.ndarray:
            return scaled(self.scans.values(one), series, own_scale=self.look.own_scale)

        return Picture(stacked(values, series, place, self.neighbours))

    def content(self, name: str) -> str:
        """A hash of all that the picture follows from."""
        volume, place = self._places[name]
        series = self.look.series[volume]
        files = [(self.scans.hash_of(file), number) for file, number in around(series, place, self.neighbours)]
        facts = (VERSION, files, series.low, series.high, self.look.own_scale, self.neighbours)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        whole = [(volume, at) for volume, one in enumerate(self.look.series) for at in range(len(one.slices))]
        return {self._named(one): one for one in whole}

    @cached_property
    def _single(self) -> set[str]:
        """The files that hold one slice."""
        counts = Counter(file for one in self.look.series for file, _ in one.slices)
        return {file for file, count in counts.items() if count == 1}

    def _named(self, one: tuple[int, int]) -> str:
        file, number = self.look.series[one[0]].slices[one[1]]
        return file if file in self._single else f"{file}#{number:04d}"


def around(series: Series, place: int, neighbours: int) -> list[Slice]:
    """The slice at `place` with its neighbours, from below to above; at the ends the last one is repeated."""
    last = len(series.slices) - 1
    return [series.slices[min(max(place + step, 0), last)] for step in range(-neighbours, neighbours + 1)]


def stacked(values: Callable[[Slice], np.ndarray], series: Series, place: int, neighbours: int) -> np.ndarray:
    """The `values` `(H, W)` of a slice and its neighbours as `(H, W, C)`."""
    return np.stack([values(one) for one in around(series, place, neighbours)], axis=-1)


def scaled(values: np.ndarray, series: Series, *, own_scale: bool) -> np.ndarray:
    """Values clipped to the volume's range; with `own_scale` that range becomes `OWN_RANGE`."""
    if own_scale:
        values = (values - series.low) * (OWN_RANGE[1] / (series.high - series.low))
        return values.clip(*OWN_RANGE)
    return values.clip(series.low, series.high)


def open_slices(
    directory: Path,
    files: Sequence[str],
    config: DataConfig,
    cache: Path,
    *,
    letter: Letter,
    progress: Progress | None = None,
) -> Slices:
    """The slices with content of medical `files` below `directory`; looks through these where no earlier run did.

    Raises `ValueError` that names the folder and the mend, where there is none, or where a library is missing.
    """
    for name in files:
        require_library(directory / name)
    scans = Scans(directory)
    look = _kept(cache, scans, files, config.span(letter), workers=config.workers, progress=progress)
    if not look.series:
        name, reason = look.skipped[0]
        raise ValueError(f"data.path (--data) {directory / name} cannot be read ({reason}), nor any other file there")
    chosen = [
        (volume, place) for volume, one in enumerate(look.series) for place, empty in enumerate(one.empty) if not empty
    ]
    if not chosen:
        raise ValueError(
            f"data.path (--data) {directory}: no slice has content in the window {look.window}: name another as "
            "data.window, or numbers as data.range_a (domain B: data.range_b)"
        )
    made = Slices(scans, look, tuple(chosen), config.context_slices, skipped=look.skipped)
    return replace(made, note=_note(made))


def _note(found: Slices) -> str:
    look = found.look
    total = sum(len(one.slices) for one in look.series)
    patients = len(set(found.patients))
    low, high = found.value_range
    shown = "" if look.own_scale else f" ({low:g} to {high:g})"
    volumes = f"{pluralize(len(look.series), 'volume')}, {pluralize(patients, 'patient')}"
    parts = [f"{pluralize(len(found.chosen), 'slice')} of {volumes}; window {look.window}{shown}"]
    if total > len(found.chosen):
        parts.append(f"{total - len(found.chosen)} of {total} slices are left out, since they are dark in it")
    if gaps := [series.slices[0][0] for series in look.series if series.has_gaps]:
        parts.append(f"slices are missing between others in {pluralize(len(gaps), 'volume')}, as of {gaps[0]}")
    return "; ".join(parts)


def _kept(
    cache: Path,
    scans: Scans,
    files: Sequence[str],
    asked: Range | str | None,
    *,
    workers: int | None,
    progress: Progress | None,
) -> VolumeIndex:
    """As `index_volumes`, from the cache where it is kept there."""
    facts = [(name, _state(scans.directory / name)) for name in files]
    told = repr((VERSION, asked, os.path.realpath(scans.directory), facts))
    key = hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()
    file = cache_subdir(cache, "scans") / f"{key}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        tree = json.loads(file.read_text())
        series = tuple(
            Series(**{**one, "slices": tuple(map(tuple, one["slices"])), "empty": tuple(one["empty"])})
            for one in tree["series"]
        )
        skipped = tuple((name, reason) for name, reason in tree["skipped"])
        return VolumeIndex(series, skipped, tree["window"], tree["own_scale"])
    look = index_volumes(scans, files, asked, workers=workers, progress=progress)
    if not look.passing:
        with suppress(OSError), atomic_write(file) as tmp_path:  # it can be made again
            tmp_path.write_text(json.dumps(asdict(look)))
    return look


def _state(path: Path) -> _State:
    """Size, times, and which file it is: what unpacks or copies files gives other content an equal time."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


@dataclass(frozen=True)
class _Found:
    """A slice: its position in mm or None, what tells slices at one position apart, and some of its values."""

    slice: Slice
    position: float | None
    phase: tuple[str, ...]
    number: tuple[int, int]
    sample: np.ndarray


def index_volumes(
    scans: Scans,
    files: Sequence[str],
    asked: Range | str | None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VolumeIndex:
    """Read every slice once: which volumes there are, their ranges, and which slices have no content.

    `asked`: the range, or the name of a window; None: by the kind of scan, a window for soft tissue for CT, else each
    volume's own percentiles. Slices of one DICOM series, direction, size and phase are a volume; a NIfTI file holds
    one for each time. Raises ValueError if kinds are mixed and no range is requested.
    """
    found: dict[tuple[str, ...], list[_Found]] = {}
    skipped: list[tuple[str, str]] = []
    passing = False
    count = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(count) as pool:
        for done, (name, seen) in enumerate(
            ordered_map(pool, partial(_look_at, scans), files, ahead=2 * count), start=1
        ):
            if isinstance(seen, Exception):
                skipped.append((name, getattr(seen, "strerror", "") or str(seen) or type(seen).__name__))
                passing |= isinstance(seen, _PASSING) and not isinstance(seen, PermissionError)
            else:
                for key, one in seen:
                    found.setdefault(key, []).append(one)
            if progress:
                progress(done, len(files))
    modalities = sorted({key[1] for key in found})
    window, span = _window(asked, modalities, scans.directory)
    volumes = [
        _series(key, volume, span)
        for key, seen in sorted(found.items(), key=lambda item: item[1][0].slice)
        for volume in _split_phases(seen)
    ]
    return VolumeIndex(tuple(volumes), tuple(skipped), window, span is None, passing)


def _window(asked: Range | str | None, modalities: Sequence[str], directory: Path) -> tuple[str, Range | None]:
    """What the range is called, and the range; None where each volume has its own."""
    if isinstance(asked, tuple):
        return "as data.range says", asked
    if asked is not None:
        return asked, WINDOWS[asked]
    if "CT" not in modalities:
        return "percentiles, each volume's own, as for all but CT", None
    if len(modalities) > 1:
        kinds = ", ".join(one or "not said" for one in modalities)
        raise ValueError(
            f"data.path (--data) {directory} holds scans of several kinds ({kinds}), which "
            "have no range in common: name a folder for each, or set data.window"
        )
    return "CT-soft-tissue, as for all CT without data.window", WINDOWS["CT-soft-tissue"]


def _split_phases(found: list[_Found]) -> list[list[_Found]]:
    """Split slices of one series at equal positions, such as phases, echoes and repetitions, into volumes."""
    repeats = max(Counter(one.position for one in found).values())
    if repeats == 1 or any(one.position is None for one in found):
        return [found]
    phases = sorted({one.phase for one in found})
    if len(phases) == repeats:
        return [[one for one in found if one.phase == phase] for phase in phases]
    volumes: list[list[_Found]] = [[] for _ in range(repeats)]
    taken = Counter[float | None]()
    for one in sorted(found, key=lambda one: (one.phase, one.number)):
        volumes[taken[one.position]].append(one)
        taken[one.position] += 1
    return volumes


def _series(key: tuple[str, ...], seen: list[_Found], span: Range | None) -> Series:
    seen = sorted(seen, key=lambda one: (one.position or 0.0, one.number))
    steps = np.diff([one.position or 0.0 for one in seen])
    has_gaps = bool((steps > _GAP * np.median(steps)).any()) if len(steps) > 1 else False
    if span is None:
        low, high = map(float, np.percentile(np.concatenate([one.sample for one in seen]), OWN_PERCENTILES))
        span = (low, high if high > low else low + 1)
    bright = span[0] + _BRIGHT * (span[1] - span[0])
    empty = tuple(bool((one.sample > bright).mean() < CONTENT) for one in seen)
    return Series(key[0], key[1], tuple(one.slice for one in seen), empty, *span, has_gaps)


_PASSING = OSError, MemoryError


def _look_at(scans: Scans, name: str) -> list[tuple[tuple[str, ...], _Found]] | Exception:
    """The slices of a file, each with what names its volume; or why the file cannot be read."""
    try:
        scan = scans.scan(name)
        info, found = scan.info, []
        each = len(scan) // info.times
        owner = info.patient or info.series
        patient = hashlib.sha256(owner.encode("utf-8", "replace")).hexdigest()[:16] if owner else ""
        own = name if len(scan) > 1 or not info.series else info.series
        for number in range(len(scan)):
            values = scans.values((name, number))
            step = max(1, values.size // _SAMPLE) | 1  # odd, so that no column of pixels is taken alone
            position = info.positions[number] if info.positions else None
            key = (patient, info.modality, own, str(number // each), str(values.shape))
            order, sample = (info.number or 0, number), values.reshape(-1)[::step].copy()
            found.append((key, _Found((name, number), position, info.phase, order, sample)))
        return found
    except (*_PASSING, ValueError) as error:
        return error
