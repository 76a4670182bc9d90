"""The input and output file of each translation: of one picture, or of a folder with its tree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from velogan.data.domains.sources import list_images
from velogan.data.pictures.images import SUFFIXES


@dataclass(frozen=True)
class Job:
    """One picture: its name for messages, its file, and the file of its translation."""

    name: str
    source: Path
    target: Path


def find_jobs(source: Path, target: Path, *, suffix: str | None) -> list[Job]:
    """The translations to make of `source`, a picture or a folder.

    `target`: a folder, or for one picture a file. `suffix`: the format of all; None: each keeps its own.
    Raises `ValueError` with the mend if the input is missing or empty, or would be overwritten, or if two pictures
    would become one file.
    """
    if not os.path.lexists(source):
        raise ValueError(f"input {source} does not exist: name a picture or a folder of pictures")
    if not source.is_dir():
        return [_single(source, target, suffix)]
    if os.path.realpath(target) == os.path.realpath(source):
        raise ValueError(f"output {target} is the input folder itself: name another folder")
    if target.is_file():
        raise ValueError(f"output {target} is a file, but the input is a folder: name a folder")
    inside = os.path.realpath(target) + os.sep  # earlier translations, if the output lies within the input
    names = [name for name in list_images(source) if not os.path.realpath(source / name).startswith(inside)]
    if not names:
        kinds = " ".join(sorted(kind[1:] for kind in SUFFIXES))
        raise ValueError(f"input {source} holds no picture ({kinds}): name a folder that does")
    jobs = [Job(printable(name), source / name, target / _renamed(Path(name), suffix)) for name in names]
    _refuse_collisions(jobs)
    return jobs


def printable(name: str) -> str:
    """`name` on one line, with escapes for what cannot be printed."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _single(source: Path, target: Path, suffix: str | None) -> Job:
    if target.suffix.lower() in SUFFIXES and not target.is_dir():
        if suffix is not None and target.suffix.lower() != suffix:
            raise ValueError(f"output {target} and format={suffix[1:]} contradict each other: leave one out")
    else:
        target = target / _renamed(Path(source.name), suffix)
    if os.path.realpath(target) == os.path.realpath(source):
        raise ValueError(f"output {target} is the input itself: name another file or folder")
    return Job(printable(source.name), source, target)


def _renamed(name: Path, suffix: str | None) -> Path:
    return name if suffix is None else name.with_suffix(suffix)


def _refuse_collisions(jobs: list[Job]) -> None:
    first: dict[Path, Job] = {}
    for job in jobs:
        other = first.setdefault(job.target, job)
        if other is not job:
            raise ValueError(
                f"{other.name} and {job.name} would both become {job.target}: rename one, or leave the format out"
            )
