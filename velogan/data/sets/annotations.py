"""Annotations of training images, in picture files of the same names: masks, and label maps."""

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
from velogan.files import join_first, pluralize
from velogan.metrics.labels import MIN_COLOUR_DISTANCE, find_label_colours, nearest_labels
from velogan.types import Progress

Task = Callable[[str], Progress]
"""Called with a task's name; returns a function that takes the task's progress as (done, total)."""

VOID = 255
"""The value of pixels without a class in maps of numbers, as in Cityscapes and VOC."""

MAX_CLASSES = 255
DEFAULT_CLASSES = 19
"""The number of classes that is assumed before label maps are read, as in Cityscapes."""

_MAX_SAMPLED_MAPS = 200
"""Maximum number of label maps of a domain that are searched for colours."""

_MAX_COMPARED = 8
"""Maximum number of annotations that are compared with their pictures in aspect ratio, before resizing."""

_UNANNOTATED = {"masks": "may change everywhere", "labels": "may change their classes"}
"""The effect of a missing annotation, by kind."""


@dataclass(frozen=True)
class Masks(Annotation):
    """Masks: white, or black if `inverted`, marks what may change. An image without a mask may change everywhere.

    A batch holds `(B, 1, h, w)`: 1 for what may change, 0 elsewhere.
    """

    ABSENT = 1

    inverted: bool = False

    def convert_crop(self, crop: np.ndarray) -> np.ndarray:
        return (crop > np.iinfo(crop.dtype).max // 2) != self.inverted

    def decode(self, crops: Tensor) -> Tensor:
        return crops[:, None, :, :, 0].float()


@dataclass(frozen=True)
class Labels(Annotation):
    """Label maps. `colours`: `(K, C)`, the colour of each class in 0..255, or its number if C is 1.

    A batch holds `(B, h, w)`: the class, 0 to K - 1, or -1 for none.
    """

    ABSENT = -1

    colours: Tensor

    def to(self, device: torch.device) -> Self:
        return replace(self, colours=self.colours.to(device))

    def decode(self, crops: Tensor) -> Tensor:
        return torch.where(crops[..., 0] < 0, -1, _find_classes(crops, self.colours))


def _find_classes(maps: Tensor, colours: Tensor) -> Tensor:
    """Return the class `(B, h, w)` of each pixel of `maps` `(B, h, w, C)`, 0..255: the nearest of `colours` `(K, C)`.

    The class is -1 if no colour is near. If C is 1, `colours` are class numbers, and only an equal number is near.
    """
    nearest, distance = nearest_labels((maps / 127.5 - 1).movedim(-1, 1), colours / 127.5 - 1)
    return torch.where(distance <= (MIN_COLOUR_DISTANCE if colours.shape[1] > 1 else 0.5), nearest, -1)


def example_batch(config: DataConfig, shape: tuple[int, int, int], device: torch.device) -> dict[str, Tensor]:
    """Return the configured annotations for a batch of `shape` (B, h, w): masks of 1, label maps of class 0."""
    count, height, width = shape
    masks = {name: torch.ones(count, 1, height, width, device=device) for name in config.annotations}
    labels = {name: torch.zeros(shape, dtype=torch.long, device=device) for name in masks if name.startswith("label_")}
    return masks | labels


def example_colours(config: DataConfig, classes: int = DEFAULT_CLASSES) -> Tensor | None:
    """Return placeholders `(classes, 3)` for the colours of classes if `config` names label maps; else None."""
    return torch.zeros(classes, 3) if config.labels_a or config.labels_b else None


@dataclass(frozen=True)
class AnnotationFiles:
    """The annotations of one domain's pictures.

    kind: "masks" or "labels"
    option: the field of the configuration and its value, for messages
    names: the names of the files in `folder`, by their stems
    """

    kind: str
    option: str
    folder: Path
    names: Mapping[str, str]

    def select_annotated(self, pictures: Sequence[str]) -> list[str]:
        """List the `pictures` that have an annotation. Raises ValueError if none has one."""
        if annotated := [name for name in pictures if stem(name) in self.names]:
            return annotated
        raise ValueError(
            f"{self.option} holds no {self.kind} named like a picture, for example {pictures[0]}: name another folder"
        )


def find_annotations(config: DataConfig, sources: Iterable[DomainSource]) -> dict[str, AnnotationFiles]:
    """Find the masks and label maps in the folders that `config` names; return them by field, such as `masks_a`.

    Raises ValueError if a path is not a folder, or contains no file named like a training picture.
    """
    by_field: dict[str, AnnotationFiles] = {}
    for source in sources:
        for kind in ("masks", "labels"):
            field = f"{kind}_{source.letter.lower()}"
            if (path := getattr(config, field)) is None:
                continue
            option, folder = f"data.{field}={path}", Path(path).expanduser()
            if not isinstance(source.train, Folder):
                raise ValueError(f"{option} is for folders of pictures, not for {source.train.location}: leave it out")
            if not folder.is_dir():
                raise ValueError(f"{option} is not a folder: name one that holds {kind} with the names of the pictures")
            by_field[field] = AnnotationFiles(kind, option, folder, list_by_stem(folder))
            by_field[field].select_annotated(source.train.names)
    return by_field


def open_annotations(
    config: DataConfig,
    files: Mapping[str, AnnotationFiles],
    domains: Iterable[tuple[DomainSource, Domain]],
    *,
    task: Task,
    print_line: Callable[[str], None],
) -> dict[str, Annotation]:
    """Open annotations by name in a batch, such as `mask_a`. Raises ValueError if they do not fit the images."""
    opened: dict[str, Annotation] = {}
    maps: dict[str, tuple[Domain, tuple[int, ...]]] = {}
    for source, domain in domains:
        letter = source.letter.lower()
        if (masks := files.get(f"masks_{letter}")) is not None:
            prepared, indices = _prepare(config, source, domain, masks, task, print_line)
            _check_has_white(prepared, masks.option)
            keeps_white = config.masks_keep == "inside"
            count, colour = pluralize(len(prepared), "mask"), "white" if keeps_white else "black"
            print_line(f"domain {source.letter}: {count}: what is {colour} there stays as it is")
            opened[f"mask_{letter}"] = Masks(prepared, indices, inverted=keeps_white)
        if (labels := files.get(f"labels_{letter}")) is not None:
            maps[letter] = _prepare(config, source, domain, labels, task, print_line)
    if maps:
        option = " and ".join(files[f"labels_{letter}"].option for letter in maps)
        colours = _find_class_colours({letter: prepared for letter, (prepared, _) in maps.items()}, option, print_line)
        opened |= {f"label_{letter}": Labels(*labels, colours=colours) for letter, labels in maps.items()}
    return opened


def _prepare(
    config: DataConfig,
    source: DomainSource,
    domain: Domain,
    files: AnnotationFiles,
    task: Task,
    print_line: Callable[[str], None],
) -> tuple[Domain, tuple[int, ...]]:
    """Prepare the annotations of `domain`; return them, and for each image the index of its annotation, or -1.

    Prints how many pictures have none and how many files have no picture. Raises ValueError if one cannot be read or
    has another shape than its picture.
    """
    option, annotated = files.option, files.select_annotated(domain.names)
    if missing := [name for name in domain.names if stem(name) not in files.names]:
        pictures = f"{len(missing)} of {pluralize(len(domain), 'picture')}"
        print_line(f"{option} has none for {pictures}, which {_UNANNOTATED[files.kind]}, for example {missing[0]}")
    known = (*source.train.names, *(source.validation.names if source.validation else ()))
    if unmatched := describe_unmatched_files(files.folder, files.names, known):
        print_line(f"domain {source.letter}: {unmatched}")
    folder = Folder if files.kind == "masks" else LabelMaps
    images = folder(files.folder, tuple(files.names[stem(name)] for name in annotated), filled=False)
    _check_aspect_ratios(option, cast(Folder, source.train).select_names(annotated), images)
    progress, channels = task(f"preparing {files.kind} {source.letter}"), 1 if files.kind == "masks" else None
    opened = open_domain(images, config, test=False, channels=channels, progress=progress)
    if opened.skipped:
        raise ValueError(f"{option}: {opened.skipped_line}; replace them")
    by_name = {name: index for index, name in enumerate(annotated)}
    for index, name in enumerate(domain.names):
        if name in by_name:
            (height, width, _), (other_height, other_width, _) = domain.shapes[index], opened.shapes[by_name[name]]
            if (height, width) != (other_height, other_width):
                raise ValueError(
                    f"{option}: the file for {name} has {other_width}x{other_height} pixels, but the picture has "
                    f"{width}x{height}: give both one size"
                )
    return opened, tuple(by_name.get(name, -1) for name in domain.names)


def _check_aspect_ratios(option: str, pictures: Folder, annotations: Folder) -> None:
    """Raise ValueError if the aspect ratios of a picture and its annotation differ; `_MAX_COMPARED` pairs are read."""
    for index in range(0, len(annotations.names), -(-len(annotations.names) // _MAX_COMPARED)):
        name, other = pictures.names[index], annotations.names[index]
        try:
            height, width, _ = pictures.read(name).pixels.shape
            other_height, other_width, _ = annotations.read(other).pixels.shape
        except (OSError, ValueError):
            continue
        if abs(height * other_width - width * other_height) > max(height, width, other_height, other_width):
            raise ValueError(  # a side differs by more than rounding to a pixel
                f"{option}: {other} has {other_width}x{other_height} pixels, but {name} has {width}x{height}, so they "
                "do not fit: give both one aspect ratio"
            )


def _check_has_white(masks: Domain, option: str) -> None:
    """Raise ValueError if no mask has a white pixel, or if the masks are not of 8 or 16 bits."""
    if masks.format.dtype == "float32":
        raise ValueError(f"{option}: masks hold floating-point or signed pixels: save them in 8 or 16 bits")
    brightest = max(int(masks.image(index).max()) for index in range(len(masks)))
    white = np.iinfo(masks.format.dtype).max
    if brightest <= white // 2:
        raise ValueError(
            f"{option}: the brightest pixel of all masks is {brightest}, and white is {white}: save them with 0 and "
            f"{white}"
        )


def _find_class_colours(maps: Mapping[str, Domain], option: str, print_line: Callable[[str], None]) -> Tensor:
    """Return the colours or numbers of the classes in all label maps, see `Labels`, and print them."""
    formats = {(domain.format.channels, domain.format.dtype) for domain in maps.values()}
    if len(formats) > 1 or any(dtype == "float32" for _, dtype in formats):
        raise ValueError(f"{option}: give label maps of one kind, of 8 bits: all of numbers (grey), or all of colours")
    samples = {
        letter: [domain.image(index) for index in range(0, len(domain), -(-len(domain) // _MAX_SAMPLED_MAPS))]
        for letter, domain in maps.items()
    }
    ((channels, dtype),) = formats
    sample = [image for images in samples.values() for image in images]
    colours = _find_numbers(maps.values(), option) if channels == 1 else _find_colours(sample, dtype, option)
    classes = {
        letter: torch.cat([_find_classes(torch.from_numpy(image)[None].float(), colours).flatten() for image in images])
        for letter, images in samples.items()
    }
    void_fraction = (torch.cat([*classes.values()]) < 0).float().mean().item()
    names = [
        str(row[0]) if len(row) == 1 else "#" + "".join(f"{level:02x}" for level in row)
        for row in colours.int().tolist()
    ]
    shown = join_first(names, 8, separator=" ")
    kind = "numbers" if channels == 1 else "colours"
    print_line(f"labels: {len(colours)} classes, {kind} {shown}; {void_fraction:.1%} of pixels have none")
    for letter, present in classes.items():
        if absent := " ".join(names[index] for index in sorted({*range(len(names))} - {*present.unique().tolist()})):
            print_line(
                f"labels {letter.upper()}: no sampled pixel is of class {absent}: do A and B have the same classes?"
            )
    return colours


def _find_numbers(maps: Iterable[Domain], option: str) -> Tensor:
    """Return the numbers of the classes in maps of one channel, `(K, 1)`."""
    numbers = sorted(
        {int(value) for domain in maps for index in range(len(domain)) for value in np.unique(domain.image(index))}
    )
    if numbers != [0, VOID]:  # 0 and 255 alone are two classes, black and white
        numbers = [number for number in numbers if number != VOID]
    if len(numbers) < 2 or numbers[-1] > VOID or len(numbers) > MAX_CLASSES:
        span = f"from {numbers[0]} to {numbers[-1]}" if numbers else "below 255"
        raise ValueError(
            f"{option}: {len(numbers)} numbers {span} are not classes: give maps of 2 to {MAX_CLASSES} numbers below "
            f"{VOID}, which stands for no class"
        )
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def _find_colours(sample: Sequence[np.ndarray], dtype: str, option: str) -> Tensor:
    """Find the colours of the classes in a sample of label maps, `(K, C)`. Raises ValueError if there are none."""
    if dtype == "uint8":
        colours = find_label_colours([normalize_batch(torch.from_numpy(image)[None])[0] for image in sample])
        if colours is not None:
            return torch.tensor(sorted(((colours + 1) * 127.5).round().tolist()), dtype=torch.float32)
    raise ValueError(
        f"{option}: these are not label maps, which have a few flat colours in 8 bits, or one channel with the numbers "
        "of classes: name a folder with such maps"
    )
