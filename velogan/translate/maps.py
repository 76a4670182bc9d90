"""Write uncertainty maps as files next to the translated pictures."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from velogan.data.pictures.images import SUFFIXES
from velogan.data.sets.sources import UNCERTAINTY_SUFFIX
from velogan.files import atomic_write
from velogan.translate.jobs import Job, find_jobs
from velogan.translate.summary import describe_error
from velogan.translate.uncertainty import UncertaintyEstimator, UncertaintyMap
from velogan.types import Progress

_MARK = ("Description", "velogan: where not to trust a translation")


@dataclass(frozen=True)
class MapResult:
    """The uncertainty map of a picture and its file, or the `reason` why it has none."""

    name: str
    file: Path
    uncertainty: UncertaintyMap | None
    reason: str = ""


def find_map_jobs(source: Path, target: Path, *, format: str | None = None) -> list[tuple[Job, Path]]:
    """Return the pictures that `translate` would translate, each with the file of its map, `NAME.uncertainty.png`.

    Raises ValueError as `translate` does, and if two pictures would have the same map.
    """
    picture_jobs = find_jobs(source, target, suffix=format and f".{format}")
    jobs = [(job, job.target.with_name(job.target.stem + UNCERTAINTY_SUFFIX)) for job in picture_jobs]
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
    excluded: Collection[str] = (),
    progress: Progress | None = None,
) -> list[MapResult]:
    """Write the map of each picture, after the translations were written.

    jobs: the pictures with the files of their maps
    overwrite: recompute maps that exist; otherwise a map that is not older than the translation is read instead
    tile: as in `TranslateOptions`; a picture that is translated in tiles gets no map
    excluded: names of pictures that get no map

    A file with the name of a map that is not a map is never overwritten.
    """
    todo = [(job, file) for job, file in jobs if job.name not in excluded]
    results = []
    for number, (job, file) in enumerate(todo, start=1):
        try:
            results.append(MapResult(job.name, file, _write_map(estimator, job, file, overwrite=overwrite, tile=tile)))
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            results.append(MapResult(job.name, file, None, describe_error(error)))
        if progress is not None:
            progress(number, len(todo))
    return results


def _write_map(
    estimator: UncertaintyEstimator, job: Job, file: Path, *, overwrite: bool, tile: int | None
) -> UncertaintyMap:
    if os.path.lexists(file):
        existing = _read_map(file)
        if existing is None:
            raise ValueError(f"{file} exists and is not an uncertainty map: move it, or name another output")
        if not overwrite and not _is_older(file, than=job.target):
            return existing
    uncertainty = estimator.estimate(job.read(pages_are_channels=estimator.model.pages_are_channels), tile=tile)
    mark = PngInfo()
    mark.add_text(*_MARK)
    with atomic_write(file) as tmp_path:
        Image.fromarray(uncertainty.map).save(tmp_path, format="png", pnginfo=mark)
    return uncertainty


def _read_map(file: Path) -> UncertaintyMap | None:
    """Return the map in a file, or None if the file is anything else."""
    try:
        with Image.open(file) as image:
            if image.format != "PNG" or image.mode != "L" or image.info.get(_MARK[0]) != _MARK[1]:
                return None
            return UncertaintyMap(np.array(image))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _is_older(file: Path, *, than: Path) -> bool:
    """Return whether `file` is older than the translation `than`, which may exist in another format."""
    written_at = file.stat().st_mtime_ns
    translations = [path for path in (than, *map(than.with_suffix, SUFFIXES)) if path.exists()]
    return any(written_at < path.stat().st_mtime_ns for path in translations)
