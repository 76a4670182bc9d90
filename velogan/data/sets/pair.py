"""The training images of both domains, with their annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from torch import Tensor

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.pictures.values import common_channels
from velogan.data.sets.annotations import Labels, Task, find_annotations, open_annotations
from velogan.data.sets.cache import Domain, open_domain, unreadable_error
from velogan.data.sets.check import domain_warnings
from velogan.data.sets.loader import Annotation, crop_shape
from velogan.data.sets.sources import DomainSource, Sources, find_sources

_SAMPLE = 16
"""Maximum number of pictures of a domain from which its channels are estimated, and its range of values checked."""


@dataclass(frozen=True)
class TrainingData:
    """The training images of both domains, their sources, and their annotations by name in a batch.

    held_out: the readable held-out training images of `a` and `b`, if there are any
    """

    sources: Sources
    a: Domain
    b: Domain
    annotations: Mapping[str, Annotation] = field(default_factory=dict)
    held_out: Mapping[str, Domain] = field(default_factory=dict)

    @property
    def channels(self) -> tuple[int, int]:
        """The numbers of channels of A and of B."""
        return self.a.format.channels, self.b.format.channels

    @property
    def colours(self) -> Tensor | None:
        """The colours or numbers of the classes of label maps, see `Labels`; None without label maps."""
        annotations = self.annotations.values()
        return next((labels.colours for labels in annotations if isinstance(labels, Labels)), None)

    @property
    def num_classes(self) -> int:
        """The number of classes of label maps; 0 without label maps."""
        return 0 if self.colours is None else len(self.colours)

    @property
    def digests(self) -> dict[str, str]:
        """A hash of each domain, by `a` and `b`, and of each annotation, by its name in a batch."""
        domains = {"a": self.a, "b": self.b, **{name: images.domain for name, images in self.annotations.items()}}
        return {name: domain.digest for name, domain in domains.items()}

    def list_changed(self, digests: Mapping[str, str | None]) -> list[str]:
        """List the domains and annotations (such as `A`, `B (label)`) whose hashes differ from those in `digests`."""
        names = [name for name, digest in self.digests.items() if digests.get(name) not in (None, digest)]
        return [name[-1].upper() + (f" ({name[:-2]})" if len(name) > 1 else "") for name in names]

    def crop_shapes(self, config: DataConfig) -> set[tuple[int, int]]:
        """Return every (height, width) that training crops have."""
        return {crop_shape(config, shape) for domain in (self.a, self.b) for shape in domain.shapes}


def probe_channels(source: DomainSource, config: DataConfig) -> int:
    """Return a domain's number of channels, as configured or in a few pictures. Raises ValueError if none is read."""
    names, counts = source.train.names, list[int]()
    reasons = list[str]()
    for index in range(0, len(names), -(-len(names) // _SAMPLE)):
        try:
            counts.append(source.train.read(names[index]).pixels.shape[2])
        except (OSError, ValueError) as error:
            reasons.append(str(error))
    if not counts:
        raise unreadable_error(source.train, names[0], reasons[0], count=len(reasons))
    return config.read_options(source.letter)["channels"] or common_channels(counts)


def open_data(config: DataConfig, *, task: Task, print_line: Callable[[str], None]) -> TrainingData:
    """Find both domains (render them if built in), and prepare their images. Raises ValueError if a domain has none."""
    sources = find_sources(
        config, progress=task("rendering" if config.path[0] == BUILT_IN else "looking through files")
    )
    annotations = find_annotations(config, (sources.a, sources.b))
    domains, held_out = [], {}
    for source in (sources.a, sources.b):
        letter, progress = source.letter, task(f"preparing {source.letter}")
        domain = open_domain(source.train, config, test=False, **config.read_options(letter), progress=progress)
        warnings = domain_warnings(source.train, domain.format, domain.sample(_SAMPLE), letter=letter)
        for line in filter(None, (domain.note, domain.skipped_line, *warnings)):
            print_line(f"domain {letter}: {line}")
        domains.append(domain)
        if source.validation is not None:
            with suppress(ValueError):  # none can be read: the run reports that it has no validation
                images = open_domain(source.validation, config, test=True, **config.read_options(letter))
                held_out[letter.lower()] = images
                if images.skipped_line:
                    print_line(f"domain {letter}, held out for validation: {images.skipped_line}")
    opened = open_annotations(
        config, annotations, zip((sources.a, sources.b), domains), task=task, print_line=print_line
    )
    return TrainingData(sources, domains[0], domains[1], opened, held_out)
