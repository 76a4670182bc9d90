"""Translating medical files: slices through the network, and back into files that say that they are synthetic."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from velogan import __version__
from velogan.data.pictures.images import Picture
from velogan.data.pictures.picture import convert_decode_errors
from velogan.data.pictures.provenance import Provenance
from velogan.data.pictures.scans import POSSIBLE_SUFFIXES, STACK_SUFFIXES, Scan, read_scan, require_library, scan_suffix
from velogan.data.pictures.values import PixelFormat, can_hold_range
from velogan.data.sets.sources import list_files
from velogan.files import atomic_write, looks_like_file_name, sha256
from velogan.translate.jobs import escape_unprintable, name_write_errors
from velogan.translate.large import Settings, plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format, translate_planned
from velogan.translate.summary import Summary, describe_error
from velogan.types import Progress

_WHOLE = (8, 16)  # bits of values that may use all of their type


@dataclass(frozen=True)
class ScanJob:
    """A medical file: its name for messages, its path, and that of its translation."""

    name: str
    source: Path
    target: Path

    @property
    def kind(self) -> str:
        """What it is called."""
        return _describe_kind(self.source)


def find_scans(source: Path, target: Path, *, stacks: bool = False) -> list[ScanJob]:
    """The DICOM and NIfTI files to translate: `source` itself, or those below it; none where there are none.

    `stacks`: TIFF files, too.

    ValueError with the mend if a library for them is missing, or the input would be overwritten.
    """
    if not source.is_dir():
        suffix = _scan_kind(source, stacks=stacks) if os.path.lexists(source) else None
        if suffix is None:
            return []
        inside = target.is_dir() or _scan_kind(target, stacks=stacks) is None
        if inside and looks_like_file_name(target):
            raise ValueError(
                f"output {target} is named like a file, and {target.suffix} is not written for input {source}: "
                f"{_describe_kind(source)} stays what it is; name a folder, or a file that ends in {suffix}"
            )
        jobs = [ScanJob(escape_unprintable(source.name), source, target / source.name if inside else target)]
        if not inside and _scan_kind(jobs[0].target, stacks=stacks) != suffix:
            raise ValueError(
                f"output {target} is of another kind than input {source}: {_describe_kind(source)} stays what it is"
            )
    elif os.path.realpath(source) == os.path.realpath(target):
        return []  # which is refused with the pictures
    else:
        below = os.path.realpath(target) + os.sep  # earlier translations, if the output lies within the input
        may_be = POSSIBLE_SUFFIXES | (STACK_SUFFIXES if stacks else set())
        names = [name for name in list_files(source, may_be) if _scan_kind(source / name, stacks=stacks) is not None]
        jobs = [
            ScanJob(escape_unprintable(name), source / name, target / name)
            for name in names
            if not os.path.realpath(source / name).startswith(below)
        ]
    if jobs and target.is_file() and source.is_dir():
        raise ValueError(f"output {target} is a file, but the input is a folder: name a folder")
    for job in jobs:
        require_library(job.source)
        if os.path.realpath(job.source) == os.path.realpath(job.target):
            raise ValueError(f"output {job.target} is the input itself: name another file or folder")
    return jobs


def translate_scans(
    model: Translator, jobs: Sequence[ScanJob], settings: Settings, *, progress: Progress | None = None
) -> Summary:
    """Translate the files one after another; each appears whole or not at all, and one that fails stops no other."""
    started = time.perf_counter()
    made = build_provenance(model)
    translated, skipped, tiled, failed = 0, 0, 0, []
    for number, job in enumerate(jobs, start=1):
        try:
            if not settings.overwrite and os.path.lexists(job.target):
                skipped += 1
            else:
                tiled += _translate(model, job, made, settings)
                translated += 1
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            failed.append((job.name, describe_error(error)))
        if progress is not None:
            progress(number, len(jobs))
    return Summary(translated, skipped, tuple(sorted(failed)), tiled, (), time.perf_counter() - started)


def _translate(model: Translator, job: ScanJob, made: Provenance, settings: Settings) -> bool:
    scan = read_scan(job.source)
    if model.input.range is None and scan.bits not in _WHOLE:
        raise ValueError(
            f"values of {scan.bits} bits, and the run does not say which of them are darkest and brightest: "
            "train with data.range_a and data.range_b"
        )
    with convert_decode_errors("scan"):
        first = _to_range_dtype(model, scan.picture(0))
    height, width = first.pixels.shape[:2]
    form = output_format(model, first)
    tiles = plan_tiles(model, height, width, tile=settings.tile)
    results: list[np.ndarray] = []
    size = settings.together(tiles, height * width)
    for start in range(0, len(scan), size):
        with convert_decode_errors("scan"):
            pictures = [
                _to_range_dtype(model, scan.picture(index)) for index in range(start, min(start + size, len(scan)))
            ]
        done = translate_planned(model, pictures, tiles, scratch=job.target.parent)
        results += [one.pixels for one in done]
    write_scan(job.target, scan, results, form, made)
    return tiles is not None


def write_scan(target: Path, scan: Scan, slices: list[np.ndarray], form: PixelFormat, made: Provenance) -> None:
    """Writes the translated slices of `scan` as a file of its kind, whole or not at all."""
    with convert_decode_errors("scan"):
        data = scan.encode(slices, form, made)
    with name_write_errors(target), atomic_write(target) as tmp_path:
        tmp_path.write_bytes(data)


def _to_range_dtype(model: Translator, picture: Picture) -> Picture:
    """Grey slices are values in a unit, of however few bits, where the run has a range; colours are pictures."""
    pixels, span = picture.pixels, model.input.range
    if span is None or pixels.shape[2] > 1 or can_hold_range(pixels.dtype.name, span):
        return picture
    return replace(picture, pixels=pixels.astype(np.uint16 if can_hold_range("uint16", span) else np.float32))


def _scan_kind(path: Path, *, stacks: bool) -> str | None:
    """The suffix of files of one kind; None for what is no scan."""
    suffix = scan_suffix(path)
    if suffix is None:
        return ".tif" if stacks and path.suffix.lower() in STACK_SUFFIXES else None
    return ".dcm" if suffix in (".dicom", ".ima", "") else suffix


def _describe_kind(path: Path) -> str:
    return "a stack of slices" if scan_suffix(path) is None else "a scan"


def build_provenance(model: Translator) -> Provenance:
    """What headers say of who made a translation."""
    digest = "unknown" if model.file is None else sha256(model.file)
    return Provenance("velogan", __version__, "in memory" if model.file is None else _weights_name(model.file), digest)


def _weights_name(file: Path) -> str:
    """A weights file's name, after its run's where it is of one: headers should tell no more of the disk."""
    checkpoint = file.parent
    run = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else None
    words = [run.name, file.name] if run else [file.name]
    return escape_unprintable(" ".join(words)).encode("ascii", "replace").decode()
