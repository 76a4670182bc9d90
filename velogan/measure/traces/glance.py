"""A step under the profiler, once: the memory that it takes, and its time by group of operations."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from velogan.measure.traces.breakdown import union
from velogan.measure.traces.reading import load_events, read_timeline
from velogan.measure.traces.timeline import GROUPS, STEP, Allocation

BETWEEN = "between operators"
"""On a CPU: the time in which no operator runs, only Python. On CUDA: the time in which the device waits."""


@dataclass(frozen=True)
class Glance:
    """Measurements of one step.

    `rise`: the largest growth of live tensors in CPU memory, in bytes; memory that libraries allocate for themselves is
    not counted. `busy_s`: the seconds in which an operator ran, on CUDA a kernel or a copy. `seconds`: by group of
    `timeline.GROUPS`, and BETWEEN.
    """

    rise: int
    busy_s: float
    seconds: dict[str, float]


def glance(run: Callable[[], object], *, device: torch.device, phases: Sequence[str]) -> Glance:
    """Calls `run`, a step with profiler ranges of the names `phases`, once under the profiler."""
    cuda = device.type == "cuda"
    if cuda:
        allow_captured_graphs()
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


def allow_captured_graphs() -> None:
    """Lets the profiler see captured graphs, of which torch.profiler itself knows only some."""
    os.environ.setdefault("TEARDOWN_CUPTI", "0")


def rise(allocations: Iterable[Allocation]) -> int:
    """The largest growth of live memory, in bytes.

    Memory that was allocated before these `allocations` does not count when it is freed: torch takes its size from
    earlier profiles of the process, and the address may have held something else then.
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
