"""Translating picture files: one, or a folder with its tree kept."""

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
import torch

from velogan.data.pictures.films import is_film
from velogan.data.pictures.images import LOSSY, SUFFIXES, Picture, choose_suffix
from velogan.data.sets.ahead import in_order
from velogan.data.sets.sources import list_images
from velogan.translate.films import translate_film
from velogan.translate.jobs import Job, find_jobs
from velogan.translate.large import Settings, plan_tiles
from velogan.translate.masking import MaskSide, find_masks
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format, translate_equal, translate_in_tiles
from velogan.translate.scans import find_scans, translate_scans
from velogan.translate.summary import Summary, describe_error
from velogan.translate.volumes import needs_volume_context, translate_volumes
from velogan.types import Progress

_Decoded = tuple[Job, Picture]

_AHEAD = 32  # pictures decoded but not translated, or translated but not saved: bounds memory
_AHEAD_BYTES = 2**28  # of translated pictures that are not yet saved


def translate(
    model: Translator,
    input: Path,
    output: Path,
    *,
    overwrite: bool = False,
    format: str | None = None,
    tile: int | None = None,
    smooth: float = 0.0,
    masks: Path | None = None,
    masks_keep: MaskSide = "outside",
    batch_pixels: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Translate one picture, scan or film, or all pictures and scans below a folder, into `output`.

    Names, tree and sizes are kept.

    `output`: a folder, or for one picture a file whose suffix names the format. `format` (png, tiff, ...) is that of
    all; None: each picture's own. Depth, alpha and colour profile are kept; if a format cannot hold the result,
    another is taken and the summary says so. A picture that is already there is skipped unless `overwrite`; each
    file appears whole or not at all. A picture that fails is named in the summary and does not stop the others.
    `tile`: side in pixels of the tiles that large pictures are translated in; None: automatic, 0: no tiles. Pictures of
    equal size share a pass of up to `batch_pixels` pixels; a larger one goes alone. `progress(done, total)` counts
    files, from the calling thread. Scans are DICOM and NIfTI files; they stay what they are, see `scans.py`.
    Of a film, frames are counted, and `smooth` is the share of what was shown before, see `films.py`.
    `masks`: a folder with a mask for each picture, under its name, or for one picture a file; what it says to keep
    (`masks_keep`) is the input's, pixel for pixel.
    Where pages of a TIFF are slices to `model`, they are translated one by one.
    Raises `ValueError` with the mend if the input is missing or empty, or would be overwritten, or if two pictures
    would become one file.
    """
    check_options(format=format, tile=tile)
    if masks is None and masks_keep != "outside":
        raise ValueError(f"masks_keep={masks_keep} says what masks keep, and there are none: add masks (--masks DIR)")
    input, output = Path(input), Path(output)
    settings = Settings(overwrite, tile, batch_pixels or pixels_of_a_pass(model.device))
    scans = find_scans(input, output, stacks=model.input.pages == "slices")
    if masks is not None and (scans or is_film(input)):
        name, kind = (scans[0].name, scans[0].kind) if scans else (input, "a film")
        raise ValueError(f"masks {masks} are for pictures, but {name} is {kind}: leave them out")
    if is_film(input) and input.is_file():
        if format is not None:
            raise ValueError(
                f"format={format} is for pictures, but {input} is a film: the output's name says its format"
            )
        return translate_film(model, input, output, settings, smooth=smooth, progress=progress)
    if smooth:
        raise ValueError(f"smooth={smooth} is for films, but input {input} is none: leave it out")
    if scans and format is not None:
        raise ValueError(
            f"format={format} is for pictures, but {scans[0].name} is {scans[0].kind}, which stays one: leave it out"
        )
    jobs, stacks = [], {scan.source for scan in scans}
    if not scans or (input.is_dir() and list_images(input)):
        suffix = format and f".{format}"
        jobs = [job for job in find_jobs(input, output, suffix=suffix) if job.source not in stacks]
    masked = tuple[str, ...]()
    if masks is not None:
        names = [str(job.source.relative_to(input)) if input.is_dir() else job.source.name for job in jobs]
        found, alone = find_masks(masks, names, keep=masks_keep, source=input)
        jobs = [replace(job, mask=mask) for job, mask in zip(jobs, found)]
        masked = tuple(filter(None, (_lossy(jobs), alone)))
    total = len(jobs) + len(scans)
    done = translate_jobs(model, jobs, settings, progress=progress and (lambda done, _: progress(done, total)))
    if not scans:
        return replace(done, masked=masked)
    translate_slices = translate_volumes if needs_volume_context(model) else translate_scans
    behind = progress and (lambda done, _: progress(len(jobs) + done, total))
    return done.merge(translate_slices(model, scans, settings, progress=behind))


def _lossy(jobs: Sequence[Job]) -> str:
    """How many results do not keep exactly what masks keep, in a line; empty for none."""
    count = sum(job.target.suffix.lower() in LOSSY for job in jobs)
    told = f"{count} of {len(jobs)} written as JPEG or WebP, which change all pixels a little: --format png does not"
    return told if count else ""


def check_options(*, format: str | None, tile: int | None) -> None:
    """`ValueError` with the mend for a format or a side of tiles that `translate` does not take."""
    if format is not None and f".{format}" not in SUFFIXES:
        raise ValueError(f"format={format} is not known: name one of {', '.join(sorted(s[1:] for s in SUFFIXES))}")
    if tile is not None and tile < 0:
        raise ValueError(f"tile={tile} is no side in pixels: name one, or 0 for no tiles")


def translate_jobs(
    model: Translator,
    jobs: Sequence[Job],
    settings: Settings,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Summary:
    """As `translate`, with the pictures named one by one. `threads` decode and save; None: one more than cores."""
    started = time.perf_counter()
    threads = threads or (os.cpu_count() or 1) + 1
    run = _Run(model, jobs, settings, progress=progress, threads=threads)
    with ThreadPoolExecutor(threads) as pool:
        run.all(pool)
    return Summary(
        translated=run.translated,
        skipped=run.skipped,
        failed=tuple(sorted(run.failed)),
        tiled=run.tiled,
        renamed=tuple(sorted(run.renamed)),
        animated=tuple(sorted(run.animated)),
        seconds=time.perf_counter() - started,
    )


class _Run:
    """One call of `translate`: work in progress, and results so far."""

    def __init__(
        self,
        model: Translator,
        jobs: Sequence[Job],
        settings: Settings,
        *,
        progress: Progress | None,
        threads: int,
    ):
        self._threads = threads
        self._model, self._jobs, self._settings, self._progress = model, jobs, settings, progress
        self._taken = {job.target for job in jobs}
        self._saves: deque[tuple[Job, int, Future[None]]] = deque()
        self.translated, self.skipped, self.tiled = 0, 0, 0
        self.failed: list[tuple[str, str]] = []
        self.renamed: list[tuple[str, str]] = []
        self.animated: list[tuple[str, int]] = []

    def all(self, pool: ThreadPoolExecutor) -> None:
        todo = [job for job in self._jobs if self._settings.overwrite or not job.is_done()]
        self.skipped = len(self._jobs) - len(todo)
        self._show()
        for batch in _equal_sizes(self._decoded(todo), self._settings.batch_pixels):
            _, picture = batch[0]
            tiles = plan_tiles(self._model, *picture.pixels.shape[:2], tile=self._settings.tile)
            try:
                if tiles:
                    results = [
                        translate_in_tiles(self._model, one, tiles, scratch=job.target.parent) for job, one in batch
                    ]
                else:
                    results = translate_equal(self._model, [one for _, one in batch])
            except (RuntimeError, ValueError, MemoryError, OSError) as error:  # no memory, mostly: others may pass
                for job, _ in batch:
                    self._finish(job, error)
                continue
            self.tiled += len(batch) if tiles else 0
            for (job, _), result in zip(batch, results):
                self._saves.append((job, result.pixels.nbytes, pool.submit(job.save, result)))
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
            self.failed.append((job.name, describe_error(error)))
        self._show()

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(self.skipped + self.translated + len(self.failed), len(self._jobs))

    def _decoded(self, jobs: Sequence[Job]) -> Iterator[_Decoded]:
        """Read pictures in threads, in order, some of them ahead; those that fail are left out."""
        channels = self._model.pages_are_channels

        def read(job: Job) -> Picture | Exception:
            try:
                return job.read(pages_are_channels=channels)
            except (OSError, ValueError, MemoryError) as error:
                return error

        with (
            ThreadPoolExecutor(self._threads) as pool,  # not the one that saves, since readers may wait
            closing(in_order(pool, read, jobs, ahead=_AHEAD)) as found,
        ):
            for job, picture in found:
                yield from self._ready(job, picture)
                del picture  # else it would stay while the next is decoded

    def _ready(self, job: Job, picture: Picture | Exception) -> Iterator[_Decoded]:
        """The picture with its place, unless it failed or is there already."""
        try:
            if isinstance(picture, Exception):
                raise picture
            job = self._placed(job, picture)
        except (OSError, ValueError, MemoryError) as error:
            self._finish(job, error)
            return
        if not self._settings.overwrite and job.is_done():  # in the other format, from an earlier run
            self.skipped += 1
            self._show()
            return
        if picture.metadata.frames > 1:
            self.animated.append((job.name, picture.metadata.frames))
        yield job, picture

    def _placed(self, job: Job, picture: Picture) -> Job:
        """The job with a format that can hold the result."""
        form = output_format(self._model, picture)
        blank = np.broadcast_to(np.zeros((), form.dtype), (*picture.pixels.shape[:2], form.channels))
        suffix = choose_suffix(job.target.suffix, Picture(blank, None if picture.alpha is None else blank[..., 0]))
        if suffix == job.target.suffix:
            return job
        target = job.target.with_suffix(suffix)
        if target in self._taken or job.is_taken(target):
            raise ValueError(f"{job.target.suffix} cannot hold the result, and {target} is another picture's")
        self._taken.add(target)
        self.renamed.append((job.name, suffix))
        return replace(job, target=target)


def pixels_of_a_pass(device: torch.device) -> int:
    """The most pixels of a pass; on a CPU larger ones gain nothing and do not fit the cache."""
    return (1 if device.type == "cpu" else 16) * 256 * 256


def _equal_sizes(decoded: Iterator[_Decoded], batch_pixels: int) -> Iterator[list[_Decoded]]:
    groups: dict[tuple[tuple[int, ...], str], list[_Decoded]] = {}
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
