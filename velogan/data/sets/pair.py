"""The training pictures of both domains, found and prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.loader import crop_shapes
from velogan.data.sets.near_duplicates import near_duplicates
from velogan.data.sets.sources import Side, Sources, find_sources

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
    found = task("rendering" if config.path[0] == BUILT_IN else "looking through shards")
    sources = find_sources(config, progress=found)
    domains = []
    for side in (sources.a, sources.b):
        progress = task(f"preparing {side.letter}")
        domain = open_domain(side.train, config, test=False, **config.reading(side.letter), progress=progress)
        for line in filter(None, (domain.note, domain.skipped_line, _straddling(config, side, domain))):
            say(f"domain {side.letter}: {line}")
        domains.append(domain)
    return Data(sources, *domains)


def _straddling(config: DataConfig, side: Side, train: Domain) -> str:
    """Give a line that names held-out pictures with near duplicates in training; empty if there are none."""
    if side.validation is None:
        return ""
    try:
        held = open_domain(side.validation, config, test=True, **config.reading(side.letter))
    except ValueError:  # validation will give the reason
        return ""
    assert isinstance(held.thumbnails, np.ndarray)  # they are prepared
    found = near_duplicates(held.thumbnails, train.thumbnails, dtype=train.format.dtype)
    pairs = [f"{held.names[one]} ~ {train.names[other]}" for one, other in found[:3]]
    if not found:
        return ""
    return (
        f"{len(found)} of {len(held)} held-out pictures have near duplicates in training ({', '.join(pairs)}"
        f"{', ...' if len(found) > 3 else ''}), so the best checkpoint is chosen on pictures much like those trained "
        "on; --data.group REGEX keeps the pictures of one patient, video or scene together"
    )
