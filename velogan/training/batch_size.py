"""`data.batch_size=auto`: the largest batch that fits in memory, found by trial steps in subprocesses.

On a CUDA device the batch is doubled until a step does not fit. On a CPU, which swaps instead of failing when memory
is full, a batch is tried only if a linear extrapolation of the two previous measurements stays below a limit.
"""

from __future__ import annotations

import torch

from velogan.config import Config
from velogan.data.sets.pair import TrainingData
from velogan.engine.device import select_device
from velogan.engine.distributed import DistributedContext
from velogan.engine.memory import free_memory_mb
from velogan.engine.subprocesses import run_in_subprocess
from velogan.files import pluralize
from velogan.types import Decision

MAX_BATCH = 1024

MAX_MEMORY_SHARE = 0.8
"""Share of the free memory that a step on a CPU may use; sample grids and scores need memory, too."""


def resolve_auto_batch_size(
    config: Config, data: TrainingData, distributed: DistributedContext
) -> tuple[Config, list[Decision]]:
    """Replace data.batch_size=auto by the largest power of two that fits on every rank; return the decision, too.

    For auto, raises ValueError if data.preprocess does not crop, no image fits, or the device's memory is unknown.
    """
    if config.data.batch_size != "auto":
        return config, []
    if config.data.crop is None:
        raise ValueError(
            f"data.batch_size=auto needs images of one size, and data.preprocess={config.data.preprocess} does "
            "not make them so: set a number, or a preprocess that crops"
        )
    device = select_device(config.engine)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"data.batch_size=auto: the memory of {device.type} is unknown; set a number")
    max_batch = min(MAX_BATCH, max(1, min(len(data.a), len(data.b)) // distributed.world_size))
    resident_bytes = [domain.pixels.nbytes for domain in (data.a, data.b) if domain.has_one_shape]
    limit_mb = MAX_MEMORY_SHARE * free_memory_mb() / distributed.local_world_size if device.type == "cpu" else None
    if device.type == "cuda" and device.index is None:  # in a subprocess, that would be the first device
        device = torch.device("cuda", torch.cuda.current_device())
    batch_size, reason = min(
        distributed.all_gather(
            find_largest_batch(
                config.change(engine={"device": str(device)}),
                max_batch=max_batch,
                resident_bytes=resident_bytes,
                limit_mb=limit_mb,
                classes=data.num_classes,
            )
        )
    )
    if batch_size == 0:
        raise ValueError(f"data.batch_size=auto: {reason}; choose a smaller --size or --image-size")
    return config.change(data={"batch_size": batch_size}), [Decision("batch", str(batch_size), reason)]


def find_largest_batch(
    config: Config, *, max_batch: int, resident_bytes: list[int], limit_mb: float | None, classes: int = 0
) -> tuple[int, str]:
    """Return the largest batch size, a power of two up to `max_batch`, that fits (0 if none), and why it is not larger.

    resident_bytes: sizes in bytes of the domains whose images a CUDA device caches if they fit
    limit_mb: memory that a step on a CPU may use, in MB of 2^20 bytes; None: no limit
    classes: number of classes of label maps; 0 without label maps
    """
    measured_mb: list[float] = []
    while (batch_size := 2 ** len(measured_mb)) <= max_batch:
        images = pluralize(batch_size, "image")
        if limit_mb is not None and len(measured_mb) > 1:
            predicted = measured_mb[-1] + 2 * (measured_mb[-1] - measured_mb[-2])  # linear in the batch size
            if predicted > limit_mb:
                return batch_size // 2, f"{images} would need about {predicted:,.0f} MB of {limit_mb:,.0f}"
        request = {"config": config.change(data={"batch_size": batch_size}).model_dump(mode="json")}
        request |= {"resident_bytes": resident_bytes, "classes": classes}
        code, result = run_in_subprocess("velogan.training.trial_step", request)
        if code == 2 and "error" in result:
            raise ValueError(result["error"])
        if code or result["problem"]:
            return batch_size // 2, f"{images} {result.get('problem') or 'did not fit'}"
        if limit_mb is not None and result["mb"] > limit_mb:
            return batch_size // 2, f"{images} needed {result['mb']:,.0f} MB of {limit_mb:,.0f}"
        measured_mb.append(result["mb"])
    return batch_size // 2, f"it needs {measured_mb[-1]:,.0f} MB; more than {max_batch} are not tried"
