"""A few steps of one run on random pictures, in a process of its own: what memory they take, and whether they fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from velogan.config import Config, parse_config
from velogan.data.sets.loader import RESIDENT_SHARE
from velogan.engine.child import answer
from velogan.engine.device import resolve_device
from velogan.engine.memory import peak_memory_mb
from velogan.training.build import set_threads
from velogan.training.choices import decide
from velogan.training.run import random_batch, step_of

STEPS = 2
"""The optimizers' moments are there from the second step on."""

SPARE = 0.1
"""Of a CUDA device's memory, what stays free for sample grids, scores and fragments."""


def _try(request: Mapping[str, Any]) -> dict[str, Any]:
    """`mb` that the steps took at their peak, in MB of 2^20 bytes, and why they were `refused`; empty if they fit."""
    config = parse_config(request["config"])
    config = config.model_copy(update={"engine": decide(config)[0].model_copy(update={"compile": "off"})})
    set_threads(config.engine)
    device, room = resolve_device(config.engine.device), 0.0
    if device.type == "cuda":
        room = float(torch.cuda.mem_get_info(device)[0])
        for size in request["kept"]:
            room -= size if size <= RESIDENT_SHARE * room else 0
        room -= SPARE * torch.cuda.get_device_properties(device).total_memory
    try:
        _run(config, device, classes=request["classes"])
    except torch.OutOfMemoryError:
        return {"mb": 0.0, "refused": "did not fit"}
    if device.type != "cuda":
        return {"mb": peak_memory_mb(), "refused": ""}
    taken = torch.cuda.max_memory_reserved(device)
    told = f"took {taken / 2**20:,.0f} MB of {room / 2**20:,.0f}" if taken > room else ""
    return {"mb": taken / 2**20, "refused": told}


def _run(config: Config, device: torch.device, *, classes: int) -> None:
    side, count = config.data.crop_size, config.images_per_update
    step, objective, _ = step_of(config, shape=(side, side), classes=classes)
    batch = random_batch(config, device)
    for number in range(STEPS):
        uniform = {split: torch.rand(draws, count, device=device) for split, draws in objective.draws.items()}
        step({split: {**batch, "uniform": one} for split, one in uniform.items()}, number=number)


if __name__ == "__main__":
    sys.exit(answer(_try))
