"""Sample grids: fixed test images, their translations, and translations back or reconstructions, during training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from velogan.config import Config
from velogan.data.config import DataConfig
from velogan.data.sets.cache import Domain
from velogan.data.sets.loader import normalize_batch
from velogan.data.sets.sources import DomainSource, ImageSource, Sources, folder_of_pictures
from velogan.evaluation.images import open_for_evaluation
from velogan.files import write_text
from velogan.methods.base import InferenceGenerators
from velogan.observe.log import Log
from velogan.observe.samples import as_rgb, grid, write_grid
from velogan.types import Direction


class GridWriter:
    """Writes the grids `RUN/samples/<images>-a2b.png` and `-b2a.png`: input, translation, third column, truth if known.

    The third column shows the reconstruction of the input if the method has an autoencoder, else the translation back.
    A run that learns one direction has `-b2b.png` instead of `-b2a.png`: images of B through the generator to B, which
    should not change them.

    The generators of `views` translate the images, on the device and in the precision of `config`.
    """

    def __init__(self, config: Config, sources: Sources, views: InferenceGenerators, *, folder: Path, log: Log):
        self.folder, self.views = folder, views
        self.log = log
        self.options: Any = {"device": config.engine.device, "bf16": config.engine.precision == "bf16"}
        self.context_slices = config.data.context_slices
        data, count = config.data, config.train.samples
        multiple = config.spec.multiple
        from_b = "b2a" if "b2a" in views.generators else "b2b"
        self.examples = {
            "a2b": _load_examples(sources.a, sources.b, data, count, multiple),
            from_b: _load_examples(sources.b, sources.a, data, count, multiple),
        }
        third = ["reconstruction"] if views.reconstruction else ["back"] if len(views.generators) == 2 else []
        if "b2b" in self.examples:
            names, real, _ = self.examples["b2b"]
            self.examples["b2b"] = names, real, None
        index = {
            direction: {"columns": ["input", "translated", *third, *(["truth"] if truth is not None else [])]}
            | {"rows": names}
            for direction, (names, _, truth) in self.examples.items()
        }
        self.folder.mkdir(exist_ok=True)
        write_text(self.folder / "index.json", json.dumps(index))

    def write(self, images: int) -> None:
        """Translate the examples with the averaged generators and write both grids; `images`: number seen so far."""
        for direction, (_, real, truth) in self.examples.items():
            outputs = translate_for_grid(real, direction, self.views, **self.options)
            center = slice(self.context_slices, self.context_slices + 1) if self.context_slices else slice(None)
            columns = [as_rgb(column[:, center]) for column in (real, *outputs, truth) if column is not None]
            rows = torch.stack(columns, 1)
            write_grid(self.folder / f"{images:09d}-{direction}.png", rows)
            self.log.image(f"samples/{direction}", grid(rows), images=images)


@torch.no_grad()
def translate_for_grid(
    real: Tensor, direction: str, views: InferenceGenerators, *, device: str, bf16: bool
) -> tuple[Tensor, Tensor | None]:
    """Return translations of `real` `(N, C, H, W)`, and the third column of a grid.

    The third column: reconstructions of `real` if the method has an autoencoder; else translations back, or None.
    `direction`: a2b, b2a or b2b. Images are computed one by one, in bfloat16 if `bf16`, else in float32.
    """
    forward: Direction = "b2a" if direction == "b2a" else "a2b"
    reconstruct, back = views.reconstruction, views.generators.get("a2b" if forward == "b2a" else "b2a")
    fakes, thirds = [], []
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=bf16):
        for image in real.to(device).split(1):
            fake = views.generators[forward](image).float()
            fakes.append(fake.cpu())
            if reconstruct or back:
                thirds.append((reconstruct(image) if reconstruct else back(fake)).float().cpu())  # pyright: ignore
    return torch.cat(fakes), torch.cat(thirds) if thirds else None


def _load_examples(
    domain: DomainSource, other: DomainSource, data: DataConfig, count: int, multiple: int
) -> tuple[list[str], Tensor, Tensor | None]:
    """Return names, inputs and truths (or None) `(N, C, H, W)` of evenly spaced test images, else training images."""
    prepared = _fixed_subset(domain.test or domain.train, domain, data, count)
    truths = None
    if domain.truth is not None and domain.test is not None:
        names = tuple(name for name in prepared.names if (domain.truth / name).is_file())
        if names == prepared.names:
            truths = open_for_evaluation(folder_of_pictures(domain.truth, names, data), other, data)
            truths = truths if truths.names == names else None  # a truth cannot be read
    size = common_size([*prepared.shapes, *(truths.shapes if truths else [])], multiple)
    return list(prepared.names), center_crops(prepared, size), center_crops(truths, size) if truths else None


def _fixed_subset(source: ImageSource, domain: DomainSource, data: DataConfig, count: int) -> Domain:
    """Open `count` evenly spaced images, always the same; try more images if too many of them cannot be read."""
    num_tried = count

    def open_subset(names: Sequence[str], size: int) -> Domain:
        return open_for_evaluation(source.select_names(names[i] for i in evenly_spaced(len(names), size)), domain, data)

    while True:
        try:
            prepared = open_subset(source.names, num_tried)
        except ValueError:
            if num_tried >= len(source.names):
                raise
        else:
            if len(prepared) >= count or num_tried >= len(source.names):
                return prepared if len(prepared) <= count else open_subset(prepared.names, count)
        num_tried *= 4


def evenly_spaced(count: int, size: int) -> list[int]:
    """Return at most `size` evenly spaced indices below `count`."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(size, count))})


def common_size(shapes: Iterable[Sequence[int]], multiple: int) -> tuple[int, int]:
    """Return the largest (height, width) divisible by `multiple` that fits into all `shapes`, (height, width, ...)."""
    height, width = (max(min(sides) // multiple, 1) * multiple for sides in zip(*(shape[:2] for shape in shapes)))
    return height, width


def center_crops(domain: Domain, size: tuple[int, int]) -> Tensor:
    """Crop the centre of `size` (h, w) from each image: `(N, C, h, w)` in [-1, 1]."""
    crops = [center_crop(domain.image(index), size) for index in range(len(domain))]
    return normalize_batch(torch.from_numpy(np.stack(crops)), domain.format.range)


def center_crop(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Crop the centre of `size` (h, w) from `(H, W, C)`, limited to the image's own sides."""
    height, width = size
    top, left = max(image.shape[0] - height, 0) // 2, max(image.shape[1] - width, 0) // 2
    return image[top : top + height, left : left + width]
