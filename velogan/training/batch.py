"""`data.batch_size=auto`: as many images a step as memory bears, found by trying steps in processes of their own.

On a CUDA device the batch is doubled until its step is refused. On a CPU the next one is tried only where, by the two
before it, it stays below a share of the memory that is free.
"""

from __future__ import annotations

import subprocess

import torch

from velogan.config import Config
from velogan.data.sets.pair import Data
from velogan.engine.child import ask
from velogan.engine.device import device_for
from velogan.engine.distributed import DistributedContext
from velogan.engine.memory import free_memory_mb
from velogan.files import pluralize
from velogan.types import Decision

MOST = 1024
"""No larger batch is tried."""

SHARE = 0.8
"""Of the memory that is free, what a step may take: sample grids and scores want some, too."""


def with_batch(config: Config, data: Data, distributed: DistributedContext) -> tuple[Config, list[Decision]]:
    """`config` with a number where data.batch_size is auto, the same on all ranks: the least that one of them found.

    ValueError where not even one image fits, or where it cannot be found.
    """
    if config.data.batch_size != "auto":
        return config, []
    if config.data.crop is None:
        raise ValueError(
            f"data.batch_size=auto needs pictures of one size, and data.preprocess={config.data.preprocess} keeps "
            "their own: give a number, or choose a preprocess with a crop"
        )
    device = device_for(config.engine)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"data.batch_size=auto does not know how much memory {device.type} has: give a number")
    most = min(MOST, max(1, min(len(data.a), len(data.b)) // distributed.world))
    kept = [one.pixels.nbytes for one in (data.a, data.b) if one.uniform]
    room = SHARE * free_memory_mb() / distributed.local_world if device.type == "cpu" else None
    here = config
    if device.type == "cuda" and device.index is None:  # in a process of its own that would be the first one's
        here = config.change(engine={"device": f"cuda:{torch.cuda.current_device()}"})
    count, why = min(distributed.gather(largest(here, most=most, kept=kept, room=room, classes=data.classes)))
    if count == 0:
        raise ValueError(f"data.batch_size=auto: {why}; choose a smaller --size or --image-size")
    return config.change(data={"batch_size": count}), [Decision("batch", str(count), why)]


def largest(config: Config, *, most: int, kept: list[int], room: float | None, classes: int = 0) -> tuple[int, str]:
    """The largest power of two up to `most` whose step fits, 0 for none, and why it is no larger one.

    `kept` are the bytes of each domain's pictures, which a CUDA device keeps where they fit; `room` is what a CPU's
    step may take, in MB of 2^20 bytes; `classes` are those of label maps.
    """
    taken: list[float] = []
    while (count := 2 ** len(taken)) <= most:
        images = pluralize(count, "image")
        if room is not None and len(taken) > 1:
            expected = taken[-1] + 2 * (taken[-1] - taken[-2])  # on the line through the last two
            if expected > room:
                return count // 2, f"{images} would take about {expected:,.0f} MB of {room:,.0f}"
        request = {"config": config.change(data={"batch_size": count}).model_dump(mode="json")}
        request |= {"kept": kept, "classes": classes}
        code, found = ask("velogan.training.trial", request, cores=[], said=subprocess.DEVNULL)
        if code == 2 and "error" in found:
            raise ValueError(found["error"])
        if code or found["refused"]:
            return count // 2, f"{images} {found.get('refused') or 'did not fit'}"
        if room is not None and found["mb"] > room:
            return count // 2, f"{images} took {found['mb']:,.0f} MB of {room:,.0f}"
        taken.append(found["mb"])
    return count // 2, f"it takes {taken[-1]:,.0f} MB, and more than {most} are not tried"
