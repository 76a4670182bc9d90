"""The training pictures of both domains, found and prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.pictures.values import common_channels
from velogan.data.sets.annotations import Labels, Task, find_annotations, open_annotations
from velogan.data.sets.cache import Domain, open_domain, unreadable_error
from velogan.data.sets.check import domain_warnings
from velogan.data.sets.loader import Annotation, window
from velogan.data.sets.sources import DomainSource, Sources, find_sources

_LOOKED_AT = 16
"""Pictures of a domain, at most twice as many, whose channels are looked at before all are read."""


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, and the training images with their annotations, by their names in a batch.

    Those are `mask_a`, `label_b` and so on.
    """

    sources: Sources
    a: Domain
    b: Domain
    annotations: Mapping[str, Annotation] = field(default_factory=dict)

    @property
    def channels(self) -> tuple[int, int]:
        """Of the pictures of A and of B."""
        return self.a.format.channels, self.b.format.channels

    @property
    def colours(self) -> Tensor | None:
        """The classes of label maps, see `Labels`; None if there are none."""
        return next((one.colours for one in self.annotations.values() if isinstance(one, Labels)), None)

    @property
    def classes(self) -> int:
        """The number of classes of label maps; 0 if there are none."""
        return 0 if self.colours is None else len(self.colours)

    @property
    def digests(self) -> dict[str, str]:
        """A hash of each domain, `a` and `b`, and of its annotations, by their names."""
        domains = {"a": self.a, "b": self.b, **{name: one.domain for name, one in self.annotations.items()}}
        return {name: domain.digest for name, domain in domains.items()}

    def changed(self, digests: Mapping[str, str | None]) -> list[str]:
        """List what differs from other `digests`, if these know it: `A`, `B (label)`."""
        names = [name for name, digest in self.digests.items() if digests.get(name) not in (None, digest)]
        return [name[-1].upper() + (f" ({name[:-2]})" if len(name) > 1 else "") for name in names]

    def shapes(self, config: DataConfig) -> set[tuple[int, int]]:
        """Every (height, width) that training may see."""
        return {window(config, shape) for domain in (self.a, self.b) for shape in domain.shapes}


def probe_channels(side: DomainSource, config: DataConfig) -> int:
    """The channels that `open_data` will find, by pictures spread over the domain. `ValueError` if none can be read."""
    names, counts, reasons = side.train.names, list[int](), list[str]()
    for number in range(0, len(names), -(-len(names) // _LOOKED_AT)):
        try:
            counts.append(side.train.read(names[number]).pixels.shape[2])
        except (OSError, ValueError) as error:
            reasons.append(str(error))
    if not counts:
        raise unreadable_error(side.train, names[0], reasons[0], count=len(reasons))
    return config.read_options(side.letter)["channels"] or common_channels(counts)


def open_data(config: DataConfig, *, task: Task, print_line: Callable[[str], None]) -> Data:
    """Find, render or decode the training pictures of both domains, once. Raises `ValueError` if there are none."""
    found = task("rendering" if config.path[0] == BUILT_IN else "looking through files")
    sources = find_sources(config, progress=found)
    sides = (sources.a, sources.b)
    annotations = find_annotations(config, sides)
    domains = []
    for side in sides:
        progress = task(f"preparing {side.letter}")
        domain = open_domain(side.train, config, test=False, **config.read_options(side.letter), progress=progress)
        lines = domain_warnings(side.train, domain.format, domain.sample(_LOOKED_AT), letter=side.letter)
        for line in filter(None, (domain.note, domain.skipped_line, *lines)):
            print_line(f"domain {side.letter}: {line}")
        domains.append(domain)
    opened = open_annotations(config, annotations, list(zip(sides, domains)), task=task, print_line=print_line)
    return Data(sources, domains[0], domains[1], opened)
