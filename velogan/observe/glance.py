"""One look at a step under the profiler: the memory it takes, and what its time goes into."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from velogan.observe.breakdown import union
from velogan.observe.timeline import GROUPS, STEP, Allocation
from velogan.observe.trace import load_events, read_timeline

BETWEEN = "between operators"
"""On a CPU: the time in which no operator runs, but Python; on CUDA, that in which the device waits."""


@dataclass(frozen=True)
class Glance:
    """What was seen of one step.

    `rise`: by how many bytes live tensors in the CPU's memory grew at most; what a library takes for itself is not
    counted. `busy_s`: the seconds in which an operator ran, on CUDA a kernel or a copy. `seconds` by group of
    `observe.timeline`, and BETWEEN.
    """

    rise: int
    busy_s: float
    seconds: dict[str, float]


def glance(run: Callable[[], object], *, device: torch.device, phases: Sequence[str]) -> Glance:
    """Calls `run`, a step with ranges called as `phases` say, once under the profiler."""
    cuda = device.type == "cuda"
    if cuda:
        os.environ.setdefault("TEARDOWN_CUPTI", "0")  # as torch.profiler does for captured steps that it knows of
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, profile_memory=not cuda, acc_events=True) as seen, record_function(STEP):
        run()
        if cuda:
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory(prefix="velogan-trace-") as folder:
        trace = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(trace))
        timeline = read_timeline(load_events(trace), phases=phases, networks=())
    busy = sum(end - start for start, end in union(span for one in timeline.work for span in one.spans)) / 1e6
    seconds: dict[str, float] = dict.fromkeys(GROUPS, 0.0)
    for one in timeline.work:
        seconds[one.group] += one.microseconds / 1e6
    whole = (timeline.steps[0][1] - timeline.steps[0][0]) / 1e6
    return Glance(
        rise=rise(one for one in timeline.allocations if not one.on_device),
        busy_s=busy,
        seconds=seconds | {BETWEEN: max(0.0, whole - busy)},
    )


def rise(allocations: Iterable[Allocation]) -> int:
    """By how many bytes what is alive grew at most.

    Giving back what was there before does not count: torch takes its size from earlier profiles of the process, in
    which the same address may have held something else.
    """
    alive: dict[int, int] = {}
    now = most = 0
    for one in allocations:
        if one.size > 0:
            alive[one.address] = one.size
            now += one.size
        else:
            now -= alive.pop(one.address, 0)
        most = max(most, now)
    return most
