"""A worker's work and what came of it: options and counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from velogan.translate.files import Summary, pixels_of_a_pass
from velogan.translate.large import Settings
from velogan.translate.model import Translator

WINDOW = 256
"""The most pictures that a worker takes at a time."""

WINDOW_BYTES = 2**25
"""The bytes of files that a worker takes at a time; a larger file goes alone."""


@dataclass(frozen=True)
class Options:
    """How pictures are translated, as `translate` has it."""

    format: str | None = None
    tile: int | None = None
    overwrite: bool = False
    threads: int = 2

    @property
    def suffix(self) -> str | None:
        """The suffix of all translations, or None."""
        return self.format and f".{self.format}"

    def settings(self, model: Translator) -> Settings:
        """The part of them that `translate_jobs` takes."""
        return Settings(self.overwrite, self.tile, pixels_of_a_pass(model.device))


@dataclass
class Done:
    """Counts, and name and reason of each picture that failed.

    `renamed` counts those in another format than asked for, and `example` is the name and suffix of one of them.
    `animated` counts animations, of which the first picture was translated; `animation`: name and pictures of one.
    """

    translated: int = 0
    skipped: int = 0
    tiled: int = 0
    renamed: int = 0
    example: tuple[str, str] | None = None
    animated: int = 0
    animation: tuple[str, int] | None = None
    failed: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Done | Summary) -> None:
        """Counts what `other` did, too."""
        self.translated += other.translated
        self.skipped += other.skipped
        self.tiled += other.tiled
        self.failed += [(name, reason) for name, reason in other.failed]
        if isinstance(other, Summary):
            self.renamed += len(other.renamed)
            self.example = self.example or next(iter(other.renamed), None)
            self.animated += len(other.animated)
            self.animation = self.animation or next(iter(other.animated), None)
        else:
            self.renamed += other.renamed
            self.example = self.example or other.example
            self.animated += other.animated
            self.animation = self.animation or other.animation
