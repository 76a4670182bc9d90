"""Read a profiler's trace, in the Chrome format that `torch.profiler` exports, as a timeline of work."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from velogan.measure.traces.timeline import (
    COMPILED,
    CONVOLUTION,
    MOVEMENT,
    NORM,
    OTHER,
    STEP,
    UPDATE,
    Activity,
    Kind,
    Launch,
    Span,
    Timeline,
)

_GROUP_PATTERNS = (
    (UPDATE, re.compile(r"^Optimizer\.step|adam|multi_tensor_apply", re.I)),
    (NORM, re.compile(r"(?<!vector_)(?<!foreach_)norm|_plain|relu|tanh|sigmoid|softplus|dropout|_pad|bn_[fb]w", re.I)),
    (CONVOLUTION, re.compile(r"conv(?!ert)|xmma|gemm|nvjet|cudnn|winograd|[wd]grad|_thin", re.I)),
    (
        MOVEMENT,
        re.compile(r"copy|clone|contiguous|::cat|::to$|fill|zero|memcpy|memset|empty|index|gather|repeat|flip", re.I),
    ),
    (COMPILED, re.compile(r"triton|compiled|cpp_fused", re.I)),
)
_COMMUNICATION = re.compile(r"nccl|gloo|c10d")
_ENGINE = "autograd::engine::evaluate_function"
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCH = {"cuda_runtime", "cuda_driver"}
_RANGE = "user_annotation"
_HOST = {"cpu_op", _RANGE, *_LAUNCH}

Event = Mapping[str, Any]


def allow_captured_graphs() -> None:
    """Set TEARDOWN_CUPTI=0, unless it is set, so that torch.profiler records all captured graphs."""
    os.environ.setdefault("TEARDOWN_CUPTI", "0")


def load_events(path: Path) -> list[dict[str, Any]]:
    """Load the events of an exported trace, gzipped or not. Raises ValueError if the file is not a trace."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise ValueError(f"{path}: not a trace; pass a file of torch.profiler's export_chrome_trace")
    return events


def read_timeline(events: Iterable[Event]) -> Timeline:
    """Return the timeline of the training steps, the ranges named STEP. Raises ValueError if there are none."""
    events = [event for event in events if event.get("ph") == "X"]
    steps = sorted(_span(event) for event in events if event.get("cat") == _RANGE and event["name"] == STEP)
    if not steps:
        raise ValueError(f"the trace has no range {STEP!r}; record it by velogan profile")
    operators, launches = _read_host([event for event in events if event.get("cat") in _HOST])
    kernels = [event for event in events if event.get("cat") in _DEVICE]
    if kernels:
        work = sorted(_kernels(kernels, launches), key=lambda activity: activity.start)
        window = (work[0].start, max(activity.spans[-1][1] for activity in work))
        return Timeline("cuda", window, steps, work)
    window = (steps[0][0], steps[-1][1])
    work = [operator.activity() for operator in operators if window[0] <= operator.start < window[1]]
    return Timeline("cpu", window, steps, work)


@dataclass(eq=False)
class _Call:
    """An operator or a named range on the host; `operator` is the innermost operator around it, or itself."""

    name: str
    start: float
    end: float
    group: str
    operator: _Call | None = None
    children: list[Span] = field(default_factory=list)

    def activity(self) -> Activity:
        """Return the operator's own work, without the operators inside it; it may take no time."""
        own, covered_to = [], self.start
        for start, end in self.children:
            own.append((covered_to, start))
            covered_to = max(covered_to, end)
        own.append((covered_to, self.end))
        spans = tuple(span for span in own if span[1] > span[0]) or ((self.start, self.start),)
        group = self.group or OTHER
        kind: Kind = "memory" if group == MOVEMENT else "compute"
        return Activity(self.name, spans, "communication" if _COMMUNICATION.search(self.name) else kind, group)


def _read_host(events: Iterable[Event]) -> tuple[list[_Call], dict[int, tuple[Launch, str]]]:
    """Return operators by start time, and by correlation id a launch and its operator's group."""
    operators: list[_Call] = []
    launches: dict[int, tuple[Launch, str]] = {}
    stacks: dict[Any, list[_Call]] = {}  # the open calls of each thread
    for event in sorted(events, key=lambda event: (float(event["ts"]), -float(event["dur"]))):
        stack = stacks.setdefault(event.get("tid"), [])
        name, (start, end) = str(event["name"]), _span(event)
        while stack and stack[-1].end <= start:
            stack.pop()
        parent = stack[-1] if stack else None
        if event["cat"] in _LAUNCH:
            if (correlation := event.get("args", {}).get("correlation")) is not None:
                launches[int(correlation)] = Launch(start, end - start), parent.group if parent else ""
            continue
        call = _Call(name, start, end, group_of(name))
        if parent:
            call.end = min(end, parent.end)
            call.operator = parent.operator
            call.group = UPDATE if parent.group == UPDATE else call.group or parent.group
        if event["cat"] == "cpu_op" and not name.startswith(_ENGINE):
            if call.operator:
                call.operator.children.append((start, call.end))
            call.operator = call
            operators.append(call)
        stack.append(call)
    return operators, launches


def _kernels(events: list[Event], launches: Mapping[int, tuple[Launch, str]]) -> Iterator[Activity]:
    correlations = [int(event.get("args", {}).get("correlation", -1)) for event in events]
    started = Counter(correlations)
    for event, correlation in zip(events, correlations):
        name = str(event["name"])
        launch, group = launches.get(correlation, (None, ""))
        if launch is not None:
            launch = replace(launch, kernels=started[correlation])
        kind = _kernel_kind(name)
        group = MOVEMENT if kind == "memory" else group or group_of(name) or OTHER
        yield Activity(name, (_span(event),), kind, group, launch, int(event.get("args", {}).get("stream", 0)))


def _kernel_kind(name: str) -> Kind:
    """Return the kind of a kernel, like get_kernel_type of HTA (hta/utils/utils.py), but with newer NCCL names."""
    if "ncclKernel" in name or "ncclDevKernel" in name:
        return "communication"
    return "memory" if "Memcpy" in name or "Memset" in name else "compute"


def group_of(name: str) -> str:
    """Return the group of an operator or kernel by its name; empty if the name is not known."""
    return next((group for group, pattern in _GROUP_PATTERNS if pattern.search(name)), "")


def _span(event: Event) -> Span:
    start = float(event["ts"])
    return start, start + float(event["dur"])
