"""What some pairs among unpaired pictures are worth (`data.pairs`): the distance of translations to the truth.

`DATA` holds trainA, trainB, testA and testB, where equal names are pairs. Small networks are trained on all of the
training pictures, of which so many are pairs:

    python -m benchmarks.pairs DATA OUT --pairs 0 10 50 all --images 400
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import velogan
from velogan.data.config import DataConfig
from velogan.data.sets.cache import open_domain
from velogan.data.sets.loader import normalise
from velogan.data.sets.sources import Folder, find_sources
from velogan.translate.model import load_translator
from velogan.types import Direction

SIDE = 64


def link_pairs(data: Path, target: Path, count: int | None) -> None:
    """Links to the first `count` pairs, evenly spread over the names; None: to all."""
    names = sorted(
        {one.name for one in (data / "trainA").iterdir()} & {one.name for one in (data / "trainB").iterdir()}
    )
    chosen = names if count is None else names[:: len(names) // count][:count]
    for letter in "AB":
        (target / letter).mkdir(parents=True, exist_ok=True)
        for name in chosen:
            link = target / letter / name
            link.unlink(missing_ok=True)
            link.symlink_to((data / f"train{letter}" / name).resolve())


def errors(run: Path, data: DataConfig) -> list[float]:
    """Mean absolute difference of the translated test pictures from the truth, in [0, 1], by direction."""
    sources = find_sources(data)
    assert isinstance(sources.a.test, Folder)
    assert isinstance(sources.b.test, Folder)
    domains = [open_domain(one, data, test=True) for one in (sources.a.test, sources.b.test)]
    a, b = (
        torch.cat([normalise(torch.from_numpy(one.image(number))[None]) for number in range(len(one))])
        for one in domains
    )
    ways: tuple[tuple[Direction, torch.Tensor, torch.Tensor], ...] = (("a2b", a, b), ("b2a", b, a))
    return [
        (load_translator(run, direction=way, weights="raw")(given) - truth).abs().mean().item() / 2
        for way, given, truth in ways
    ]


def main() -> None:
    """Trains with each number of pairs, and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", nargs="+", default=["0", "10", "50", "all"])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--images", type=int, default=400)
    asked = parser.parse_args()
    for count in asked.pairs:
        run, pairs = asked.out / f"{count}-every-{asked.every}", None
        if count != "0":
            pairs = str(asked.out / f"pairs-{count}")
            link_pairs(asked.data, Path(pairs), None if count == "all" else int(count))
        config = (
            velogan.preset("cyclegan")
            .sized("xs")
            .change(
                data={"path": (str(asked.data),), "crop_size": SIDE, "validation": 0}
                | {"pairs": pairs, "pairs_every": asked.every},
                train={"length": f"{asked.images} images", "samples": 0, "tensorboard": False},
                schedule={"kind": "constant"},
                engine={"threads": 1},
            )
        )
        velogan.train(config, run)
        there, back = errors(run, config.data)
        print(f"{asked.data.name}, {count} pairs: a2b {there:.4f}, b2a {back:.4f}", flush=True)


if __name__ == "__main__":
    main()
