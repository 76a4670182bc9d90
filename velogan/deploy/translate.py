"""Translating picture files: one, or a folder with its tree kept."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch

from velogan.data.pictures.images import SUFFIXES, Picture, read_picture, save_picture, suffix_for
from velogan.deploy.jobs import Job, find_jobs
from velogan.deploy.large import plan
from velogan.deploy.model import Translator
from velogan.deploy.pictures import output_format, translate_equal, translate_in_tiles

Progress = Callable[[int, int], None]

_AHEAD = 32  # pictures decoded but not translated, or translated but not saved: bounds memory
_AHEAD_FILE_BYTES = 2**25  # of files that are read ahead
_AHEAD_BYTES = 2**28  # of translated pictures that are not yet saved


@dataclass(frozen=True)
class Summary:
    """The result of `translate`: counts, seconds, and the name and reason of each that failed.

    `tiled`: how many were translated in tiles; `renamed`: name and new suffix of each that its format could not hold.
    """

    translated: int
    skipped: int
    failed: tuple[tuple[str, str], ...]
    tiled: int
    renamed: tuple[tuple[str, str], ...]
    seconds: float


def translate(
    model: Translator,
    input: Path,
    output: Path,
    *,
    overwrite: bool = False,
    format: str | None = None,
    tile: int | None = None,
    batch_pixels: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Translate one picture, or every picture below a folder, into `output`; names, tree and sizes are kept.

    `output`: a folder, or for one picture a file whose suffix names the format. `format` (png, tiff, ...) is that of
    all; None: each picture's own. Depth, alpha and colour profile are kept; if a format cannot hold the result,
    another is taken and the summary says so. A picture that is already there is skipped unless `overwrite`; each
    file appears whole or not at all. A picture that fails is named in the summary and does not stop the others.
    `tile`: side in pixels of the tiles that large pictures are translated in; None: automatic, 0: no tiles. Pictures of
    equal size share a pass of up to `batch_pixels` pixels; a larger one goes alone. `progress(done, total)` counts
    pictures, from the calling thread.
    Raises `ValueError` with the mend if the input is missing or empty, or would be overwritten, or if two pictures
    would become one file.
    """
    if format is not None and f".{format}" not in SUFFIXES:
        raise ValueError(f"format={format} is not known: name one of {', '.join(sorted(s[1:] for s in SUFFIXES))}")
    if tile is not None and tile < 0:
        raise ValueError(f"tile={tile} is no side in pixels: name one, or 0 for no tiles")
    started = time.perf_counter()
    jobs = find_jobs(Path(input), Path(output), suffix=format and f".{format}")
    run = _Run(model, jobs, overwrite=overwrite, progress=progress)
    with ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1) as pool:
        run.all(pool, tile=tile, batch_pixels=batch_pixels or _batch_pixels(model.device))
    return Summary(
        translated=run.translated,
        skipped=run.skipped,
        failed=tuple(sorted(run.failed)),
        tiled=run.tiled,
        renamed=tuple(sorted(run.renamed)),
        seconds=time.perf_counter() - started,
    )


class _Run:
    """One call of `translate`: work in progress, and results so far."""

    def __init__(self, model: Translator, jobs: list[Job], *, overwrite: bool, progress: Progress | None):
        self._model, self._jobs, self._overwrite, self._progress = model, jobs, overwrite, progress
        self._taken = {job.target for job in jobs}
        self._saves: deque[tuple[Job, int, Future[None]]] = deque()
        self._fresh = count()
        self.translated, self.skipped, self.tiled = 0, 0, 0
        self.failed: list[tuple[str, str]] = []
        self.renamed: list[tuple[str, str]] = []

    def all(self, pool: ThreadPoolExecutor, *, tile: int | None, batch_pixels: int) -> None:
        todo = [job for job in self._jobs if self._overwrite or not os.path.lexists(job.target)]
        self.skipped = len(self._jobs) - len(todo)
        self._show()
        for batch in _equal_sizes(self._decoded(todo, pool), batch_pixels):
            _, picture = batch[0]
            tiles = plan(self._model, *picture.pixels.shape[:2], tile=tile)
            try:
                if tiles:
                    results = [
                        translate_in_tiles(self._model, picture, tiles, scratch=job.target.parent)
                        for job, picture in batch
                    ]
                else:
                    results = translate_equal(self._model, [picture for _, picture in batch])
            except (RuntimeError, ValueError, MemoryError, OSError) as error:  # no memory, mostly: others may pass
                for job, _ in batch:
                    self._finish(job, error)
                continue
            self.tiled += len(batch) if tiles else 0
            for (job, _), result in zip(batch, results):
                fresh = job.target.with_name(f".fresh-{os.getpid()}-{next(self._fresh)}{job.target.suffix}")
                self._saves.append((job, result.pixels.nbytes, pool.submit(_save, job.target, fresh, result)))
            self._settle(most=_AHEAD, most_bytes=_AHEAD_BYTES)
        self._settle(most=0, most_bytes=0)

    def _settle(self, *, most: int, most_bytes: int) -> None:
        """Wait until at most so many pictures, and bytes of them, remain to be saved."""
        while len(self._saves) > most or sum(size for _, size, _ in self._saves) > most_bytes:
            job, _, save = self._saves.popleft()
            self._finish(job, save.exception())

    def _finish(self, job: Job, error: BaseException | None) -> None:
        if error is None:
            self.translated += 1
        else:
            self.failed.append((job.name, _reason(error)))
        self._show()

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(self.skipped + self.translated + len(self.failed), len(self._jobs))

    def _decoded(self, jobs: Sequence[Job], pool: ThreadPoolExecutor) -> Iterator[tuple[Job, Picture]]:
        """Read pictures in threads, a bounded number ahead, in order; those that fail are left out."""
        waiting: deque[tuple[Job, int, Future[Picture]]] = deque()
        upcoming = deque(jobs)
        while waiting or upcoming:
            while upcoming and len(waiting) < _AHEAD:
                size = _file_size(upcoming[0].source)
                if waiting and size + sum(other for _, other, _ in waiting) > _AHEAD_FILE_BYTES:
                    break
                job = upcoming.popleft()
                waiting.append((job, size, pool.submit(read_picture, job.source)))
            job, _, reading = waiting.popleft()
            try:
                picture = reading.result()
                job = self._placed(job, picture)
                del reading  # else it would keep the picture
            except (OSError, ValueError, MemoryError) as error:
                self._finish(job, error)
                continue
            if job.target.exists() and not self._overwrite:  # in the other format, from an earlier run
                self.skipped += 1
                self._show()
            else:
                yield job, picture

    def _placed(self, job: Job, picture: Picture) -> Job:
        """The job with a format that can hold the result."""
        form = output_format(self._model, picture)
        blank = np.broadcast_to(np.zeros((), form.dtype), (*picture.pixels.shape[:2], form.channels))
        suffix = suffix_for(job.target.suffix, Picture(blank, None if picture.alpha is None else blank[..., 0]))
        if suffix == job.target.suffix:
            return job
        target = job.target.with_suffix(suffix)
        if target in self._taken:
            raise ValueError(f"{job.target.suffix} cannot hold the result, and {target} is another picture's")
        self._taken.add(target)
        self.renamed.append((job.name, suffix))
        return replace(job, target=target)


def _batch_pixels(device: torch.device) -> int:
    """The most pixels of a pass; on a CPU larger ones gain nothing and do not fit the cache."""
    return (1 if device.type == "cpu" else 16) * 256 * 256


def _equal_sizes(decoded: Iterator[tuple[Job, Picture]], batch_pixels: int) -> Iterator[list[tuple[Job, Picture]]]:
    groups: dict[tuple[tuple[int, ...], str], list[tuple[Job, Picture]]] = {}
    for job, picture in decoded:
        kind = (picture.pixels.shape, picture.pixels.dtype.name)
        group = groups.setdefault(kind, [])
        group.append((job, picture))
        if (len(group) + 1) * picture.pixels.shape[0] * picture.pixels.shape[1] > batch_pixels:
            yield groups.pop(kind)
        elif sum(map(len, groups.values())) > _AHEAD:
            yield groups.pop(max(groups, key=lambda kind: len(groups[kind])))
        del job, picture, group  # a large picture must not stay in memory while the next is decoded
    yield from groups.values()


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will say why


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _save(target: Path, fresh: Path, picture: Picture) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_picture(fresh, picture)  # hidden: no listing takes it for a picture
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
