"""A step by itself, and random pictures for it. As a process: what memory a few steps take, and whether they fit."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from velogan.config import Config, parse_config
from velogan.data.sets.annotations import USUAL_CLASSES, example_batch
from velogan.data.sets.loader import RESIDENT_SHARE
from velogan.engine.child import answer
from velogan.engine.device import device_for, set_threads
from velogan.engine.memory import peak_memory_mb
from velogan.training.build import build_step
from velogan.training.choices import decide
from velogan.types import Batch

STEPS = 2
"""The optimizers' moments are there from the second step on."""

SPARE = 0.1
"""Of a CUDA device's memory, what stays free for sample grids, scores and fragments."""


def random_batch(config: Config, device: torch.device) -> Batch:
    """Make the batch of a step with random images and annotations that no file says; without its `uniform`."""
    shape = (config.images_per_update, config.data.crop_size, config.data.crop_size)
    images = {
        letter: torch.rand(shape[0], channels, *shape[1:], device=device) * 2 - 1
        for letter, channels in config.spec.channels.items()
    }
    return images | example_batch(config.data, shape, device)


def _try(request: Mapping[str, Any]) -> dict[str, Any]:
    """`mb` that the steps took at their peak, in MB of 2^20 bytes, and why they were `refused`; empty if they fit."""
    config = parse_config(request["config"])
    device, room = device_for(config.engine), 0.0
    config = config.model_copy(update={"engine": decide(config)[0].model_copy(update={"compile": "off"})})
    set_threads(config.engine)
    if device.type == "cuda":
        room = float(torch.cuda.mem_get_info(device)[0])
        for size in request["kept"]:
            room -= size if size <= RESIDENT_SHARE * room else 0
        room -= SPARE * torch.cuda.get_device_properties(device).total_memory
    try:
        step = random_steps(config, device, classes=request["classes"])
        for _ in range(STEPS):
            step()
    except torch.OutOfMemoryError:
        return {"mb": 0.0, "refused": "did not fit"}
    if device.type != "cuda":
        return {"mb": peak_memory_mb(), "refused": ""}
    taken = torch.cuda.max_memory_reserved(device)
    told = f"took {taken / 2**20:,.0f} MB of {room / 2**20:,.0f}" if taken > room else ""
    return {"mb": taken / 2**20, "refused": told}


def random_steps(config: Config, device: torch.device, *, classes: int = USUAL_CLASSES) -> Callable[[], None]:
    """Return a function that computes the next step of `config`, whose engine is resolved, on random images."""
    side, count = config.data.crop_size, config.images_per_update
    step, objective, _ = build_step(config, shape=(side, side), classes=classes)
    batch, numbers = random_batch(config, device), itertools.count()

    def run() -> None:
        uniform = {split: torch.rand(draws, count, device=device) for split, draws in objective.draws.items()}
        step({split: {**batch, "uniform": values} for split, values in uniform.items()}, number=next(numbers))

    return run


if __name__ == "__main__":
    sys.exit(answer(_try))
