"""The training pictures of both domains, found and prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.loader import crop_shapes
from velogan.data.sets.sources import Sources, find_sources

Task = Callable[[str], Callable[[int, int], None]]
"""Called with a task's name; returns a function that takes the task's progress as (done, total)."""


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, and the prepared training pictures."""

    sources: Sources
    a: Domain
    b: Domain

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
    return Data(sources, *domains)
