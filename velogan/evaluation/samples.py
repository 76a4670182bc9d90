"""Sample grids: the same test pictures, translated and back or reconstructed, over training time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.sets.cache import Domain
from velogan.data.sets.loader import normalise
from velogan.data.sets.sources import ImageSource, Side, Sources, in_folder
from velogan.evaluation.pictures import open_side
from velogan.files import write_text
from velogan.methods.base import Views
from velogan.observe.log import Log
from velogan.observe.samples import as_rgb, grid, write_grid
from velogan.types import Direction


class Sampler:
    """Writes `RUN/samples/<images>-a2b.png` and `-b2a.png`: input, translated, back, and truth where known.

    A method with an autoencoder shows its reconstruction of the input in the third column, in place of the way back. A
    run that learns one way has `-b2b.png` in place of `-b2a.png`: pictures of B through the generator to B, which
    should leave them as they are.

    `count`: how many pictures of each domain. `multiple`: what their sides must be divisible by. `data` says how they
    are read; translations are computed on `device`, in bfloat16 if `bf16`.
    """

    def __init__(
        self,
        run: Path,
        sources: Sources,
        views: Views,
        *,
        data: DataConfig,
        device: str,
        bf16: bool,
        count: int,
        multiple: int,
        log: Log,
    ):
        self.folder, self.views, self.log = run / "samples", views, log
        self.how, self.beside = {"device": device, "bf16": bf16}, data.context_slices
        from_b, a, b = "b2a" if "b2a" in views.generators else "b2b", sources.a, sources.b
        self.pictures = {"a2b": _pictures(a, b, data, count, multiple), from_b: _pictures(b, a, data, count, multiple)}
        third = ["reconstruction"] if views.reconstruction else ["back"] if len(views.generators) == 2 else []
        if "b2b" in self.pictures:
            names, real, _ = self.pictures["b2b"]
            self.pictures["b2b"] = names, real, None
        index = {
            direction: {"columns": ["input", "translated", *third, *(["truth"] if truth is not None else [])]}
            | {"rows": names}
            for direction, (names, _, truth) in self.pictures.items()
        }
        self.folder.mkdir(exist_ok=True)
        write_text(self.folder / "index.json", json.dumps(index))

    def write(self, images: int) -> None:
        """Translate the pictures with the averaged generators and write both grids."""
        for direction, (_, real, truth) in self.pictures.items():
            columns = [real, *translated_and_third(real, direction, self.views, **self.how), truth]
            rows = torch.stack([as_rgb(_middle(column, self.beside)) for column in columns if column is not None], 1)
            write_grid(self.folder / f"{images:09d}-{direction}.png", rows)
            self.log.image(f"samples/{direction}", grid(rows), images=images)


def _middle(slices: Tensor, beside: int) -> Tensor:
    """Slices `(N, 1 + 2 * beside, H, W)` without their neighbours; any pictures where there are none beside."""
    return slices[:, beside : beside + 1] if beside else slices


@torch.no_grad()
def translated_and_third(
    real: Tensor, direction: str, views: Views, *, device: str, bf16: bool
) -> tuple[Tensor, Tensor | None]:
    """Translations of `real` `(N, C, H, W)`, and these translated back, or reconstructions of `real`, or None.

    `direction` is a2b, b2a or b2b. Pictures are computed one by one, in bfloat16 if `bf16`, else in float32.
    """
    there: Direction = "b2a" if direction == "b2a" else "a2b"
    reconstruct, back = views.reconstruction, views.generators.get("a2b" if there == "b2a" else "b2a")
    fakes, thirds = [], []
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=bf16):
        for image in real.to(device).split(1):
            fake = views.generators[there](image).float()
            fakes.append(fake.cpu())
            if reconstruct or back:
                thirds.append((reconstruct(image) if reconstruct else back(fake)).float().cpu())  # pyright: ignore
    return torch.cat(fakes), torch.cat(thirds) if thirds else None


def _pictures(
    side: Side, other: Side, data: DataConfig, count: int, multiple: int
) -> tuple[list[str], Tensor, Tensor | None]:
    """Names, inputs and truths `(N, C, H, W)` of a fixed, evenly spread choice; from train if there is no test."""
    domain = _choice(side.test or side.train, side, data, count)
    truths = None
    if side.truth is not None and side.test is not None:
        kept = tuple(name for name in domain.names if (side.truth / name).is_file())
        if kept == domain.names:
            truths = open_side(in_folder(side.truth, kept, data), other, data)
    size = common_size([*domain.shapes, *(truths.shapes if truths else [])], multiple)
    return list(domain.names), middles(domain, size), middles(truths, size) if truths else None


def _choice(folder: ImageSource, side: Side, data: DataConfig, wanted: int) -> Domain:
    """A fixed, evenly spread choice; from more pictures if too many of them cannot be read."""
    tried = wanted

    def open_some(names: Sequence[str], count: int) -> Domain:
        return open_side(folder.named(names[i] for i in spread(len(names), count)), side, data)

    while True:
        try:
            domain = open_some(folder.names, tried)
        except ValueError:
            if tried >= len(folder.names):
                raise
        else:
            if len(domain) >= wanted or tried >= len(folder.names):
                return domain if len(domain) <= wanted else open_some(domain.names, wanted)
        tried *= 4


def spread(count: int, wanted: int) -> list[int]:
    """At most `wanted` of the numbers below `count`, evenly spread."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(wanted, count))})


def common_size(shapes: Iterable[Sequence[int]], multiple: int) -> tuple[int, int]:
    """The largest (height, width), divisible by `multiple`, that fits into all `shapes`, (height, width, ...) each."""
    height, width = (max(min(sides) // multiple, 1) * multiple for sides in zip(*(shape[:2] for shape in shapes)))
    return height, width


def middles(domain: Domain, size: tuple[int, int]) -> Tensor:
    """The centre of every picture, of `size` (h, w): `(N, C, h, w)` in [-1, 1]."""
    cuts = [centre(domain.image(number), size) for number in range(len(domain))]
    return normalise(torch.from_numpy(np.stack(cuts)), domain.format.range)


def centre(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The centre of `(H, W, C)`, of `size` (h, w), or of the picture's own sides where these are smaller."""
    height, width = size
    top, left = max(image.shape[0] - height, 0) // 2, max(image.shape[1] - width, 0) // 2
    return image[top : top + height, left : left + width]
