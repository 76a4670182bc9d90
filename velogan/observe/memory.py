"""Live memory over a profiled step, by what it holds and by network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.observe.timeline import REST, Allocation, Span, Timeline

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
    """A tensor's memory that was there before the profile began, in bytes."""

    category: str
    network: str
    size: int


def memory_timeline(timeline: Timeline, held: Mapping[int, Held], *, points: int = 400) -> dict[str, Any]:
    """Live bytes in the trace's last step: `held`, by address, and what the trace's allocations add and give back.

    A CPU's memory that was taken before the profile is not seen to be given back. Hence at least one step should come
    before the last, and `held` should be what stays.

    `activations` were made in a forward pass and are there when the phase's backward pass begins; `gradients` were made
    in a backward pass and are there when the update begins; `temporary` is what comes and goes in between: workspace,
    gradients of activations. `images` were made outside the phases. Memory that a library takes past torch's allocator
    is not seen.

    Returns `microseconds` (from the step's start), `series` (`category`, `network`, `bytes` at each of them) and `peak`
    (`bytes`, `microseconds`). Of each of `points` equal parts of the time the moment with the most memory is kept.
    ValueError for a trace without allocations.
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
    freed: dict[int, float] = {}  # by the event's number
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
    moves = [_Move(span, _first(timeline.updates, span), _backward(events, span)) for _, span in timeline.phases]
    for number, event in enumerate(events):
        if event.size > 0:
            end = freed.get(number, float("inf"))
            key = (_category(event, end, moves), event.place.network)
            changes.append((event.time, key, event.size))
            if number in freed:
                changes.append((end, key, -event.size))
    return changes


@dataclass(frozen=True)
class _Move:
    """A phase in the trace: when it, its update and its backward pass were."""

    span: Span
    update: float
    backward: float


def _category(event: Allocation, end: float, moves: Sequence[_Move]) -> str:
    move = next((move for move in moves if move.span[0] <= event.time <= move.span[1]), None)
    if move is None or event.place.network == REST:
        return IMAGES
    match event.place.way:
        case "backward":
            return GRADIENTS if end >= move.update else TEMPORARY
        case "update":
            return MOMENTS if end == float("inf") else TEMPORARY
        case _:
            return ACTIVATIONS if end > move.backward else TEMPORARY


def _first(updates: Sequence[Span], within: Span) -> float:
    return next((start for start, _ in updates if within[0] <= start <= within[1]), float("inf"))


def _backward(events: Sequence[Allocation], within: Span) -> float:
    times = (one.time for one in events if one.place.way == "backward" and within[0] <= one.time <= within[1])
    return next(times, float("inf"))
