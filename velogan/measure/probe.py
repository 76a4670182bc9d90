"""Measure the cost of a training step, in a separate process because peak memory is a property of a process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from velogan.config import Config, parse_config
from velogan.engine.device import select_device, set_threads, synchronise
from velogan.engine.memory import peak_memory_mb
from velogan.engine.subprocesses import run_in_subprocess, subprocess_main
from velogan.training.engine_settings import resolve_engine
from velogan.training.trial_step import build_random_step

WARM_UP = 2
"""Number of untimed steps: the first compiles, captures and allocates; the second has the optimizers' moments."""

MAX_TIMINGS = 5
MIN_TIMING_S = 0.25
"""Minimum seconds of a timing; short steps are repeated."""

MAX_TIMED_S = 10.0
"""No timing starts after this many seconds of timed steps: one is enough if steps are expensive, as in a search."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step."""

    seconds: float
    """Per image of each domain."""
    memory_mb: float
    """Peak memory of the process, in MB of 2^20 bytes."""
    gpu_memory_mb: float
    """Peak memory of the CUDA device; 0 without one."""


def probe(config: Config, cores: Sequence[int]) -> StepCost:
    """Train a few steps of `config` on random images, on these CPU `cores`. Raises ValueError if that fails."""
    request = {"config": config.model_dump(mode="json")}
    code, result = run_in_subprocess("velogan.measure.probe", request, cores=cores)
    if code or not result:
        raise ValueError(result.get("error", f"the measuring process ended with exit code {code}"))
    return StepCost(**result)


def _measure(request: Mapping[str, Any]) -> dict[str, float]:
    config = parse_config(request["config"])
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    set_threads(config.engine)
    device = select_device(config.engine)
    step = build_random_step(config, device)
    for _ in range(WARM_UP):
        step()
    gpu_memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0

    def time_steps(repeats: int) -> float:
        synchronise(device)
        started = time.perf_counter()
        for _ in range(repeats):
            step()
        synchronise(device)
        return time.perf_counter() - started

    return {
        "seconds": median_step_seconds(time_steps) / config.images_per_update,
        "memory_mb": peak_memory_mb(),
        "gpu_memory_mb": gpu_memory / 2**20,
    }


def median_step_seconds(time_steps: Callable[[int], float]) -> float:
    """Return the median seconds of a step; `time_steps(n)` runs n steps and returns their seconds."""
    first_s = total_s = time_steps(1)
    repeats = max(1, round(MIN_TIMING_S / first_s))
    timings = list[float]()
    while len(timings) < MAX_TIMINGS and total_s < MAX_TIMED_S:
        total_s += (elapsed := time_steps(repeats))
        timings.append(elapsed / repeats)
    return median(timings or [first_s])


if __name__ == "__main__":
    sys.exit(subprocess_main(_measure))
