"""Live memory during a profiled step, by category and network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.measure.traces.timeline import REST, Allocation, Span, Timeline

WEIGHTS, MOMENTS, AVERAGES, POOL, GRADIENTS, ACTIVATIONS, IMAGES, TEMPORARY = CATEGORIES = (
    "weights",
    "moments",
    "averages",
    "pool of fakes",
    "gradients",
    "activations",
    "images",
    "temporary",
)


@dataclass(frozen=True)
class Held:
    """A tensor that was allocated before the profile began; `size` is in bytes."""

    category: str
    network: str
    size: int


def memory_timeline(timeline: Timeline, held: Mapping[int, Held], *, points: int = 400) -> dict[str, Any]:
    """Live bytes in the trace's last step: `held`, by address, and the trace's allocations.

    The trace does not show that CPU memory from before the profile is freed. So profile at least two steps, and put
    only memory that stays into `held`.

    `activations` are allocated in a forward pass and live when the phase's backward pass begins. `gradients` are
    allocated in a backward pass and live when the update begins. `temporary` is freed before that: workspace, gradients
    of activations. `images` are allocated outside the phases. Memory that a library allocates without torch's allocator
    is not counted.

    Returns `microseconds` (from the step's start), `series` (`category`, `network`, `bytes` at each of them) and `peak`
    (`bytes`, `microseconds`). The step's time is divided into `points` equal parts; from each the moment with the most
    memory is kept. ValueError for a trace without allocations.
    """
    events = [one for one in timeline.allocations if one.on_device == (timeline.device == "cuda")]
    if not events:
        raise ValueError("the trace has no allocations: profile with profile_memory=True")
    start, end = timeline.steps[-1]
    live: Counter[tuple[str, str]] = Counter()
    for one in held.values():
        live[one.category, one.network] += one.size
    kept = {0: (start, live.copy())}
    total = live.total()
    for time, key, size in sorted(_changes(events, held, timeline), key=lambda change: change[0]):
        if time > end:
            break
        live[key] += size
        total += size
        part = max(int(points * (time - start) / (end - start)), 0)
        if time < start or part not in kept or total > kept[part][1].total():
            kept[part] = max(time, start), live.copy()
    states = [kept[part] for part in sorted(kept)]
    keys = sorted({key for _, state in states for key in state if state[key]}, key=_order)
    peak_time, peak = max(states, key=lambda state: state[1].total())
    return {
        "microseconds": [round(max(time - start, 0.0), 1) for time, _ in states],
        "series": [
            {"category": category, "network": network, "bytes": [state[category, network] for _, state in states]}
            for category, network in keys
        ],
        "peak": {"bytes": peak.total(), "microseconds": round(max(peak_time - start, 0.0), 1)},
    }


def _order(key: tuple[str, str]) -> tuple[int, str]:
    return CATEGORIES.index(key[0]), key[1]


def _changes(
    events: Sequence[Allocation], held: Mapping[int, Held], timeline: Timeline
) -> list[tuple[float, tuple[str, str], int]]:
    freed: dict[int, float] = {}  # by number of the event that allocated
    open_: dict[int, int] = {}
    changes = []
    known = dict(held)
    for number, event in enumerate(events):
        if event.size > 0:
            open_[event.address] = number
        elif (begun := open_.pop(event.address, None)) is not None:
            freed[begun] = event.time
        elif (was := known.pop(event.address, None)) is not None:
            changes.append((event.time, (was.category, was.network), -was.size))
    phases = [_PhaseTimes(span, _first(timeline.updates, span), _backward(events, span)) for _, span in timeline.phases]
    for number, event in enumerate(events):
        if event.size > 0:
            end = freed.get(number, float("inf"))
            key = (_category(event, end, phases), event.place.network)
            changes.append((event.time, key, event.size))
            if number in freed:
                changes.append((end, key, -event.size))
    return changes


@dataclass(frozen=True)
class _PhaseTimes:
    """A phase in the trace: its span, and the start of its update and of its backward pass."""

    span: Span
    update: float
    backward: float


def _category(event: Allocation, end: float, phases: Sequence[_PhaseTimes]) -> str:
    phase = next((phase for phase in phases if phase.span[0] <= event.time <= phase.span[1]), None)
    if phase is None or event.place.network == REST:
        return IMAGES
    match event.place.way:
        case "backward":
            return GRADIENTS if end >= phase.update else TEMPORARY
        case "update":
            return MOMENTS if end == float("inf") else TEMPORARY
        case _:
            return ACTIVATIONS if end > phase.backward else TEMPORARY


def _first(updates: Sequence[Span], within: Span) -> float:
    return next((start for start, _ in updates if within[0] <= start <= within[1]), float("inf"))


def _backward(events: Sequence[Allocation], within: Span) -> float:
    times = (one.time for one in events if one.place.way == "backward" and within[0] <= one.time <= within[1])
    return next(times, float("inf"))
