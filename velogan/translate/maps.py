"""Uncertainty maps as files, one beside each translated picture."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from velogan.data.pictures.images import SUFFIXES
from velogan.data.sets.sources import MAP
from velogan.files import atomic_write
from velogan.translate.jobs import Job, find_jobs
from velogan.translate.summary import describe_error
from velogan.translate.uncertainty import UncertaintyEstimator, UncertaintyMap
from velogan.types import Progress

_MARK = ("Description", "velogan: where not to trust a translation")


@dataclass(frozen=True)
class MapResult:
    """A picture's map: its file and what it holds, or the `reason` why there is none."""

    name: str
    file: Path
    uncertainty: UncertaintyMap | None
    reason: str = ""


def find_map_jobs(source: Path, target: Path, *, format: str | None = None) -> list[tuple[Job, Path]]:
    """The pictures that `translate` would translate, each with the file of its map: `NAME.uncertainty.png`.

    ValueError as from `translate`, and if two pictures would have one map.
    """
    found = find_jobs(source, target, suffix=format and f".{format}")
    jobs = [(job, job.target.with_name(job.target.stem + MAP)) for job in found]
    first: dict[Path, Job] = {}
    for job, file in jobs:
        if (other := first.setdefault(file, job)) is not job:
            raise ValueError(f"{other.name} and {job.name} would both have the map {file}: rename one")
    return jobs


def write_maps(
    estimator: UncertaintyEstimator,
    jobs: Sequence[tuple[Job, Path]],
    *,
    overwrite: bool = False,
    tile: int | None = None,
    without: Collection[str] = (),
    progress: Progress | None = None,
) -> list[MapResult]:
    """Writes the map of each picture but those named in `without`, after their translations were written.

    A map that is there and no older than its translation is kept and read. A file with a map's name that is no map
    is never overwritten. `tile` is that of `translate`: a picture that it translates in tiles gets no map.
    """
    wanted = [(job, file) for job, file in jobs if job.name not in without]
    made = []
    for number, (job, file) in enumerate(wanted, start=1):
        try:
            made.append(MapResult(job.name, file, _write_map(estimator, job, file, overwrite=overwrite, tile=tile)))
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            made.append(MapResult(job.name, file, None, describe_error(error)))
        if progress is not None:
            progress(number, len(wanted))
    return made


def _write_map(
    estimator: UncertaintyEstimator, job: Job, file: Path, *, overwrite: bool, tile: int | None
) -> UncertaintyMap:
    if os.path.lexists(file):
        kept = _read_map(file)
        if kept is None:
            raise ValueError(f"{file} is there already and is no uncertainty map: move it, or name another output")
        if not overwrite and not _is_older(file, than=job.target):
            return kept
    uncertainty = estimator.estimate(job.read(pages_are_channels=estimator.model.pages_are_channels), tile=tile)
    mark = PngInfo()
    mark.add_text(*_MARK)
    with atomic_write(file) as fresh:
        Image.fromarray(uncertainty.map).save(fresh, format="png", pnginfo=mark)
    return uncertainty


def _read_map(file: Path) -> UncertaintyMap | None:
    """The map that a file holds; None where it holds anything else."""
    try:
        with Image.open(file) as image:
            if image.format != "PNG" or image.mode != "L" or image.info.get(_MARK[0]) != _MARK[1]:
                return None
            return UncertaintyMap(np.array(image))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _is_older(file: Path, *, than: Path) -> bool:
    """Whether `file` was written before the translation `than`, which may be there in another format than it names."""
    made = file.stat().st_mtime_ns
    there = [other for other in (than, *map(than.with_suffix, SUFFIXES)) if other.exists()]
    return any(made < other.stat().st_mtime_ns for other in there)
