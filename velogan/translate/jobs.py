"""Translation jobs, each with an input and an output file: for a single picture, or for a folder and its subfolders."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from velogan.data.pictures.images import (
    LOSSY,
    READABLE_SUFFIXES,
    SUFFIXES,
    Picture,
    is_picture,
    read_picture,
    save_picture,
)
from velogan.data.pictures.videos import SUFFIXES as VIDEOS
from velogan.data.sets.sources import list_images
from velogan.files import looks_like_file_name


@dataclass(frozen=True, kw_only=True)
class Job:
    """A picture file and the file of its translation.

    name: the picture's name in messages
    target: the translation's file; its suffix selects the format
    is_exclusive: whether no other process writes to these folders. If False, several workers do: name conflicts are
        detected from the source's folder, and leftovers of a killed worker are replaced
    """

    name: str
    target: Path
    source: Path
    is_exclusive: bool = True

    def read(self, *, pages_are_channels: bool) -> Picture:
        """Read the picture as `read_picture` does. Raises ValueError or OSError with the reason."""
        return read_picture(self.source, pages_are_channels=pages_are_channels)

    def is_done(self) -> bool:
        """Return whether the translation exists."""
        return os.path.lexists(self.target)

    def is_taken(self, target: Path) -> bool:
        """Return whether another picture in the source's folder has `target` as its translation, or might get it."""
        may_change = (READABLE_SUFFIXES - SUFFIXES) | (LOSSY if self.source.suffix.lower() in LOSSY else frozenset())
        return not self.is_exclusive and sibling_with_suffix(self.source, {target.suffix, *may_change}) is not None

    def save(self, picture: Picture) -> None:
        """Write the file under a hidden name, which `list_images` skips, and rename it."""
        with reraise_with_target(self.target):
            self._save(picture)

    def _save(self, picture: Picture) -> None:
        digest = hashlib.sha256(os.fsencode(self.target.name)).hexdigest()
        unique = secrets.token_hex(6) if self.is_exclusive else digest[:16]
        tmp_path = self.target.with_name(f".fresh-{unique}{self.target.suffix}")
        self.target.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_picture(tmp_path, picture)
            tmp_path.replace(self.target)
        finally:
            tmp_path.unlink(missing_ok=True)


def find_jobs(source: Path, target: Path, *, suffix: str | None) -> list[Job]:
    """Return the jobs that translate `source`, a picture or a folder of pictures.

    `target`: a folder, or for a single picture a file. `suffix`: selects the file format; None: keep each picture's.
    Raises ValueError, with the fix, if the input is missing or empty or would be overwritten, or if two pictures would
    become the same file.
    """
    if not os.path.lexists(source):
        raise ValueError(f"input {source} does not exist: name a picture or a folder of pictures")
    if not source.is_dir():
        return [_single_job(source, target, suffix)]
    names = find_picture_names(source, target, suffix=suffix)
    return [
        Job(name=escape_unprintable(name), source=source / name, target=target / replace_suffix(Path(name), suffix))
        for name in names
    ]


def find_picture_names(source: Path, target: Path, *, suffix: str | None) -> list[str]:
    """Return the names of the pictures below `source`, relative to it. Raises ValueError as `find_jobs` does."""
    if not source.is_dir():
        raise ValueError(f"input {source} does not exist: name a folder of pictures")
    if os.path.realpath(target) == os.path.realpath(source):
        raise ValueError(f"output {target} is the input folder itself: name another folder")
    if target.is_file():
        raise ValueError(f"output {target} is a file, but the input is a folder: name a folder")
    if target.suffix.lower() in (*SUFFIXES, *VIDEOS) and not target.is_dir():
        raise ValueError(f"output {target} is named like a file, but input {source} is a folder: name a folder")
    output_prefix = os.path.realpath(target) + os.sep  # earlier translations, if the output lies within the input
    names = [name for name in list_images(source) if not os.path.realpath(source / name).startswith(output_prefix)]
    if not names:
        kinds = " ".join(sorted(kind[1:] for kind in READABLE_SUFFIXES))
        raise ValueError(f"input {source} contains no pictures ({kinds}): name a folder that does")
    first: dict[Path, str] = {}
    for name in names if suffix is not None else ():
        other = first.setdefault(replace_suffix(Path(name), suffix), name)
        if other is not name:
            both = f"{escape_unprintable(other)} and {escape_unprintable(name)}"
            raise ValueError(
                f"{both} would both become {target / replace_suffix(Path(name), suffix)}: rename one, or leave the "
                "format out"
            )
    return names


@contextmanager
def reraise_with_target(target: Path) -> Iterator[None]:
    """Re-raise an OSError of this context, which writes `target`, with `target` as the file name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{target} cannot be written ({error.strerror or error})", str(target)) from error


def escape_unprintable(name: str) -> str:
    """Return `name` on one line, with escapes for characters that cannot be printed."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _single_job(source: Path, target: Path, suffix: str | None) -> Job:
    if target.suffix.lower() in SUFFIXES and not target.is_dir():
        if suffix is not None and target.suffix.lower() != suffix:
            raise ValueError(f"output {target} and format={suffix[1:]} contradict each other: leave one out")
    elif looks_like_file_name(target):
        if source.is_file() and not is_picture(source):
            raise ValueError(
                f"input {source} is not a picture, video or scan that is read: convert it (docs/formats.md)"
            )
        raise ValueError(
            f"output {target} is named like a file, and {target.suffix} is not written for input {source}: name a "
            f"folder, or a file that ends in {' '.join(sorted(SUFFIXES))}"
        )
    else:
        target = target / replace_suffix(Path(source.name), suffix)
    if os.path.realpath(target) == os.path.realpath(source):
        raise ValueError(f"output {target} is the input itself: name another file or folder")
    return Job(name=escape_unprintable(source.name), source=source, target=target)


def sibling_with_suffix(source: Path, suffixes: Iterable[str]) -> Path | None:
    """Return another file of the same name with one of these suffixes (also as .JPG or .Jpg); None if there is none."""
    spellings = (spelling for suffix in sorted(suffixes) for spelling in (suffix, suffix.upper(), suffix.title()))
    siblings = (source.with_suffix(spelling) for spelling in spellings)
    return next((sibling for sibling in siblings if sibling != source and os.path.lexists(sibling)), None)


def replace_suffix(name: Path, suffix: str | None) -> Path:
    """Return `name` with `suffix`; `name` itself if `suffix` is None."""
    return name if suffix is None else name.with_suffix(suffix)
