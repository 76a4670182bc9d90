"""What lies beside the training pictures, under their names: masks, and label maps with their classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.loader import Beside, Labels, Masks, classes_of, normalise
from velogan.data.sets.sources import Folder, LabelMaps, Side, list_by_stem, stem, without_picture
from velogan.files import counted
from velogan.metrics.labels import find_labels
from velogan.types import Progress

Task = Callable[[str], Progress]
"""Called with a task's name; returns a function that takes the task's progress as (done, total)."""

Say = Callable[[str], None]

NONE = 255
"""In maps of numbers, what stands for no class, as in Cityscapes' and VOC's."""

MOST_CLASSES = 255
_LOOKED_AT = 200
"""Label maps in which colours are looked for."""

_COMPARED = 8
"""Files whose sizes are held against those of their pictures before both are resized."""


@dataclass(frozen=True)
class Files:
    """The masks or labels (`what`) of a folder: their names by their stems. `asked`: the field, and what it says."""

    what: str
    asked: str
    folder: Path
    names: Mapping[str, str]

    def having(self, pictures: Sequence[str]) -> list[str]:
        """Those of `pictures` that have one. ValueError for none."""
        if having := [name for name in pictures if stem(name) in self.names]:
            return having
        raise ValueError(
            f"{self.asked} holds no {self.what} with the name of a picture, as of {pictures[0]}: name another folder"
        )


def find_beside(config: DataConfig, sides: Iterable[Side]) -> dict[str, Files]:
    """The masks and label maps whose folders `config` names, by its fields.

    ValueError for what is no such folder, and where none has the name of a training picture.
    """
    found: dict[str, Files] = {}
    for side in sides:
        for what in ("masks", "labels"):
            field = f"{what}_{side.letter.lower()}"
            if (given := getattr(config, field)) is None:
                continue
            asked, folder = f"data.{field}={given}", Path(given).expanduser()
            if not isinstance(side.train, Folder):
                raise ValueError(f"{asked} is for folders of pictures, not for {side.train.where}: leave it out")
            if not folder.is_dir():
                raise ValueError(f"{asked} is no folder: name one that holds {what} under the names of the pictures")
            found[field] = Files(what, asked, folder, list_by_stem(folder))
            found[field].having(side.train.names)
    return found


def check_shapes(asked: str, pictures: Folder, others: Folder) -> None:
    """ValueError where one of `others` is of another shape than its picture, so that resizing would shift it.

    Some are looked at. A smaller or larger one of the same shape is no other; files that cannot be read are told where
    all are.
    """
    for number in range(0, len(others.names), -(-len(others.names) // _COMPARED)):
        name, other = pictures.names[number], others.names[number]
        try:
            (height, width), (high, wide) = pictures.read(name).pixels.shape[:2], others.read(other).pixels.shape[:2]
        except (OSError, ValueError):
            continue
        if abs(height * wide - width * high) > max(height, width, high, wide):  # more than rounding to a pixel
            raise ValueError(
                f"{asked}: {other} has {wide}x{high} pixels where {name} has {width}x{height}, so it does not lie over "
                "it: give both one shape"
            )


def open_beside(
    config: DataConfig,
    there: Mapping[str, Files],
    domains: Sequence[tuple[Side, Domain]],
    *,
    task: Task,
    say: Say,
) -> dict[str, Beside]:
    """The masks and label maps of `find_beside`, by their names in a batch. ValueError where they do not fit."""
    found: dict[str, Beside] = {}
    maps: dict[str, tuple[Domain, tuple[int, ...]]] = {}
    for side, domain in domains:
        letter = side.letter.lower()
        if (files := there.get(f"masks_{letter}")) is not None:
            lacking = "may change everywhere"
            masks, places = _open(config, side, domain, files, lacking, Folder, channels=1, task=task, say=say)
            _require_white(masks, files.asked)
            inside = config.masks_keep == "inside"
            colour = "white" if inside else "black"
            say(f"domain {side.letter}: {counted(len(masks), 'mask')}: what is {colour} there stays as it is")
            found[f"mask_{letter}"] = Masks(masks, places, inverted=inside)
        if (files := there.get(f"labels_{letter}")) is not None:
            lacking = "may change their classes"
            maps[letter] = _open(config, side, domain, files, lacking, LabelMaps, task=task, say=say)
    if maps:
        colours = _classes(config, {letter: labels for letter, (labels, _) in maps.items()}, say=say)
        found |= {f"label_{letter}": Labels(*one, colours=colours) for letter, one in maps.items()}
    return found


def _open(
    config: DataConfig,
    side: Side,
    domain: Domain,
    files: Files,
    lacking: str,
    kind: type[Folder],
    *,
    task: Task,
    say: Say,
    **how: Any,
) -> tuple[Domain, tuple[int, ...]]:
    """The pictures of `files`, and for each picture of `domain` its place among them, -1 for none.

    Says how many have none, which are `lacking`, and how many files have no picture. ValueError where one is of another
    size.
    """
    asked, having = files.asked, files.having(domain.names)
    if without := [name for name in domain.names if stem(name) not in files.names]:
        say(
            f"{asked} has none for {len(without)} of {counted(len(domain), 'picture')}, which {lacking}, for example "
            f"{without[0]}"
        )
    known = (*side.train.names, *(side.validation.names if side.validation else ()))
    if alone := without_picture(files.folder, files.names, known):
        say(f"domain {side.letter}: {alone}")
    source = kind(files.folder, tuple(files.names[stem(name)] for name in having), filled=False)
    check_shapes(asked, cast(Folder, side.train).named(having), source)
    found = open_domain(source, config, test=False, **how, progress=task(f"preparing {files.what} {side.letter}"))
    if found.skipped:
        raise ValueError(f"{asked}: {found.skipped_line}; mend them")
    numbers = {name: number for number, name in enumerate(having)}
    places = tuple(numbers.get(name, -1) for name in domain.names)
    for name, shape, place in zip(domain.names, domain.shapes, places):
        other = found.shapes[place] if place >= 0 else shape
        if shape[:2] != other[:2]:
            raise ValueError(
                f"{asked}: that of {name} is {other[1]}x{other[0]} pixels where its picture is {shape[1]}x{shape[0]}: "
                "give both one size"
            )
    return found, places


def _require_white(masks: Domain, asked: str) -> None:
    """ValueError where no mask holds anything that counts as white."""
    if masks.format.dtype == "float32":
        raise ValueError(f"{asked}: masks hold floating-point or signed pixels: save them in 8 or 16 bits")
    brightest, white = max(int(masks.image(n).max()) for n in range(len(masks))), np.iinfo(masks.format.dtype).max
    if brightest <= white // 2:
        raise ValueError(
            f"{asked}: the brightest pixel of all masks is {brightest}, and white is {white}: save them with 0 and "
            f"{white}"
        )


def _classes(config: DataConfig, maps: dict[str, Domain], *, say: Say) -> Tensor:
    """The classes of all label maps, as `Labels` has them; says what they are."""
    asked = " and ".join(f"data.labels_{letter}={getattr(config, f'labels_{letter}')}" for letter in maps)
    kinds = {(one.format.channels, one.format.dtype) for one in maps.values()}
    if len(kinds) > 1 or kinds & {(channels, "float32") for channels, _ in kinds}:
        raise ValueError(f"{asked}: give label maps of one kind, of 8 bits: all of numbers (grey), or all of colours")
    samples = {
        letter: [one.image(n) for n in range(0, len(one), -(-len(one) // _LOOKED_AT))] for letter, one in maps.items()
    }
    sample = [one for some in samples.values() for one in some]
    ((channels, dtype),) = kinds
    colours = _numbers(maps.values(), asked) if channels == 1 else _colours(sample, dtype, asked)
    told = {
        letter: [classes_of(torch.from_numpy(one)[None].float(), colours) for one in some]
        for letter, some in samples.items()
    }
    none = np.mean([(one < 0).float().mean() for some in told.values() for one in some])
    how = f"{'numbers' if channels == 1 else 'colours'} {_shown(colours)}"
    say(f"labels: {len(colours)} classes, {how}; {none:.1%} of pixels have none")
    for letter, some in told.items():
        there = {int(value) for one in some for value in one.unique()}
        if lacking := [value for value in range(len(colours)) if value not in there]:
            say(
                f"labels {letter.upper()}: no pixel of the {len(some)} maps that were looked at is of class "
                f"{_shown(colours[lacking])}: are the classes of both domains the same?"
            )
    return colours


def _numbers(maps: Any, asked: str) -> Tensor:
    found = sorted({int(value) for one in maps for n in range(len(one)) for value in np.unique(one.image(n))})
    if found != [0, NONE]:  # which is a picture in black and white
        found = [value for value in found if value != NONE]
    if len(found) < 2 or found[-1] > NONE or len(found) > MOST_CLASSES:
        raise ValueError(
            f"{asked}: {len(found)} numbers from {found[0] if found else '-'} to {found[-1] if found else '-'} are no "
            f"classes: give maps of 2 to {MOST_CLASSES} numbers below {NONE}, which stands for no class"
        )
    return torch.tensor(found, dtype=torch.float32)[:, None]


def _colours(sample: Sequence[np.ndarray], dtype: str, asked: str) -> Tensor:
    if dtype == "uint8":
        found = find_labels([normalise(torch.from_numpy(one)[None])[0] for one in sample])
        if found is not None:
            return torch.tensor(sorted(((found + 1) * 127.5).round().tolist()), dtype=torch.float32)
    raise ValueError(
        f"{asked}: these are no label maps, which have a few flat colours in 8 bits, or one channel with the numbers "
        "of classes: name a folder with such"
    )


def _shown(colours: Tensor) -> str:
    levels = colours.int().tolist()
    words = [str(one[0]) if len(one) == 1 else "#" + "".join(f"{level:02x}" for level in one) for one in levels]
    return " ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")
