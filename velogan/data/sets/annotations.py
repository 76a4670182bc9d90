"""Annotations: image files aligned with the training images, under their names: masks, and label maps with classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.loader import Annotation, normalize_batch
from velogan.data.sets.sources import DomainSource, Folder, LabelMaps, describe_unmatched_files, list_by_stem, stem
from velogan.files import pluralize
from velogan.metrics.labels import MIN_COLOUR_DISTANCE, find_label_colours, nearest_labels
from velogan.types import Progress

Task = Callable[[str], Progress]
"""Called with a task's name; returns a function that takes the task's progress as (done, total)."""

Say = Callable[[str], None]

NONE = 255
"""In maps of numbers, what stands for no class, as in Cityscapes' and VOC's."""

MAX_CLASSES = 255
DEFAULT_CLASSES = 19
"""The classes of label maps that nobody has read: those of Cityscapes."""

_SAMPLED_MAPS = 200
"""Label maps in which colours are looked for."""

_COMPARED = 8
"""Files whose sizes are held against those of their pictures before both are resized."""

_WITHOUT = {"masks": "may change everywhere", "labels": "may change their classes"}
"""What holds for a picture that has none."""


@dataclass(frozen=True)
class Masks(Annotation):
    """Masks: white is what may change, or where `inverted`, black. A picture without one may change everywhere.

    A batch holds `(B, 1, h, w)`: 1 on what may change, 0 elsewhere.
    """

    ABSENT = 1

    inverted: bool = False

    def values(self, crop: np.ndarray) -> np.ndarray:
        return (crop > np.iinfo(crop.dtype).max // 2) != self.inverted

    def finish(self, crops: Tensor) -> Tensor:
        return crops[:, None, :, :, 0].float()


@dataclass(frozen=True)
class Labels(Annotation):
    """Label maps, whose classes are `colours`, `(K, C)` in levels of 8 bits: colours, or numbers where C is 1.

    A batch holds the classes `(B, h, w)`, 0 to K - 1, and -1 where there is none.
    """

    ABSENT = -1

    colours: Tensor

    def to(self, device: torch.device) -> Self:
        return replace(self, colours=self.colours.to(device))

    def finish(self, crops: Tensor) -> Tensor:
        return torch.where(crops[..., 0] < 0, -1, classes_of(crops, self.colours))


def classes_of(maps: Tensor, colours: Tensor) -> Tensor:
    """Find the class `(B, h, w)` of each pixel of `(B, h, w, C)` levels of 8 bits: the nearest of `colours` `(K, C)`.

    It is -1 where none is near. Where C is 1, they are numbers of classes, and only the same number counts.
    """
    nearest, distance = nearest_labels((maps / 127.5 - 1).movedim(-1, 1), colours / 127.5 - 1)
    return torch.where(distance <= (MIN_COLOUR_DISTANCE if colours.shape[1] > 1 else 0.5), nearest, -1)


def example_batch(config: DataConfig, shape: tuple[int, int, int], device: torch.device) -> dict[str, Tensor]:
    """Make annotations of a batch of `shape` (B, h, w) that no file says: all may change, all is of one class."""
    count, height, width = shape
    masks = {name: torch.ones(count, 1, height, width, device=device) for name in config.annotations}
    labels = {name: torch.zeros(shape, dtype=torch.long, device=device) for name in masks if name.startswith("label_")}
    return masks | labels


def example_colours(config: DataConfig, classes: int = DEFAULT_CLASSES) -> Tensor | None:
    """Return the colours of as many `classes`, all alike, if `config` names label maps; else None."""
    return torch.zeros(classes, 3) if config.labels_a or config.labels_b else None


@dataclass(frozen=True)
class Files:
    """The masks or labels (`what`) of a folder: their names by their stems. `option`: the field, and its value."""

    what: str
    option: str
    folder: Path
    names: Mapping[str, str]

    def annotated(self, pictures: Sequence[str]) -> list[str]:
        """Return those of `pictures` that have one. Raises ValueError if none has."""
        if found := [name for name in pictures if stem(name) in self.names]:
            return found
        raise ValueError(
            f"{self.option} holds no {self.what} with the name of a picture, as of {pictures[0]}: name another folder"
        )


def find_annotations(config: DataConfig, sides: Iterable[DomainSource]) -> dict[str, Files]:
    """Find the masks and label maps whose folders `config` names, by its fields.

    Raises ValueError if one is no such folder, or if no file in it has the name of a training picture.
    """
    found: dict[str, Files] = {}
    for side in sides:
        for what in ("masks", "labels"):
            field = f"{what}_{side.letter.lower()}"
            if (given := getattr(config, field)) is None:
                continue
            option, folder = f"data.{field}={given}", Path(given).expanduser()
            if not isinstance(side.train, Folder):
                raise ValueError(f"{option} is for folders of pictures, not for {side.train.location}: leave it out")
            if not folder.is_dir():
                raise ValueError(f"{option} is no folder: name one that holds {what} under the names of the pictures")
            found[field] = Files(what, option, folder, list_by_stem(folder))
            found[field].annotated(side.train.names)
    return found


def open_annotations(
    config: DataConfig,
    files: Mapping[str, Files],
    domains: Sequence[tuple[DomainSource, Domain]],
    *,
    task: Task,
    print_line: Say,
) -> dict[str, Annotation]:
    """Open what `find_annotations` found, by the names in a batch. Raises ValueError if they do not fit the images."""
    opened: dict[str, Annotation] = {}
    maps: dict[str, tuple[Domain, tuple[int, ...]]] = {}
    for side, domain in domains:
        letter = side.letter.lower()
        if (found := files.get(f"masks_{letter}")) is not None:
            masks, places = _open(config, side, domain, found, Folder, channels=1, task=task, print_line=print_line)
            _require_white(masks, found.option)
            inside = config.masks_keep == "inside"
            colour = "white" if inside else "black"
            print_line(f"domain {side.letter}: {pluralize(len(masks), 'mask')}: what is {colour} there stays as it is")
            opened[f"mask_{letter}"] = Masks(masks, places, inverted=inside)
        if (found := files.get(f"labels_{letter}")) is not None:
            maps[letter] = _open(config, side, domain, found, LabelMaps, task=task, print_line=print_line)
    if maps:
        colours = _classes(config, {letter: labels for letter, (labels, _) in maps.items()}, print_line=print_line)
        opened |= {f"label_{letter}": Labels(*labels, colours=colours) for letter, labels in maps.items()}
    return opened


def _open(
    config: DataConfig,
    side: DomainSource,
    domain: Domain,
    files: Files,
    kind: type[Folder],
    *,
    channels: int | None = None,
    task: Task,
    print_line: Say,
) -> tuple[Domain, tuple[int, ...]]:
    """Prepare the annotations of `domain`, and return them with the place of each picture's among them; -1 for none.

    Reports how many pictures have none and how many files have no picture. Raises ValueError if one cannot be read or
    does not lie over its picture.
    """
    option, annotated = files.option, files.annotated(domain.names)
    if without := [name for name in domain.names if stem(name) not in files.names]:
        pictures = pluralize(len(domain), "picture")
        which = f"{_WITHOUT[files.what]}, for example {without[0]}"
        print_line(f"{option} has none for {len(without)} of {pictures}, which {which}")
    known = (*side.train.names, *(side.validation.names if side.validation else ()))
    if alone := describe_unmatched_files(files.folder, files.names, known):
        print_line(f"domain {side.letter}: {alone}")
    source = kind(files.folder, tuple(files.names[stem(name)] for name in annotated), filled=False)
    _compare_shapes(option, cast(Folder, side.train).select_names(annotated), source)
    progress = task(f"preparing {files.what} {side.letter}")
    opened = open_domain(source, config, test=False, channels=channels, progress=progress)
    if opened.skipped:
        raise ValueError(f"{option}: {opened.skipped_line}; mend them")
    numbers = {name: number for number, name in enumerate(annotated)}
    places = tuple(numbers.get(name, -1) for name in domain.names)
    for name, (height, width, _), place in zip(domain.names, domain.shapes, places):
        if place >= 0 and (height, width) != opened.shapes[place][:2]:
            high, wide, _ = opened.shapes[place]
            raise ValueError(
                f"{option}: that of {name} is {wide}x{high} pixels where its picture is {width}x{height}: give both "
                "one size"
            )
    return opened, places


def _compare_shapes(option: str, pictures: Folder, annotations: Folder) -> None:
    """Raise ValueError if an annotation is of another shape than its picture, so that resizing would shift it.

    Compares some of them. A smaller or larger one of the same shape fits; files that cannot be read are reported later.
    """
    for number in range(0, len(annotations.names), -(-len(annotations.names) // _COMPARED)):
        name, other = pictures.names[number], annotations.names[number]
        try:
            height, width, _ = pictures.read(name).pixels.shape
            high, wide, _ = annotations.read(other).pixels.shape
        except (OSError, ValueError):
            continue
        if abs(height * wide - width * high) > max(height, width, high, wide):  # more than rounding to a pixel
            raise ValueError(
                f"{option}: {other} has {wide}x{high} pixels where {name} has {width}x{height}, so it does not lie "
                "over it: give both one shape"
            )


def _require_white(masks: Domain, asked: str) -> None:
    """Raise ValueError if no mask holds anything that counts as white."""
    if masks.format.dtype == "float32":
        raise ValueError(f"{asked}: masks hold floating-point or signed pixels: save them in 8 or 16 bits")
    brightest, white = max(int(masks.image(n).max()) for n in range(len(masks))), np.iinfo(masks.format.dtype).max
    if brightest <= white // 2:
        raise ValueError(
            f"{asked}: the brightest pixel of all masks is {brightest}, and white is {white}: save them with 0 and "
            f"{white}"
        )


def _classes(config: DataConfig, maps: dict[str, Domain], *, print_line: Say) -> Tensor:
    """Find the classes of all label maps, as `Labels` has them, and report them."""
    option = " and ".join(f"data.labels_{letter}={getattr(config, f'labels_{letter}')}" for letter in maps)
    kinds = {(domain.format.channels, domain.format.dtype) for domain in maps.values()}
    if len(kinds) > 1 or any(dtype == "float32" for _, dtype in kinds):
        raise ValueError(f"{option}: give label maps of one kind, of 8 bits: all of numbers (grey), or all of colours")
    sampled = [
        domain.image(number)
        for domain in maps.values()
        for number in range(0, len(domain), -(-len(domain) // _SAMPLED_MAPS))
    ]
    ((channels, dtype),) = kinds
    colours = _numbers(maps.values(), option) if channels == 1 else _colours(sampled, dtype, option)
    none = np.mean(
        [(classes_of(torch.from_numpy(image)[None].float(), colours) < 0).float().mean() for image in sampled]
    )
    shown = f"{'numbers' if channels == 1 else 'colours'} {_shown(colours)}"
    print_line(f"labels: {len(colours)} classes, {shown}; {none:.1%} of pixels have none")
    return colours


def _numbers(maps: Iterable[Domain], option: str) -> Tensor:
    """Find the numbers of classes, `(K, 1)`, in maps of one channel."""
    found = sorted({int(v) for maps_of in maps for n in range(len(maps_of)) for v in np.unique(maps_of.image(n))})
    if found != [0, NONE]:  # which is a picture in black and white
        found = [value for value in found if value != NONE]
    if len(found) < 2 or found[-1] > NONE or len(found) > MAX_CLASSES:
        raise ValueError(
            f"{option}: {len(found)} numbers from {found[0] if found else '-'} to {found[-1] if found else '-'} are no "
            f"classes: give maps of 2 to {MAX_CLASSES} numbers below {NONE}, which stands for no class"
        )
    return torch.tensor(found, dtype=torch.float32)[:, None]


def _colours(sample: Sequence[np.ndarray], dtype: str, option: str) -> Tensor:
    """Find the colours of classes, `(K, C)`, in some maps."""
    if dtype == "uint8":
        found = find_label_colours([normalize_batch(torch.from_numpy(image)[None])[0] for image in sample])
        if found is not None:
            return torch.tensor(sorted(((found + 1) * 127.5).round().tolist()), dtype=torch.float32)
    raise ValueError(
        f"{option}: these are no label maps, which have a few flat colours in 8 bits, or one channel with the numbers "
        "of classes: name a folder with such"
    )


def _shown(colours: Tensor) -> str:
    levels = colours.int().tolist()
    words = [str(row[0]) if len(row) == 1 else "#" + "".join(f"{level:02x}" for level in row) for row in levels]
    return " ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")
