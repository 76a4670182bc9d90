"""Counts of the translated, skipped and failed files of a call."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Summary:
    """The result of `translate`: counts, seconds, and the name and reason of each that failed.

    `tiled`: how many were translated in tiles; `renamed`: name and new suffix of each that its format could not hold;
    `frames`: those of a film, which counts as one; `masked`: lines on what its masks do not keep, or are of no picture;
    `animated`: name and frames of each animation, of which the first picture was translated.
    """

    translated: int
    skipped: int
    failed: tuple[tuple[str, str], ...]
    tiled: int
    renamed: tuple[tuple[str, str], ...]
    seconds: float
    frames: int = 0
    masked: tuple[str, ...] = ()
    animated: tuple[tuple[str, int], ...] = ()

    @classmethod
    def empty(cls) -> Summary:
        """Return the summary of nothing."""
        return cls(translated=0, skipped=0, failed=(), tiled=0, renamed=(), seconds=0.0)

    def merge(self, other: Summary) -> Summary:
        """The sum of two summaries, of calls one after the other; names are sorted."""
        both = Summary(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})
        return replace(both, failed=tuple(sorted(both.failed)), renamed=tuple(sorted(both.renamed)))


def describe_error(error: BaseException) -> str:
    """The reason of a failure as one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
