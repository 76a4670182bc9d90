"""What old copies cost in quality: one-pair's modules apart, networks exchanged every so often, equal total images.

    python -m benchmarks.apart FOLDER [IMAGES] [EVERY ...] [--seeds 0,1,2]

EVERY is an interval, as `2images`, `100images` or `1epoch`, or `none`: one process trains all. The nodes are those of
`velogan train --modules` in one process, one after the other, which computes the same: what nodes compute depends on
when they exchange, not on how fast they are. Prints the objects' PSNR to the truth, in dB, on the test pictures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from velogan.evaluation.evaluate import evaluate
from velogan.observe.progress import Display
from velogan.recipes import RECIPES
from velogan.training.nodes.node import Given, Report, Task
from velogan.training.nodes.run import modules_asked, placed
from velogan.training.run import train

ENGINE = {"device": "cpu", "precision": "bf16", "kernels": "winograd", "threads": 1}


class Here:
    """All nodes in this process, one after the other."""

    def __init__(self, makes: Mapping[str, Any]):
        self._nodes, self._tasks = {name: make() for name, make in makes.items()}, dict[str, tuple[Given, Task]]()

    def give(self, name: str, given: Given, task: Task) -> None:
        self._tasks[name] = given, task

    def hear(self) -> tuple[str, Report]:
        name = next(iter(self._tasks))
        return name, self._nodes[name].advance(*self._tasks.pop(name))


@contextmanager
def here(makes: Mapping[str, Any], *, cuda: bool, memory: int) -> Iterator[Here]:
    """As `on_nodes`."""
    yield Here(makes)


def measure(folder: Path, *, images: int, every: str | None, seed: int) -> dict[str, Any]:
    """Trains, unless that was done; the scores of averages and of weights as they are."""
    run = folder / f"{every or 'none'}-{seed}"
    config = RECIPES["demo-onepair"]().change(
        train={"length": f"{images} images", "seed": seed, "exchange_every": every, "checkpoint_every": "100 %"}
        | {"samples": 0, "tensorboard": False},
        engine=ENGINE,
    )
    with Display(quiet=False) as display:
        placing = every and partial(placed, modules=modules_asked(config), start=here, say=display.say)
        result = train(config, run, display=display, origin={"preset": "demo-onepair"}, placing=placing or None)
        scores = evaluate(run, checkpoint="last", task=display.task)["scores"]
    found = {f"{one['name']} {one['weights']}": one["value"] for one in scores if one["direction"] == "a2b"}
    row = {"every": every, "seed": seed, "weights": result.weights_sha256[:12], **found}
    print(json.dumps(row), flush=True)
    return row


def main(words: list[str]) -> None:
    folder, images = Path(words[0]), int(words[1])
    seeds = next((word.removeprefix("--seeds=") for word in words if word.startswith("--seeds=")), "0,1,2")
    for seed in map(int, seeds.split(",")):
        for word in words[2:]:
            if not word.startswith("--"):
                measure(folder, images=images, every=None if word == "none" else word, seed=seed)


if __name__ == "__main__":
    main([*sys.argv[1:]])
