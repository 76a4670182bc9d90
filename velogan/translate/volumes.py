"""Translating whole volumes, for generators that see a slice's neighbours or each volume on its own scale of values."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from velogan.data.pictures.images import Picture
from velogan.data.pictures.scans import read_scan
from velogan.data.pictures.values import PixelFormat
from velogan.data.sets.slices import Scans, Series, Slice, look_through, scaled, stacked
from velogan.translate.large import Settings, plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format, translate_planned
from velogan.translate.scans import ScanJob, build_provenance, write_scan
from velogan.translate.summary import Summary, describe_error
from velogan.types import Progress


def needs_volume_context(model: Translator) -> bool:
    """Whether the generator was trained on slices that a file alone does not tell it."""
    return model.input.own_scale or model.input.neighbours > 0


def translate_volumes(
    model: Translator, jobs: Sequence[ScanJob], settings: Settings, *, progress: Progress | None = None
) -> Summary:
    """Translate files as `scans.translate_scans` does, each with the others of its volume.

    With neighbours each slice is computed as the middle of its own, and as a neighbour of others: it becomes the mean.
    A volume that fails stops no other.
    """
    started = time.perf_counter()
    scans, named = Scans(Path()), {str(job.source): job for job in jobs}
    span = "percentiles" if model.input.own_scale else model.input.range
    look = look_through(scans, list(named), span)
    failed = [(named[name].name, reason) for name, reason in look.skipped]
    found = {name for one in look.series for name, _ in one.slices}
    todo = {name for name in found if settings.overwrite or not os.path.lexists(named[name].target)}
    skipped = len(found) - len(todo)
    done = _VolumeWriter(model, scans, named)
    for series in look.series:
        try:
            if todo.intersection(name for name, _ in series.slices):
                scratch = named[series.slices[0][0]].target.parent
                slices = _translate_series(model, scans, series, settings, scratch=scratch)
                done.take(slices, todo=todo)
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            left = {name for name, _ in series.slices} & todo - set(done.names)
            failed += [(named[name].name, describe_error(error)) for name in left]
            todo -= left
        if progress is not None:
            progress(skipped + len(failed) + len(done.names), len(named))
    tiled = len(done.names) if done.tiled else 0
    return Summary(len(done.names), skipped, tuple(sorted(failed)), tiled, (), time.perf_counter() - started)


class _VolumeWriter:
    """Files that are written as soon as all of their slices are there."""

    def __init__(self, model: Translator, scans: Scans, jobs: Mapping[str, ScanJob]):
        self._model, self._scans, self._jobs, self._made = model, scans, jobs, build_provenance(model)
        self._slices: dict[str, dict[int, np.ndarray]] = {}
        self.names: list[str] = []
        self.tiled = False

    def take(self, slices: Iterator[tuple[Slice, np.ndarray, PixelFormat, bool]], *, todo: set[str]) -> None:
        for (name, number), pixels, form, tiled in slices:
            self.tiled |= tiled
            if name not in todo:
                continue
            found = self._slices.setdefault(name, {})
            found[number] = pixels
            if len(found) == len(self._scans.scan(name)):
                job, whole = self._jobs[name], [found[place] for place in sorted(found)]
                write_scan(job.target, read_scan(job.source), whole, form, self._made)
                self.names.append(name)
                del self._slices[name]


def _translate_series(
    model: Translator, scans: Scans, series: Series, settings: Settings, *, scratch: Path
) -> Iterator[tuple[Slice, np.ndarray, PixelFormat, bool]]:
    """Each slice of a volume with its translation `(H, W, C)`, the format of that, and whether it was made in tiles."""
    given, count = model.input.neighbours, len(series.slices)
    plain = _without_volume_context(model)

    @lru_cache(maxsize=2 * given + 2)
    def values(one: Slice) -> np.ndarray:
        return scaled(scans.values(one), series, own_scale=model.input.own_scale)

    first = values(series.slices[0])
    tiles = plan_tiles(plain, *first.shape, tile=settings.tile)
    size = settings.together(tiles, first.size)
    sums: dict[int, np.ndarray] = {}
    made, beside = 0, model.output.neighbours
    for start in range(0, count, size):
        places = range(start, min(start + size, count))
        pictures = [Picture(stacked(values, series, place, given)) for place in places]
        form = output_format(plain, pictures[0])
        results = translate_planned(plain, pictures, tiles, scratch=scratch)
        for place, result in zip(places, results):
            for step in range(-beside, beside + 1) if beside else (0,):
                if 0 <= place + step < count:
                    part = result.pixels[..., [beside + step]] if beside else result.pixels
                    sums[place + step] = sums[place + step] + part if place + step in sums else part
        while made in sums and (made + beside < places.stop or places.stop == count):
            parts = min(made + beside, count - 1) - max(made - beside, 0) + 1
            whole = sums.pop(made)
            yield series.slices[made], whole if parts == 1 else whole / np.float32(parts), form, tiles is not None
            made += 1


def _without_volume_context(model: Translator) -> Translator:
    """The same generator for pictures whose channels and values are made ready."""
    ready = {side: {**model.header.get(side, {}), "own_scale": False, "neighbours": 0} for side in ("input", "output")}
    return replace(model, header={**model.header, **ready})
