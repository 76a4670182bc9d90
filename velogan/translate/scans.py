"""Translate medical files slice by slice into files of the same kind, whose headers mark them as synthetic."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from velogan.data.pictures.images import Picture
from velogan.data.pictures.picture import convert_decode_errors
from velogan.data.pictures.scan_info import Provenance
from velogan.data.pictures.scans import POSSIBLE_SUFFIXES, STACK_SUFFIXES, Scan, read_scan, require_library, scan_suffix
from velogan.data.pictures.values import PixelFormat, can_hold_range
from velogan.data.sets.sources import list_files
from velogan.files import __version__, atomic_write, looks_like_file_name, sha256
from velogan.translate.jobs import escape_unprintable, reraise_with_target
from velogan.translate.large import plan_tiles
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.pictures import output_format, translate_pictures
from velogan.translate.summary import Summary, describe_error, find_stale
from velogan.types import Progress

_FULL_RANGE_BITS = (8, 16)  # stored bits whose full range is the range of values


@dataclass(frozen=True)
class ScanJob:
    """A medical file, or a stack of slices: its name for messages, its path, and the path of its translation."""

    name: str
    source: Path
    target: Path

    @property
    def kind(self) -> str:
        """The phrase for the file in messages: a scan, or a stack of slices."""
        return _describe_kind(self.source)


def find_scans(source: Path, target: Path, *, stacks: bool = False) -> list[ScanJob]:
    """Return the DICOM and NIfTI files to translate: `source` itself, or all files below it.

    `stacks`: whether to include TIFF files. Raises ValueError, with the fix, if a library for them is missing, or the
    input would be overwritten.
    """
    if not source.is_dir():
        suffix = _scan_kind(source, stacks=stacks) if os.path.lexists(source) else None
        if suffix is None:
            return []
        is_folder = target.is_dir() or _scan_kind(target, stacks=stacks) is None
        if is_folder and looks_like_file_name(target):
            raise ValueError(
                f"output {target} is named like a file, and {target.suffix} is not written for input {source}: "
                f"{_describe_kind(source)} stays what it is; name a folder, or a file that ends in {suffix}"
            )
        jobs = [ScanJob(escape_unprintable(source.name), source, target / source.name if is_folder else target)]
        if not is_folder and _scan_kind(jobs[0].target, stacks=stacks) != suffix:
            raise ValueError(
                f"output {target} is of another kind than input {source}: {_describe_kind(source)} stays what it is"
            )
    elif os.path.realpath(source) == os.path.realpath(target):
        return []  # `find_jobs` rejects this
    else:
        output_prefix = os.path.realpath(target) + os.sep  # earlier translations, if the output lies within the input
        suffixes = POSSIBLE_SUFFIXES | (STACK_SUFFIXES if stacks else set())
        names = [name for name in list_files(source, suffixes) if _scan_kind(source / name, stacks=stacks) is not None]
        jobs = [
            ScanJob(escape_unprintable(name), source / name, target / name)
            for name in names
            if not os.path.realpath(source / name).startswith(output_prefix)
        ]
    if jobs and target.is_file() and source.is_dir():
        raise ValueError(f"output {target} is a file, but the input is a folder: name a folder")
    for job in jobs:
        require_library(job.source)
        if os.path.realpath(job.source) == os.path.realpath(job.target):
            raise ValueError(f"output {job.target} is the input itself: name another file or folder")
    return jobs


def translate_scans(
    model: Translator, jobs: Sequence[ScanJob], options: TranslateOptions, *, progress: Progress | None = None
) -> Summary:
    """Translate files one by one; each appears complete or not at all, and a failure does not stop the others."""
    started_at = time.perf_counter()
    provenance = build_provenance(model)
    translated, tiled = 0, 0
    existing, failed = list[Path](), []
    for number, job in enumerate(jobs, start=1):
        try:
            if not options.overwrite and os.path.lexists(job.target):
                existing.append(job.target)
            else:
                tiled += _translate(model, job, provenance, options)
                translated += 1
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            failed.append((job.name, describe_error(error)))
        if progress is not None:
            progress(number, len(jobs))
    stale, seconds = find_stale(model.file, existing), time.perf_counter() - started_at
    return Summary(translated, len(existing), tuple(sorted(failed)), tiled, seconds=seconds, stale=stale)


def _translate(model: Translator, job: ScanJob, provenance: Provenance, options: TranslateOptions) -> bool:
    """Translate one file; return whether it was done in tiles."""
    scan = read_scan(job.source)
    if model.input.range is None and scan.bits not in _FULL_RANGE_BITS:
        raise ValueError(
            f"values of {scan.bits} bits, and the run declares no range of values: "
            "train with data.range_a and data.range_b"
        )
    with convert_decode_errors("scan"):
        first = _to_range_dtype(model, scan.picture(0))
    height, width = first.pixels.shape[:2]
    output = output_format(model, first)
    tiles = plan_tiles(model, height, width, tile=options.tile)
    results: list[np.ndarray] = []
    size = options.images_per_batch(model.device, tiles, height * width)
    for start in range(0, len(scan), size):
        with convert_decode_errors("scan"):
            pictures = [
                _to_range_dtype(model, scan.picture(index)) for index in range(start, min(start + size, len(scan)))
            ]
        translated = translate_pictures(model, pictures, tiles, scratch=job.target.parent)
        results += [picture.pixels for picture in translated]
    write_scan(job.target, scan, results, output, provenance)
    return tiles is not None


def write_scan(
    target: Path, scan: Scan, slices: list[np.ndarray], pixel_format: PixelFormat, provenance: Provenance
) -> None:
    """Write the translated `slices` as a file in the format of `scan`, completely or not at all."""
    with convert_decode_errors("scan"):
        data = scan.encode(slices, pixel_format, provenance)
    with reraise_with_target(target), atomic_write(target) as tmp_path:
        tmp_path.write_bytes(data)


def _to_range_dtype(model: Translator, picture: Picture) -> Picture:
    """Convert grey slices to a dtype that can hold the run's range of values, if declared; return colour unchanged."""
    pixels, value_range = picture.pixels, model.input.range
    if value_range is None or pixels.shape[2] > 1 or can_hold_range(pixels.dtype.name, value_range):
        return picture
    return replace(picture, pixels=pixels.astype(np.uint16 if can_hold_range("uint16", value_range) else np.float32))


def _scan_kind(path: Path, *, stacks: bool) -> str | None:
    """Return the kind of a scan: its usual suffix, such as .dcm for all DICOM files; None if it is not a scan."""
    suffix = scan_suffix(path)
    if suffix is None:
        return ".tif" if stacks and path.suffix.lower() in STACK_SUFFIXES else None
    return ".dcm" if suffix in (".dicom", ".ima", "") else suffix


def _describe_kind(path: Path) -> str:
    return "a stack of slices" if scan_suffix(path) is None else "a scan"


def build_provenance(model: Translator) -> Provenance:
    """Return the program and weights that headers of translations name."""
    digest = "unknown" if model.file is None else sha256(model.file)
    return Provenance("velogan", __version__, "in memory" if model.file is None else _weights_name(model.file), digest)


def _weights_name(file: Path) -> str:
    """Return the names of the run, if any, and of the weights file; the full path does not belong in headers."""
    checkpoint = file.parent
    run = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else None
    names = [run.name, file.name] if run else [file.name]
    return escape_unprintable(" ".join(names)).encode("ascii", "replace").decode()
