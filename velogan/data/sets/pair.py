"""The training pictures of both domains, found and prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.loader import crop_shapes
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import LETTERS, Sources, find_pairs, find_sources

Task = Callable[[str], Callable[[int, int], None]]
"""Called with a task's name; returns a function that takes the task's progress as (done, total)."""


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, the prepared training pictures, and pairs in one order, if there are any."""

    sources: Sources
    a: Domain
    b: Domain
    pairs: tuple[Domain, Domain] | None = None

    def shapes(self, config: DataConfig) -> set[tuple[int, int]]:
        """Every (height, width) that training may see."""
        return crop_shapes(config, self.a) | crop_shapes(config, self.b)


def open_data(config: DataConfig, *, task: Task, say: Callable[[str], None]) -> Data:
    """Find, render or decode the training pictures of both domains, once. Raises `ValueError` if there are none."""
    found = task("rendering" if config.path[0] == BUILT_IN else "looking through files")
    sources = find_sources(config, progress=found)
    domains = []
    for side in (sources.a, sources.b):
        progress = task(f"preparing {side.letter}")
        domain = open_domain(side.train, config, test=False, **config.reading(side.letter), progress=progress)
        for line in filter(None, (domain.note, domain.skipped_line)):
            say(f"domain {side.letter}: {line}")
        domains.append(domain)
    a, b = domains
    if config.pairs and (isinstance(sources.a.train, Slices) or isinstance(sources.b.train, Slices)):
        raise ValueError(f"data.pairs={config.pairs} is for pictures, not for DICOM and NIfTI: leave it out")
    return Data(sources, a, b, _open_pairs(config, (a, b), task=task, say=say) if config.pairs else None)


def _open_pairs(
    config: DataConfig, like: tuple[Domain, Domain], *, task: Task, say: Callable[[str], None]
) -> tuple[Domain, Domain]:
    """The pictures of `data.pairs`, with the channels of both domains; says which are left out."""
    folders, alone = find_pairs(Path(config.pairs or "").expanduser())
    if alone:
        say(f"pairs: {len(alone)} pictures have no other of their name and are left out, for example {alone[0]}")
    while True:
        opened = []
        for letter, folder, domain in zip(LETTERS, folders, like):
            reading = {**config.reading(letter), "channels": domain.format.channels}
            opened.append(
                open_domain(folder, config, test=False, **reading, progress=task(f"preparing pairs {letter}"))
            )
        a, b = opened
        if len(a) == len(b) == len(folders[0].names):
            return a, b
        for line in filter(None, (a.skipped_line, b.skipped_line)):
            say(f"pairs: {line}")
        bad = [{name for name, _ in one.skipped} for one in opened]
        good = [
            number
            for number, names in enumerate(zip(*(folder.names for folder in folders)))
            if not (names[0] in bad[0] or names[1] in bad[1])
        ]
        folders = (folders[0].some(good), folders[1].some(good))
