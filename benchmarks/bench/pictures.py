"""Picture files of noise for benchmarks, prepared and loaded as in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from velogan.config import Config
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.sets.cache import open_domain
from velogan.data.sets.loader import PairLoader
from velogan.data.sets.pair import TrainingData
from velogan.data.sets.sources import find_sources
from velogan.types import Batch

COUNT = 32
"""Pictures of each domain."""


def write_noise(folder: Path, *, side: int) -> tuple[str, str]:
    """Two folders of `side` x `side` 8-bit RGB noise below `folder`; returns their paths."""
    random = np.random.default_rng(0)
    paths = folder / "a", folder / "b"
    for path in paths:
        path.mkdir(parents=True)
        for index in range(COUNT):
            save_picture(path / f"{index}.png", Picture(random.integers(0, 256, (side, side, 3), np.uint8)))
    return str(paths[0]), str(paths[1])


def noise(folder: Path, config: Config) -> TrainingData:
    """Return the prepared pictures of both domains for `config`, under `folder`; created at first use."""
    side = config.data.load_side
    paths = folder / f"{side}"
    if not paths.exists():
        write_noise(paths, side=side)
    data = config.data.model_copy(
        update={"path": (str(paths / "a"), str(paths / "b")), "cache_dir": str(folder / "cache"), "validation": 0}
    )
    sources = find_sources(data)
    a, b = (open_domain(side.train, data, test=False) for side in (sources.a, sources.b))
    return TrainingData(sources, a, b)


@dataclass(frozen=True)
class Feed:
    """A loader, and its endless batches, which its thread reads ahead."""

    loader: PairLoader
    batches: Iterator[Batch]

    def ready(self) -> Batch:
        """The loader's first data, on the device."""
        gathered = self.loader.gather(self.loader.plan(0))
        return {name: part.to(self.loader.device) for name, part in gathered.items()}


@contextmanager
def feed(data: TrainingData, config: Config, *, device: torch.device) -> Iterator[Feed]:
    """Batches of `data` for steps on `device`."""
    loader = PairLoader(data.a, data.b, config.data, seed=0, device=device)
    with closing(loader.batches(0)) as batches:
        yield Feed(loader, batches)
