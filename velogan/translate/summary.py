"""Counts of translated, skipped and failed files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path


@dataclass(frozen=True)
class Summary:
    """The result of `translate`.

    translated, skipped: number of files
    stale: skipped results that are older than the weights of the model
    failed: name and reason of each file that failed
    tiled: number of files translated in tiles
    renamed: name and new suffix of each file whose format could not hold the result
    seconds: duration of the call
    frames: number of frames if the input is a video, which counts as one file
    animated: name and number of frames of each animation; only its first frame was translated
    """

    translated: int = 0
    skipped: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    tiled: int = 0
    renamed: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    frames: int = 0
    animated: tuple[tuple[str, int], ...] = ()
    stale: tuple[str, ...] = ()

    def merge(self, other: Summary) -> Summary:
        """Return the sum of two summaries; failed and renamed files are sorted."""
        both = Summary(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})
        return replace(both, failed=tuple(sorted(both.failed)), renamed=tuple(sorted(both.renamed)))


def find_stale(weights: Path | None, existing: Iterable[Path]) -> tuple[str, ...]:
    """Return the names of results that are older than the file `weights`; none if it is None."""
    try:
        saved_at = weights.stat().st_mtime_ns if weights else 0
    except OSError:  # a run in progress has removed this checkpoint
        return ()
    return tuple(path.name for path in existing if path.lstat().st_mtime_ns < saved_at)


def describe_error(error: BaseException) -> str:
    """Return the reason for a failure."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
