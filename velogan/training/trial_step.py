"""A training step on random images, and a subprocess that measures the memory of a few such steps."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from velogan.config import Config, parse_config
from velogan.data.sets.annotations import DEFAULT_CLASSES, example_batch
from velogan.data.sets.loader import GPU_CACHE_FRACTION
from velogan.engine.device import select_device, set_threads
from velogan.engine.memory import peak_memory_mb
from velogan.engine.subprocesses import subprocess_main
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.types import Batch

NUM_STEPS = 2
"""The optimizers allocate their moments in the first step, so the second one needs the most memory."""

RESERVED_FRACTION = 0.1
"""Share of a CUDA device's memory that is left for sample grids, scores and fragmentation."""


def random_batch(config: Config, device: torch.device) -> Batch:
    """Return random images `(B, C, H, W)` in [-1, 1] and annotations for one update, without the entry `uniform`."""
    shape = (config.images_per_update, config.data.crop_size, config.data.crop_size)
    images = {
        domain: torch.rand(shape[0], channels, *shape[1:], device=device) * 2 - 1
        for domain, channels in config.spec.channels.items()
    }
    return images | example_batch(config.data, shape, device)


def _measure_memory(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return `mb`, the peak memory of a few steps in 2^20 bytes, and `problem`: why they do not fit, or empty."""
    config = parse_config(request["config"])
    device = select_device(config.engine)
    config = config.model_copy(update={"engine": resolve_engine(config)[0].model_copy(update={"compile": "off"})})
    set_threads(config.engine)
    limit = 0.0
    if device.type == "cuda":
        limit = float(torch.cuda.mem_get_info(device)[0])
        for size in request["resident_bytes"]:
            limit -= size if size <= GPU_CACHE_FRACTION * limit else 0
        limit -= RESERVED_FRACTION * torch.cuda.get_device_properties(device).total_memory
    try:
        step = build_random_step(config, device, classes=request["classes"])
        for _ in range(NUM_STEPS):
            step()
    except torch.OutOfMemoryError:
        return {"mb": 0.0, "problem": "did not fit"}
    if device.type != "cuda":
        return {"mb": peak_memory_mb(), "problem": ""}
    reserved = torch.cuda.max_memory_reserved(device)
    problem = f"needed {reserved / 2**20:,.0f} MB of {limit / 2**20:,.0f}" if reserved > limit else ""
    return {"mb": reserved / 2**20, "problem": problem}


def build_random_step(config: Config, device: torch.device, *, classes: int = DEFAULT_CLASSES) -> Callable[[], None]:
    """Return a function that runs one training step on random images; `config` must have a resolved engine."""
    size = config.data.crop_size
    step, objective, _ = build_step(config, shape=(size, size), classes=classes)
    batch, step_numbers = random_batch(config, device), itertools.count()

    def run_step() -> None:
        batches = {
            split: {**batch, "uniform": torch.rand(count, config.images_per_update, device=device)}
            for split, count in objective.num_uniforms.items()
        }
        step(batches, number=next(step_numbers))

    return run_step


if __name__ == "__main__":
    sys.exit(subprocess_main(_measure_memory))
