"""Cost of a training step, measured in a separate process because peak memory is a property of a process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from velogan.config import Config, parse_config
from velogan.engine.child import answer, ask
from velogan.engine.device import device_for, set_threads, synchronise
from velogan.engine.memory import peak_memory_mb
from velogan.training.engine_settings import resolve_engine
from velogan.training.trial_step import build_random_step

WARM_UP = 2
"""Steps before the timed ones: a first one builds kernels, captures and allocates; a second one has all moments."""

TURNS = 5
TURN_S = 0.25
"""Seconds that a timed turn lasts at least; short steps are repeated within one."""

ENOUGH_S = 10.0
"""No turn starts after this many seconds of timed steps: if steps are expensive, as in a search, one is enough."""


@dataclass(frozen=True)
class StepCost:
    """`seconds` of training per image of each domain; peak `memory_mb` of the process and of a CUDA device.

    Memory is in MB of 2^20 bytes, `gpu_memory_mb` 0 without a device.
    """

    seconds: float
    memory_mb: float
    gpu_memory_mb: float


def probe(config: Config, cores: Sequence[int]) -> StepCost:
    """Train a few steps of `config` on random images, on these `cores`. Raises ValueError if that fails."""
    request = {"config": config.model_dump(mode="json")}
    code, found = ask("velogan.measure.probe", request, cores=list(cores), said=subprocess.DEVNULL)
    if code or not found:
        raise ValueError(found.get("error", f"the measuring process ended with exit code {code}"))
    return StepCost(**found)


def _measure(request: Mapping[str, Any]) -> dict[str, float]:
    config = parse_config(request["config"])
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    set_threads(config.engine)
    device = device_for(config.engine)
    step = build_random_step(config, device)
    for _ in range(WARM_UP):
        step()
    gpu_memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0

    def timed(repeats: int) -> float:
        synchronise(device)
        started = time.perf_counter()
        for _ in range(repeats):
            step()
        synchronise(device)
        return time.perf_counter() - started

    return {
        "seconds": seconds_of(timed) / config.images_per_update,
        "memory_mb": peak_memory_mb(),
        "gpu_memory_mb": gpu_memory / 2**20,
    }


def seconds_of(timed: Callable[[int], float]) -> float:
    """Return the median seconds of a step; `timed(n)` runs n steps and returns how long they took."""
    once = spent = timed(1)
    repeats = max(1, round(TURN_S / once))
    turns = list[float]()
    while len(turns) < TURNS and spent < ENOUGH_S:
        spent += (elapsed := timed(repeats))
        turns.append(elapsed / repeats)
    return median(turns or [once])


if __name__ == "__main__":
    sys.exit(answer(_measure))
