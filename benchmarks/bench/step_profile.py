"""Profile one step: its peak memory, and its time by group of operations."""

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
class StepProfile:
    """Measurements of one step.

    peak_memory_growth: largest growth of live tensors in CPU memory, in bytes, without memory of libraries
    busy_s: seconds in which an operator ran, on CUDA a kernel or a copy
    seconds: by group of `timeline.GROUPS`, and BETWEEN
    """

    peak_memory_growth: int
    busy_s: float
    seconds: dict[str, float]


def profile_once(run: Callable[[], object], *, device: torch.device) -> StepProfile:
    """Profile one call of `run`, a step."""
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
    busy = sum(end - start for start, end in union(span for activity in timeline.work for span in activity.spans)) / 1e6
    seconds: dict[str, float] = dict.fromkeys(GROUPS, 0.0)
    for activity in timeline.work:
        seconds[activity.group] += activity.microseconds / 1e6
    step_s = (timeline.steps[0][1] - timeline.steps[0][0]) / 1e6
    return StepProfile(
        peak_memory_growth=peak_memory_growth(_allocations(events)),
        busy_s=busy,
        seconds=seconds | {BETWEEN: max(0.0, step_s - busy)},
    )


def _allocations(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of CPU memory, in order of time; bytes are negative if memory is freed."""
    for event in sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]):
        args = event["args"]
        if int(args.get("Device Type", 0)) == 0:
            yield int(args["Addr"]), int(args["Bytes"])


def peak_memory_growth(allocations: Iterable[tuple[int, int]]) -> int:
    """Return the largest growth of live memory, in bytes, from addresses and bytes.

    Memory that was allocated before these `allocations` does not count when it is freed: torch takes its size from
    earlier profiles of the process, and the address may have held something else then.
    """
    live: dict[int, int] = {}
    current = peak = 0
    for address, size in allocations:
        if size > 0:
            live[address] = size
            current += size
        else:
            current -= live.pop(address, 0)
        peak = max(peak, current)
    return peak
