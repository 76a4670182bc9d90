"""A profiler's trace, in the Chrome format that `torch.profiler` exports, as a timeline of work."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from velogan.measure.traces.host import Host, group_of, start_of
from velogan.measure.traces.timeline import MOVEMENT, OTHER, REST, STEP, Activity, Kind, Launch, Owner, Span, Timeline

_COMMUNICATION = re.compile(r"nccl|gloo|c10d")
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def load_events(path: Path) -> list[dict[str, Any]]:
    """The events of an exported trace, gzipped or not. ValueError if the file is not a trace."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise ValueError(f"{path} is not a trace: name a file that torch.profiler's export_chrome_trace wrote")
    return events


def read_timeline(events: Iterable[Mapping[str, Any]], *, phases: Sequence[str], networks: Sequence[str]) -> Timeline:
    """The timeline of a training, from a trace with ranges STEP, LOADER and those of `phases` and `networks`.

    A backward operator belongs to the network of the forward operator with the same autograd sequence number. An
    operator without a number, for example one that sums a weight's gradient, belongs to the network of the last one.
    ValueError for a trace without a step.
    """
    events = [event for event in events if event.get("ph") in ("X", "i")]
    host = Host([event for event in events if event.get("cat") not in _DEVICE], phases=phases, networks=networks)
    if not host.steps:
        raise ValueError(f"the trace has no range called {STEP!r}: profile through velogan profile")
    kernels = [event for event in events if event.get("cat") in _DEVICE]
    if kernels:
        work = sorted(_kernels(kernels, host), key=lambda work: work.start)
        window = (work[0].start, max(work.spans[-1][1] for work in work))
    else:
        window = (min(start for start, _ in [host.steps[0], *host.loading]), host.steps[-1][1])
        work = _operators(host, window)
    return Timeline("cuda" if kernels else "cpu", window, host.steps, host.phases, host.updates, work, host.allocations)


def borrow_places(captured: Timeline, plain: Timeline) -> Timeline:
    """`captured`, with the places of its graphs' kernels taken from `plain`.

    The kernels of a graph have no ranges of the host. `plain` is a trace of the same step, launched kernel by kernel.
    Kernels are matched by their names, in order. Kernels without a match keep their place.
    """
    start = plain.steps[-1][0]
    known = [one for one in plain.work if one.place.phase and one.launch is not None and one.launch.start >= start]
    names = [one.name for one in known]
    graphs: dict[Launch, list[int]] = {}
    for number, one in enumerate(captured.work):
        if one.launch is not None and one.launch.kernels > 1:
            graphs.setdefault(one.launch, []).append(number)
    work = list(captured.work)
    for numbers in graphs.values():
        matcher = SequenceMatcher(a=[work[number].name for number in numbers], b=names, autojunk=False)
        for begin, other, length in matcher.get_matching_blocks():
            for number, one in zip(numbers[begin : begin + length], known[other : other + length]):
                work[number] = replace(work[number], place=one.place, group=one.group)
    return replace(captured, work=work)


def _operators(host: Host, window: Span) -> list[Activity]:
    work = []
    before = window[0]
    for call in host.operators:
        if not window[0] <= call.start < window[1]:
            continue
        launch = None
        if call.inside is None:
            launch = Launch(before, max(call.start - before, 0.0))
            before = call.end
        group = call.group or OTHER
        kind: Kind = "memory" if group == MOVEMENT else "compute"
        kind = "communication" if _COMMUNICATION.search(call.name) else kind
        work.append(Activity(call.name, call.spans(), call.end - call.start, kind, group, call.place, launch))
    return work


def _kernels(events: list[Mapping[str, Any]], host: Host) -> Iterator[Activity]:
    started: dict[int, int] = {}
    for event in events:
        correlation = int(event.get("args", {}).get("correlation", -1))
        started[correlation] = started.get(correlation, 0) + 1
    nowhere = Owner("", REST, "")
    for event in events:
        name, start, duration = str(event["name"]), start_of(event), float(event["dur"])
        args = event.get("args", {})
        correlation, stream = int(args.get("correlation", -1)), int(args.get("stream", 0))
        launch, place, group = host.launches.get(correlation, (None, nowhere, ""))
        if launch is not None:
            launch = Launch(launch.start, launch.duration, started[correlation])
        kind = _kernel_kind(name)
        group = MOVEMENT if kind == "memory" else group or group_of(name) or OTHER
        yield Activity(name, ((start, start + duration),), duration, kind, group, place, launch, stream)


def _kernel_kind(name: str) -> Kind:
    """The kind as in Holistic Trace Analysis (hta/utils/utils.py, get_kernel_type), plus newer NCCL names."""
    if "ncclKernel" in name or "ncclDevKernel" in name:
        return "communication"
    return "memory" if "Memcpy" in name or "Memset" in name else "compute"
