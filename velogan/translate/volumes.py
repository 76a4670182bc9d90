"""Translate complete volumes, for generators that take neighbouring slices or scale each volume by its own values."""

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
from velogan.data.sets.slices import ScanFolder, Slice, Volume, index_volumes, rescale, stack_neighbours
from velogan.translate.large import plan_tiles
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.pictures import output_format, translate_pictures
from velogan.translate.scans import ScanJob, build_provenance, write_scan
from velogan.translate.summary import Summary, describe_error, find_stale
from velogan.types import Progress


def needs_volume_context(model: Translator) -> bool:
    """Return whether the generator needs volume context: neighbouring slices or a scale of values per volume."""
    return model.input.own_scale or model.input.neighbours > 0


def translate_volumes(
    model: Translator, jobs: Sequence[ScanJob], options: TranslateOptions, *, progress: Progress | None = None
) -> Summary:
    """Translate files like `scans.translate_scans`, but each together with the other files of its volume.

    With neighbouring slices, each slice is translated once as the centre and several times as a neighbour; the result
    is the mean. A volume that fails does not stop the others.
    """
    started_at = time.perf_counter()
    folder = ScanFolder(Path())
    jobs_by_name = {str(job.source): job for job in jobs}
    requested_range = "percentiles" if model.input.own_scale else model.input.range
    index = index_volumes(folder, list(jobs_by_name), requested_range)
    failed = [(jobs_by_name[name].name, reason) for name, reason in index.skipped]
    names = {name for volume in index.volumes for name, _ in volume.slices}
    todo = {name for name in names if options.overwrite or not os.path.lexists(jobs_by_name[name].target)}
    skipped = len(names) - len(todo)
    stale = find_stale(model.file, [jobs_by_name[name].target for name in sorted(names - todo)])
    writer = _VolumeWriter(model, folder, jobs_by_name)
    for volume in index.volumes:
        try:
            if todo.intersection(name for name, _ in volume.slices):
                scratch = jobs_by_name[volume.slices[0][0]].target.parent
                slices = _translate_volume(model, folder, volume, options, scratch=scratch)
                writer.collect(slices, todo=todo)
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            unwritten = {name for name, _ in volume.slices} & todo - set(writer.names)
            failed += [(jobs_by_name[name].name, describe_error(error)) for name in unwritten]
            todo -= unwritten
        if progress is not None:
            progress(skipped + len(failed) + len(writer.names), len(jobs_by_name))
    seconds = time.perf_counter() - started_at
    tiled = len(writer.tiled.intersection(writer.names))
    return Summary(len(writer.names), skipped, tuple(sorted(failed)), tiled, seconds=seconds, stale=stale)


class _VolumeWriter:
    """Writes each file as soon as all of its slices are translated."""

    def __init__(self, model: Translator, folder: ScanFolder, jobs: Mapping[str, ScanJob]):
        self._folder, self._jobs = folder, jobs
        self._provenance = build_provenance(model)
        self._slices: dict[str, dict[int, np.ndarray]] = {}
        self.names: list[str] = []
        self.tiled = set[str]()

    def collect(self, slices: Iterator[tuple[Slice, np.ndarray, PixelFormat, bool]], *, todo: set[str]) -> None:
        """Collect translated slices, and write the files among `todo` that are complete."""
        for (name, number), pixels, pixel_format, tiled in slices:
            self.tiled |= {name} if tiled else set()
            if name not in todo:
                continue
            slices_of_file = self._slices.setdefault(name, {})
            slices_of_file[number] = pixels
            if len(slices_of_file) == len(self._folder.scan(name)):
                job, ordered = self._jobs[name], [slices_of_file[index] for index in sorted(slices_of_file)]
                write_scan(job.target, read_scan(job.source), ordered, pixel_format, self._provenance)
                self.names.append(name)
                del self._slices[name]


def _translate_volume(
    model: Translator, folder: ScanFolder, volume: Volume, options: TranslateOptions, *, scratch: Path
) -> Iterator[tuple[Slice, np.ndarray, PixelFormat, bool]]:
    """Yield each slice of a volume with its translation `(H, W, C)`, its format, and whether it was done in tiles."""
    context, count = model.input.neighbours, len(volume.slices)
    formats = {key: {**model.header.get(key, {}), "own_scale": False, "neighbours": 0} for key in ("input", "output")}
    slice_model = replace(model, header={**model.header, **formats})  # its inputs are already scaled and stacked

    @lru_cache(maxsize=2 * context + 2)
    def read_slice(place: Slice) -> np.ndarray:
        return rescale(folder.values(place), volume, own_scale=model.input.own_scale)

    first = read_slice(volume.slices[0])
    tiles = plan_tiles(slice_model, *first.shape, tile=options.tile)
    size = options.images_per_batch(model.device, tiles, first.size)
    sums: dict[int, np.ndarray] = {}
    done, output_context = 0, model.output.neighbours
    for start in range(0, count, size):
        batch = range(start, min(start + size, count))
        pictures = [Picture(stack_neighbours(read_slice, volume, index, context)) for index in batch]
        pixel_format = output_format(slice_model, pictures[0])
        results = translate_pictures(slice_model, pictures, tiles, scratch=scratch)
        for index, result in zip(batch, results):
            for offset in range(-output_context, output_context + 1):
                if 0 <= index + offset < count:
                    part = result.pixels[..., [output_context + offset]] if output_context else result.pixels
                    sums[index + offset] = sums[index + offset] + part if index + offset in sums else part
        while done in sums and (done + output_context < batch.stop or batch.stop == count):
            parts = min(done + output_context, count - 1) - max(done - output_context, 0) + 1
            mean = sums.pop(done) if parts == 1 else sums.pop(done) / np.float32(parts)
            yield volume.slices[done], mean, pixel_format, tiles is not None
            done += 1
