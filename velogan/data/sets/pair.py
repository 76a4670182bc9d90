"""The training pictures of both domains, found and prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.pictures.values import common_channels
from velogan.data.sets.beside import Task, find_beside, open_beside
from velogan.data.sets.cache import Domain, none_read, open_domain
from velogan.data.sets.loader import Beside, Labels, window
from velogan.data.sets.sources import Folder, Side, Sources, find_sources, left_out
from velogan.data.sets.tone import tone

_LOOKED_AT = 16
"""Pictures of a domain, at most twice as many, whose channels are looked at before all are read."""


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, the training pictures, and what lies beside, if any.

    `beside`: masks and label maps, by their names in a batch: `mask_a`, `label_b`.
    """

    sources: Sources
    a: Domain
    b: Domain
    beside: Mapping[str, Beside] = field(default_factory=dict)

    @property
    def channels(self) -> tuple[int, int]:
        """Of the pictures of A and of B."""
        return self.a.format.channels, self.b.format.channels

    @property
    def colours(self) -> Tensor | None:
        """The classes of label maps, see `Labels`; None where there are none."""
        return next((one.colours for one in self.beside.values() if isinstance(one, Labels)), None)

    def shapes(self, config: DataConfig) -> set[tuple[int, int]]:
        """Every (height, width) that training may see."""
        return {window(config, shape) for domain in (self.a, self.b) for shape in domain.shapes}


def look_at_channels(side: Side, config: DataConfig) -> int:
    """The channels that `open_data` will find, by pictures spread over the domain. `ValueError` if none can be read."""
    names, counts, reasons = side.train.names, list[int](), list[str]()
    for number in range(0, len(names), -(-len(names) // _LOOKED_AT)):
        try:
            counts.append(side.train.read(names[number]).pixels.shape[2])
        except (OSError, ValueError) as error:
            reasons.append(str(error))
    if not counts:
        raise none_read(side.train, names[0], reasons[0], looked_at=len(reasons))
    return config.reading(side.letter)["channels"] or common_channels(counts)


def open_data(config: DataConfig, *, task: Task, say: Callable[[str], None]) -> Data:
    """Find, render or decode the training pictures of both domains, once. Raises `ValueError` if there are none."""
    found = task("rendering" if config.path[0] == BUILT_IN else "looking through files")
    sources = find_sources(config, progress=found)
    sides = (sources.a, sources.b)
    beside = find_beside(config, sides)
    domains = []
    for side in sides:
        progress = task(f"preparing {side.letter}")
        domain = open_domain(side.train, config, test=False, **config.reading(side.letter), progress=progress)
        others = left_out(side.train.directory, scans=False) if isinstance(side.train, Folder) else ""
        dark = tone(domain, f"--data.range-{side.letter.lower()}")
        for line in filter(None, (domain.note, domain.skipped_line, others, dark)):
            say(f"domain {side.letter}: {line}")
        domains.append(domain)
    a, b = domains
    return Data(sources, a, b, open_beside(config, beside, list(zip(sides, domains)), task=task, say=say))
