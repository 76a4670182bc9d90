"""Translate files: a picture, a scan, a video, or a folder with its tree."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from velogan.data.pictures.images import Picture, choose_suffix
from velogan.data.pictures.videos import is_video
from velogan.data.sets.prefetch import ordered_map
from velogan.data.sets.sources import list_images
from velogan.translate.jobs import Job, find_jobs
from velogan.translate.large import plan_tiles
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.pictures import output_format, translate_pictures
from velogan.translate.scans import ScanJob, find_scans, translate_scans
from velogan.translate.summary import Summary, describe_error, find_stale
from velogan.translate.videos import translate_video
from velogan.translate.volumes import needs_volume_context, translate_volumes
from velogan.types import Progress

_Decoded = tuple[Job, Picture]

_DEFAULTS = TranslateOptions()
_AHEAD = 32  # pictures decoded but not translated, or translated but not saved: bounds memory
_AHEAD_BYTES = 2**28  # of translated pictures that are not yet saved


def translate(
    model: Translator,
    input: Path,
    output: Path,
    options: TranslateOptions = _DEFAULTS,
    *,
    progress: Progress | None = None,
) -> Summary:
    """Translate a picture, a scan or a video, or all pictures and scans below a folder, into `output`.

    File names, folder tree, image sizes, bit depth, alpha and colour profile are kept. If the format of a file cannot
    hold its result, another format is used and listed in the summary. Each file appears complete or not at all. A
    picture that fails is listed in the summary and does not stop the others.

    input: a file or folder; DICOM and NIfTI files keep their format, see `scans.py`
    output: a folder, or for a single input a file, whose suffix selects the format
    options: see `TranslateOptions`
    progress: called as `progress(done, total)` from the calling thread; counts files, or the frames of a video

    If the model takes the pages of a TIFF as slices, they are translated one by one.
    Raises ValueError, with the fix, if the input is missing or empty or would be overwritten, if an option does not fit
    the input, or if two pictures would become the same file.
    """
    input, output = Path(input), Path(output)
    if is_video(input) and input.is_file():
        _reject_format(options, str(input), "a video")
        return translate_video(model, input, output, options, progress=progress)
    if options.smooth:
        raise ValueError(f"smooth={options.smooth}: input {input} is not a video; leave smooth out")
    scans = find_scans(input, output, stacks=model.input.pages == "slices")
    if not scans:
        return translate_jobs(model, find_jobs(input, output, suffix=options.suffix), options, progress=progress)
    _reject_format(options, scans[0].name, scans[0].kind)
    return _translate_with_scans(model, input, output, scans, options, progress)


def _reject_format(options: TranslateOptions, name: str, kind: str) -> None:
    if options.format is not None:
        raise ValueError(f"format={options.format}: for pictures only, but {name} is {kind}; leave format out")


def _translate_with_scans(
    model: Translator,
    input: Path,
    output: Path,
    scans: Sequence[ScanJob],
    options: TranslateOptions,
    progress: Progress | None,
) -> Summary:
    """Translate the pictures of a folder, if there are any, then its `scans`."""
    sources = {scan.source for scan in scans}
    pictures = find_jobs(input, output, suffix=None) if input.is_dir() and list_images(input) else []
    jobs = [job for job in pictures if job.source not in sources]
    total = len(jobs) + len(scans)
    count_pictures = progress and (lambda done, _: progress(done, total))
    count_scans = progress and (lambda done, _: progress(len(jobs) + done, total))
    translate_slices = translate_volumes if needs_volume_context(model) else translate_scans
    summary = translate_jobs(model, jobs, options, progress=count_pictures)
    return summary.merge(translate_slices(model, scans, options, progress=count_scans))


def translate_jobs(
    model: Translator,
    jobs: Sequence[Job],
    options: TranslateOptions,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Summary:
    """Translate the pictures of `jobs` like `translate`. `threads`: number of I/O threads; None: CPU cores + 1."""
    started_at = time.perf_counter()
    threads = threads or (os.cpu_count() or 1) + 1
    runner = _JobRunner(model, jobs, options, progress=progress, threads=threads)
    with ThreadPoolExecutor(threads) as pool:
        runner.run(pool)
    return Summary(
        translated=runner.translated,
        skipped=len(runner.existing),
        failed=tuple(sorted(runner.failed)),
        tiled=runner.tiled,
        renamed=tuple(sorted(runner.renamed)),
        animated=tuple(sorted(runner.animated)),
        stale=find_stale(model.file, runner.existing),
        seconds=time.perf_counter() - started_at,
    )


class _JobRunner:
    """Runs the jobs of one call of `translate_jobs`, and collects their results."""

    def __init__(
        self,
        model: Translator,
        jobs: Sequence[Job],
        options: TranslateOptions,
        *,
        progress: Progress | None,
        threads: int,
    ):
        self._model, self._jobs = model, jobs
        self._options, self._progress = options, progress
        self._threads = threads
        self._targets = {job.target for job in jobs}
        self._saves: deque[tuple[Job, int, Future[None]]] = deque()
        self.translated = 0
        self.existing: list[Path] = []
        self.tiled = 0
        self.failed: list[tuple[str, str]] = []
        self.renamed: list[tuple[str, str]] = []
        self.animated: list[tuple[str, int]] = []

    def run(self, pool: ThreadPoolExecutor) -> None:
        """Translate all jobs; `pool` saves the results."""
        self.existing = [job.target for job in self._jobs if job.is_done() and not self._options.overwrite]
        existing = set(self.existing)
        todo = [job for job in self._jobs if job.target not in existing]
        self._report_progress()
        max_pixels = self._options.max_batch_pixels(self._model.device)
        for batch in _batches_of_equal_size(self._decode(todo), max_pixels):
            jobs, pictures = zip(*batch)
            tiles = plan_tiles(self._model, *pictures[0].pixels.shape[:2], tile=self._options.tile)
            try:
                results = translate_pictures(self._model, pictures, tiles, scratch=jobs[0].target.parent)
            except (RuntimeError, ValueError, MemoryError, OSError) as error:  # often out of memory: others may fit
                for job in jobs:
                    self._record_result(job, error)
                continue
            self.tiled += len(batch) if tiles else 0
            for job, result in zip(jobs, results):
                self._saves.append((job, result.pixels.nbytes, pool.submit(job.save, result)))
            self._drain_saves(max_count=_AHEAD, max_bytes=_AHEAD_BYTES)
        self._drain_saves(max_count=0, max_bytes=0)

    def _drain_saves(self, *, max_count: int, max_bytes: int) -> None:
        """Wait until at most `max_count` pictures, of at most `max_bytes` together, remain to be saved."""
        while len(self._saves) > max_count or sum(size for _, size, _ in self._saves) > max_bytes:
            job, _, save = self._saves.popleft()
            self._record_result(job, save.exception())

    def _record_result(self, job: Job, error: BaseException | None) -> None:
        if error is None:
            self.translated += 1
        else:
            self.failed.append((job.name, describe_error(error)))
        self._report_progress()

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress(len(self.existing) + self.translated + len(self.failed), len(self._jobs))

    def _decode(self, jobs: Sequence[Job]) -> Iterator[_Decoded]:
        """Read pictures in threads, in order and ahead of translation; record and omit pictures that cannot be read."""
        pages_are_channels = self._model.pages_are_channels

        def read(job: Job) -> Picture | Exception:
            try:
                return job.read(pages_are_channels=pages_are_channels)
            except (OSError, ValueError, MemoryError) as error:
                return error

        with (
            ThreadPoolExecutor(self._threads) as pool,  # not the one that saves, since readers may wait
            closing(ordered_map(pool, read, jobs, ahead=_AHEAD)) as decoded,
        ):
            for job, picture in decoded:
                yield from self._accept(job, picture)
                del picture  # else it would stay while the next is decoded

    def _accept(self, job: Job, picture: Picture | Exception) -> Iterator[_Decoded]:
        """Yield the picture with its job, unless it cannot be read or its translation exists."""
        try:
            if isinstance(picture, Exception):
                raise picture
            job = self._choose_target(job, picture)
        except (OSError, ValueError, MemoryError) as error:
            self._record_result(job, error)
            return
        if not self._options.overwrite and job.is_done():  # in the other format, from an earlier run
            self.existing.append(job.target)
            self._report_progress()
            return
        if picture.metadata.frames > 1:
            self.animated.append((job.name, picture.metadata.frames))
        yield job, picture

    def _choose_target(self, job: Job, picture: Picture) -> Job:
        """Return the job with a target whose format can hold the result."""
        pixel_format = output_format(self._model, picture)
        blank = np.broadcast_to(np.zeros((), pixel_format.dtype), (*picture.pixels.shape[:2], pixel_format.channels))
        suffix = choose_suffix(job.target.suffix, Picture(blank, None if picture.alpha is None else blank[..., 0]))
        if suffix == job.target.suffix:
            return job
        target = job.target.with_suffix(suffix)
        if target in self._targets or job.is_taken(target):
            raise ValueError(f"{job.target.suffix} cannot hold the result, and {target} belongs to another picture")
        self._targets.add(target)
        self.renamed.append((job.name, suffix))
        return replace(job, target=target)


def _batches_of_equal_size(decoded: Iterator[_Decoded], max_pixels: int) -> Iterator[list[_Decoded]]:
    """Group pictures of equal shape and type into batches of at most `max_pixels` pixels, at least one picture each."""
    groups: dict[tuple[tuple[int, ...], str], list[_Decoded]] = {}
    for job, picture in decoded:
        kind = (picture.pixels.shape, picture.pixels.dtype.name)
        group = groups.setdefault(kind, [])
        group.append((job, picture))
        if (len(group) + 1) * picture.pixels.shape[0] * picture.pixels.shape[1] > max_pixels:
            yield groups.pop(kind)
        elif sum(map(len, groups.values())) > _AHEAD:
            yield groups.pop(max(groups, key=lambda kind: len(groups[kind])))
        del job, picture, group  # a large picture must not stay in memory while the next is decoded
    yield from groups.values()
