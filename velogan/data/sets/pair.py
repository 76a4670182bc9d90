"""The training pictures of both domains, found and prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.pictures.values import channels_in_common
from velogan.data.sets.beside import Task, check_shapes, find_beside, open_beside
from velogan.data.sets.cache import Domain, none_read, open_domain
from velogan.data.sets.loader import Beside, Labels, window
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import LETTERS, Folder, Side, Sources, find_pairs, find_sources, left_out
from velogan.data.sets.tone import tone
from velogan.files import counted

_LOOKED_AT = 16
"""Pictures of a domain, at most twice as many, whose channels are looked at before all are read."""


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, the training pictures, pairs in one order, and what lies beside, if any.

    `beside`: masks and label maps, by their names in a batch: `mask_a`, `label_b`.
    """

    sources: Sources
    a: Domain
    b: Domain
    pairs: tuple[Domain, Domain] | None = None
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
    return config.reading(side.letter)["channels"] or channels_in_common(counts)


def open_data(config: DataConfig, *, task: Task, say: Callable[[str], None]) -> Data:
    """Find, render or decode the training pictures of both domains, once. Raises `ValueError` if there are none."""
    found = task("rendering" if config.path[0] == BUILT_IN else "looking through files")
    sources = find_sources(config, progress=found)
    sides = (sources.a, sources.b)
    beside = find_beside(config, sides)
    paired = find_pairs(Path(config.pairs).expanduser(), config) if config.pairs else None
    if paired and any(isinstance(side.train, Slices) for side in sides):
        raise ValueError(f"data.pairs={config.pairs} is for pictures, not for slices: leave it out")
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
    pairs = _open_pairs(config, *paired, (a, b), task=task, say=say) if paired else None
    return Data(sources, a, b, pairs, open_beside(config, beside, list(zip(sides, domains)), task=task, say=say))


def _open_pairs(
    config: DataConfig,
    folders: tuple[Folder, Folder],
    alone: Sequence[str],
    like: tuple[Domain, Domain],
    *,
    task: Task,
    say: Callable[[str], None],
) -> tuple[Domain, Domain]:
    """The pictures of `data.pairs`, with the channels of both domains; says which are left out, as `alone` are.

    ValueError for a pair of two sizes.
    """
    if alone:
        say(
            f"pairs: {counted(len(alone), 'picture')} without another of the same name left out, for example {alone[0]}"
        )
    check_shapes(f"data.pairs={config.pairs}", *folders)
    while True:
        opened = []
        for letter, folder, domain in zip(LETTERS, folders, like):
            reading = {**config.reading(letter), "channels": domain.format.channels}
            opened.append(
                open_domain(folder, config, test=False, **reading, progress=task(f"preparing pairs {letter}"))
            )
        a, b = opened
        if len(a) == len(b) == len(folders[0].names):
            break
        for line in filter(None, (a.skipped_line, b.skipped_line)):
            say(f"pairs: {line}")
        read_a, read_b = set(a.names), set(b.names)
        both = zip(folders[0].names, folders[1].names)
        good = [number for number, (one, other) in enumerate(both) if one in read_a and other in read_b]
        folders = (folders[0].some(good), folders[1].some(good))
    for name, one, other in zip(a.names, a.shapes, b.shapes):
        if one[:2] != other[:2]:
            raise ValueError(
                f"data.pairs: {name} is {one[1]}x{one[0]} pixels in A and {other[1]}x{other[0]} in B: give both "
                "one size, or set data.preprocess=resize_and_crop"
            )
    return a, b
