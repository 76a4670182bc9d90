"""What a sweep will take, before it starts: how many runs side by side here, and for how long."""

from __future__ import annotations

from typing import Any

import torch

from velogan.files import duration
from velogan.sweep.cores import available
from velogan.sweep.plan import Plan
from velogan.sweep.scheduling import shared


def cost(plan: Plan, *, count: int, parallel: int | None) -> dict[str, Any]:
    """For `count` trials on this machine: `count`, `parallel`, `cores` and `gpus` of each, `seconds` of training in
    all (None where the budget is in images, whose time nothing here measures), and a `text` for people."""
    device = next(iter(plan.bases.values())).engine.device
    gpus = float(torch.cuda.device_count()) if device == "auto" or device.startswith("cuda") else 0.0
    cores = len(available())
    each = shared(cores, gpus, parallel=parallel, largest=cores, trials=max(count, 1))
    rounds = -(-count // each.parallel)
    minutes = float(plan.budget.split()[0]) if plan.budget.endswith("minutes") else None
    seconds = None if minutes is None else rounds * minutes * 60
    time = "" if seconds is None else f": {duration(seconds)} of training in all, and start and scoring on top"
    what = f"{each.gpus:g} GPU" if each.gpus else f"{each.cores} core{'s' * (each.cores > 1)}"
    text = f"{count} runs of {plan.budget} each, {each.parallel} at a time with {what} each{time}"
    return {"count": count, "parallel": each.parallel, "cores": each.cores, "gpus": each.gpus, "seconds": seconds} | {
        "text": text
    }
