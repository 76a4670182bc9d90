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
from velogan.data.sources import Folder, Side, Sources
from velogan.engine.checkpoint import write_text
from velogan.observe.log import Log
from velogan.observe.samples import grid, write_grid


class Sampler:
    """Writes `RUN/samples/<images>-a2b.png` and `-b2a.png`: input, translated, back, and truth where known."""

    def __init__(self, run: Path, config: Config, sources: Sources, nets: Mapping[str, nn.Module], *, log: Log):
        self.folder, self.nets, self.log = run / "samples", nets, log
        self.autocast = torch.bfloat16 if config.engine.precision == "bf16" else None
        self.device = torch.device(config.engine.device)
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
            columns = [real, *self._translate(real, there, back), *([truth] if truth is not None else [])]
            rows = torch.stack(columns, 1)
            write_grid(self.folder / f"{images:09d}-{direction}.png", rows)
            self.log.image(f"samples/{direction}", grid(rows), images=images)

    @torch.no_grad()
    def _translate(self, real: Tensor, there: str, back: str) -> tuple[Tensor, Tensor]:
        fakes, backs = [], []
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            for image in real.to(self.device).split(1):
                fake = self.nets[there](image).float()
                fakes.append(fake.cpu())
                backs.append(self.nets[back](fake).float().cpu())
        return torch.cat(fakes), torch.cat(backs)


def _pictures(side: Side, config: Config) -> tuple[list[str], Tensor, Tensor | None]:
    """Names, inputs and truths `(N, C, H, W)` of a fixed, evenly spread choice; from train where there is no test."""
    folder = side.test or side.train
    names = [folder.names[i] for i in _spread(len(folder.names), config.train.samples)]
    domain = open_domain(Folder(folder.directory, tuple(names)), config.data, test=True)
    truths = None
    if side.truth is not None and side.test is not None:
        kept = tuple(name for name in domain.names if (side.truth / name).is_file())
        if kept == domain.names:
            truths = open_domain(Folder(side.truth, kept), config.data, test=True)
    size = _common_size([domain, *([truths] if truths else [])], config.generator.multiple)
    return list(domain.names), _cut(domain, size), _cut(truths, size) if truths else None


def _spread(count: int, wanted: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(wanted, count))})


def _common_size(domains: list[Domain], multiple: int) -> tuple[int, int]:
    shapes = [shape for domain in domains for shape in domain.shapes]
    height, width = min(h for h, _, _ in shapes), min(w for _, w, _ in shapes)
    return max(height // multiple, 1) * multiple, max(width // multiple, 1) * multiple


def _cut(domain: Domain, size: tuple[int, int]) -> Tensor:
    """The middle of every picture, `(N, C, h, w)` in [-1, 1]."""
    height, width = size
    cuts = []
    for i in range(len(domain)):
        image = domain.image(i)
        top, left = max(image.shape[0] - height, 0) // 2, max(image.shape[1] - width, 0) // 2
        cuts.append(np.asarray(image[top : top + height, left : left + width]))
    return normalise(torch.from_numpy(np.stack(cuts)))
