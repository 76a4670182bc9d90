"""What a step of one run costs here, measured in a process of its own, since memory is measured by process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from velogan.config import Config, parse_config
from velogan.engine.child import answer, ask
from velogan.engine.memory import peak_memory_mb
from velogan.measure.bench.contestant import Contestant

TURNS = 5
ENOUGH_S = 10.0
"""No turn begins after so many seconds of timed steps: where steps are dear, as a search's are, one tells enough."""


@dataclass(frozen=True)
class StepCost:
    """`seconds` of training for an image of each domain; the most `memory_mb` of the process and of a CUDA device.

    Memory is in MB of 2^20 bytes, `gpu_memory_mb` 0 without a device.
    """

    seconds: float
    memory_mb: float
    gpu_memory_mb: float


def probe(config: Config, cores: Sequence[int]) -> StepCost:
    """Trains a few steps of `config` on random pictures, on these `cores`. ValueError where that fails."""
    request = {"config": config.model_dump(mode="json")}
    code, found = ask("velogan.measure.probe", request, cores=list(cores), said=subprocess.DEVNULL)
    if code or not found:
        raise ValueError(found.get("error", f"the measuring process ended with exit code {code}"))
    return StepCost(**found)


def _measure(request: Mapping[str, Any]) -> dict[str, float]:
    config = parse_config(request["config"])
    one = Contestant("step", config, engine={}, say=lambda text: None)
    one.warm_up()
    return {
        "seconds": _step_s(one) / config.images_per_update,
        "memory_mb": peak_memory_mb(),
        "gpu_memory_mb": one.device_peak_mb,
    }


def _step_s(one: Contestant) -> float:
    """Seconds of a step of what is warm: the median of the turns, or the step that was timed last where it is dear."""
    turns = list[float]()
    while len(turns) < TURNS and one.once_s + one.repeats * sum(turns) < ENOUGH_S:
        turns.append(one.timed(one.run))
    return median(turns or [one.once_s])


if __name__ == "__main__":
    sys.exit(answer(_measure))
