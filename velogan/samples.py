"""Sample grids: the same test pictures, translated and back, over training time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.cache import Domain, open_domain
from velogan.data.loader import normalise
from velogan.data.sources import Folder, Letter, Side, Sources
from velogan.engine.checkpoint import write_text
from velogan.observe.log import Log
from velogan.observe.samples import as_rgb, grid, write_grid


class Sampler:
    """Writes `RUN/samples/<images>-a2b.png` and `-b2a.png`: input, translated, back, and truth where known."""

    def __init__(self, run: Path, config: Config, sources: Sources, nets: Mapping[str, nn.Module], *, log: Log):
        self.folder, self.nets, self.config, self.log = run / "samples", nets, config, log
        self.pictures = {
            direction: _pictures(side, config) for direction, side in (("a2b", sources.a), ("b2a", sources.b))
        }
        index = {
            direction: {"columns": ["input", "translated", "back", *(["truth"] if truth is not None else [])]}
            | {"rows": names}
            for direction, (names, _, truth) in self.pictures.items()
        }
        self.folder.mkdir(exist_ok=True)
        write_text(self.folder / "index.json", json.dumps(index))

    def write(self, images: int) -> None:
        """Translates the pictures with the averaged generators and writes both grids."""
        for direction, (there, back) in {"a2b": ("G_A", "G_B"), "b2a": ("G_B", "G_A")}.items():
            _, real, truth = self.pictures[direction]
            columns = [
                real,
                *there_and_back(real, self.nets[there], self.nets[back], config=self.config),
                *([truth] if truth is not None else []),
            ]
            rows = torch.stack([as_rgb(column) for column in columns], 1)
            write_grid(self.folder / f"{images:09d}-{direction}.png", rows)
            self.log.image(f"samples/{direction}", grid(rows), images=images)


@torch.no_grad()
def there_and_back(real: Tensor, there: nn.Module, back: nn.Module, *, config: Config) -> tuple[Tensor, Tensor]:
    """Translations of `real` `(N, C, H, W)` and what comes back of them, one by one, as the engine computes."""
    half, device = config.engine.precision == "bf16", torch.device(config.engine.device)
    fakes, backs = [], []
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
        for image in real.to(device).split(1):
            fake = there(image).float()
            fakes.append(fake.cpu())
            backs.append(back(fake).float().cpu())
    return torch.cat(fakes), torch.cat(backs)


def _pictures(side: Side, config: Config) -> tuple[list[str], Tensor, Tensor | None]:
    """Names, inputs and truths `(N, C, H, W)` of a fixed, evenly spread choice; from train where there is no test."""
    domain = _choice(side.test or side.train, side.letter, config)
    truths = None
    if side.truth is not None and side.test is not None:
        kept = tuple(name for name in domain.names if (side.truth / name).is_file())
        if kept == domain.names:
            other: Letter = "B" if side.letter == "A" else "A"
            truths = open_domain(Folder(side.truth, kept), config.data, test=True, **config.reading(other))
    size = _common_size([domain, *([truths] if truths else [])], config.generator.multiple)
    return list(domain.names), middles(domain, size), middles(truths, size) if truths else None


def _choice(folder: Folder, letter: Letter, config: Config) -> Domain:
    """A fixed, evenly spread choice, out of more pictures where too many of them cannot be read."""
    wanted = tried = config.train.samples

    def open_some(names: tuple[str, ...], count: int) -> Domain:
        some = Folder(folder.directory, tuple(names[i] for i in _spread(len(names), count)))
        return open_domain(some, config.data, test=True, **config.reading(letter))

    while True:
        try:
            domain = open_some(folder.names, tried)
        except ValueError:
            if config.data.strict or tried >= len(folder.names):
                raise
        else:
            if len(domain) >= wanted or tried >= len(folder.names):
                return domain if len(domain) <= wanted else open_some(domain.names, wanted)
        tried *= 4


def _spread(count: int, wanted: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(wanted, count))})


def _common_size(domains: list[Domain], multiple: int) -> tuple[int, int]:
    shapes = [shape for domain in domains for shape in domain.shapes]
    height, width = min(h for h, _, _ in shapes), min(w for _, w, _ in shapes)
    return max(height // multiple, 1) * multiple, max(width // multiple, 1) * multiple


def middles(domain: Domain, size: tuple[int, int]) -> Tensor:
    """The middle of every picture, `size` (h, w) of it: `(N, C, h, w)` in [-1, 1]."""
    height, width = size
    cuts = []
    for i in range(len(domain)):
        image = domain.image(i)
        top, left = max(image.shape[0] - height, 0) // 2, max(image.shape[1] - width, 0) // 2
        cuts.append(np.asarray(image[top : top + height, left : left + width]))
    return normalise(torch.from_numpy(np.stack(cuts)), domain.format.range)
