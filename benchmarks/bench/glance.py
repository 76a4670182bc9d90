"""A step under the profiler, once: the memory that it takes, and its time by group of operations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from velogan.measure.traces.breakdown import union
from velogan.measure.traces.reading import allow_captured_graphs, load_events, read_timeline
from velogan.measure.traces.timeline import GROUPS, STEP

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


def glance(run: Callable[[], object], *, device: torch.device) -> Glance:
    """Call `run`, a step, once under the profiler."""
    cuda = device.type == "cuda"
    if cuda:
        allow_captured_graphs()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, profile_memory=not cuda, acc_events=True) as profiler, record_function(STEP):
        run()
        if cuda:
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory(prefix="velogan-trace-") as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = load_events(trace)
    timeline = read_timeline(events)
    busy = sum(end - start for start, end in union(span for one in timeline.work for span in one.spans)) / 1e6
    seconds: dict[str, float] = dict.fromkeys(GROUPS, 0.0)
    for one in timeline.work:
        seconds[one.group] += one.microseconds / 1e6
    whole = (timeline.steps[0][1] - timeline.steps[0][0]) / 1e6
    return Glance(
        rise=rise(_allocations(events)),
        busy_s=busy,
        seconds=seconds | {BETWEEN: max(0.0, whole - busy)},
    )


def _allocations(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of CPU memory, in order of time; bytes are negative if memory is freed."""
    for event in sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]):
        args = event["args"]
        if int(args.get("Device Type", 0)) == 0:
            yield int(args["Addr"]), int(args["Bytes"])


def rise(allocations: Iterable[tuple[int, int]]) -> int:
    """Return the largest growth of live memory, in bytes, from addresses and bytes.

    Memory that was allocated before these `allocations` does not count when it is freed: torch takes its size from
    earlier profiles of the process, and the address may have held something else then.
    """
    live: dict[int, int] = {}
    now = most = 0
    for address, size in allocations:
        if size > 0:
            live[address] = size
            now += size
        else:
            now -= live.pop(address, 0)
        most = max(most, now)
    return most
