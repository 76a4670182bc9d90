"""Measure the cost of a training step, in a separate process because peak memory is a property of a process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.benchmark import Timer

from velogan.config import Config, parse_config
from velogan.engine.device import select_device, set_threads
from velogan.engine.memory import peak_memory_mb
from velogan.engine.subprocesses import run_in_subprocess, subprocess_main
from velogan.training.engine_settings import resolve_engine
from velogan.training.trial_step import build_random_step

WARM_UP = 2
"""Number of untimed steps: one compiles and captures; a second, with the optimizers' moments, needs the most memory."""

MIN_TIMED_S = 1.0
"""Minimum seconds of timed steps: short steps are repeated, and the median counts."""


@dataclass(frozen=True)
class ImageCost:
    """Step time per image, and peak memory."""

    seconds: float
    """Seconds per image of each domain."""
    memory_mb: float
    """Peak memory of the process, in MB of 2^20 bytes."""
    gpu_memory_mb: float
    """Peak memory of the CUDA device; 0 without one."""


def probe(config: Config, cores: Sequence[int]) -> ImageCost:
    """Measure training steps of `config` on random images and the given CPU cores. Raises ValueError if they fail."""
    request = {"config": config.model_dump(mode="json")}
    code, result = run_in_subprocess("velogan.measure.probe", request, cores=cores)
    if code or not result:
        raise ValueError(result.get("error", f"the measuring process ended with exit code {code}"))
    return ImageCost(**result)


def _measure(request: Mapping[str, Any]) -> dict[str, float]:
    config = parse_config(request["config"])
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    set_threads(config.engine)
    device = select_device(config.engine)
    step = build_random_step(config, device)
    for _ in range(WARM_UP):
        step()
    gpu_memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    return {
        "seconds": timer.blocked_autorange(min_run_time=MIN_TIMED_S).median / config.images_per_update,
        "memory_mb": peak_memory_mb(),
        "gpu_memory_mb": gpu_memory / 2**20,
    }


if __name__ == "__main__":
    sys.exit(subprocess_main(_measure))
