"""The training pictures of both domains, found and prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from velogan.data.config import BUILT_IN, DataConfig
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.loader import Masks, crop_shapes
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import LETTERS, Folder, Side, Sources, find_pairs, find_sources, left_out, list_images
from velogan.data.sets.tone import tone

Task = Callable[[str], Callable[[int, int], None]]
"""Called with a task's name; returns a function that takes the task's progress as (done, total)."""


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, the training pictures, pairs in one order, and masks by letter, if any."""

    sources: Sources
    a: Domain
    b: Domain
    pairs: tuple[Domain, Domain] | None = None
    masks: Mapping[str, Masks] = field(default_factory=dict)

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
        others = left_out(side.train.directory, scans=False) if isinstance(side.train, Folder) else ""
        dark = tone(domain, f"--data.range-{side.letter.lower()}")
        for line in filter(None, (domain.note, domain.skipped_line, others, dark)):
            say(f"domain {side.letter}: {line}")
        domains.append(domain)
    a, b = domains
    if config.pairs and (isinstance(sources.a.train, Slices) or isinstance(sources.b.train, Slices)):
        raise ValueError(f"data.pairs={config.pairs} is for pictures, not for DICOM and NIfTI: leave it out")
    pairs = _open_pairs(config, (a, b), task=task, say=say) if config.pairs else None
    masks = {}
    for side, domain, given in ((sources.a, a, config.masks_a), (sources.b, b, config.masks_b)):
        if given is not None:
            masks[side.letter] = _open_masks(config, side, domain, Path(given).expanduser(), task=task, say=say)
    return Data(sources, a, b, pairs, masks)


def _open_masks(
    config: DataConfig, side: Side, domain: Domain, folder: Path, *, task: Task, say: Callable[[str], None]
) -> Masks:
    """The masks of the pictures of `domain`; says how many have none. ValueError where one is of another size."""
    asked = f"data.masks_{side.letter.lower()}={folder}"
    if not isinstance(side.train, Folder):
        raise ValueError(f"{asked} is for folders of pictures, not for {side.train.where}: leave it out")
    if not folder.is_dir():
        raise ValueError(f"{asked} is no folder: name one that holds a mask for each picture")
    there = {_stem(name): name for name in list_images(folder)}
    lacking = [name for name in domain.names if _stem(name) not in there]
    if len(lacking) == len(domain):
        raise ValueError(f"{asked} holds no mask with the name of a picture, as of {lacking[0]}: name another folder")
    if lacking:
        say(
            f"{asked} has no mask for {len(lacking)} of {len(domain)} pictures, which may change everywhere, for "
            f"example {lacking[0]}"
        )
    having = [name for name in domain.names if _stem(name) in there]
    source = Folder(folder, tuple(there[_stem(name)] for name in having))
    masks = open_domain(source, config, test=False, channels=1, progress=task(f"preparing masks {side.letter}"))
    if masks.skipped:
        raise ValueError(f"{asked}: {masks.skipped_line}; mend them")
    numbers = {name: number for number, name in enumerate(having)}
    places = tuple(numbers.get(name, -1) for name in domain.names)
    for name, shape, place in zip(domain.names, domain.shapes, places):
        mask = masks.shapes[place] if place >= 0 else shape
        if shape[:2] != mask[:2]:
            raise ValueError(
                f"{asked}: the mask of {name} is {mask[1]}x{mask[0]} pixels where its picture is "
                f"{shape[1]}x{shape[0]}: give both one size"
            )
    inside = config.masks_keep == "inside"
    colour, count = "white" if inside else "black", len(having)
    say(f"domain {side.letter}: {count} {'mask' if count == 1 else 'masks'}: what is {colour} there stays as it is")
    return Masks(masks, places, inverted=inside)


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


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
