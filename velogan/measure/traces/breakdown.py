"""The four tables of a profiled training: temporal, idle, kernels and launches; and the overlap of streams.

Each share comes with its denominator. The categories are those of Holistic Trace Analysis (HTA;
hta/analyzers/breakdown_analysis.py and cuda_kernel_analysis.py), so that figures can be compared with others. Two
things differ. HTA explains the idle time of each stream; here the device is idle only if no stream runs anything. HTA
counts cudaLaunchKernel, copies and memsets; here every call that starts work counts, such as captured graphs and the
driver's launches of compiled kernels. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from velogan.measure.traces.timeline import GROUPS, Activity, Launch, Span, Timeline

KERNEL_WAIT_US = 0.03
"""A shorter gap between kernels is the device's own overhead: HTA's consecutive_kernel_delay of 30 ns."""

SLOW_LAUNCH_US, LONG_DELAY_US = 50.0, 100.0
"""HTA's runtime_cutoff and launch_delay_cutoff."""

Answer = dict[str, Any]


def figure(count: float, microseconds: float, *, of: tuple[float, float], window: float) -> Answer:
    """A count and a time, with their shares: `of` holds the total count and time, `window` the profiled time."""
    return {
        "count": count,
        "microseconds": round(microseconds, 3),
        "share_of_count": _share(count, of[0]),
        "share_of_time": _share(microseconds, of[1]),
        "share_of_window": _share(microseconds, window),
    }


def temporal(timeline: Timeline) -> Answer:
    """Time with computation, with copies or communication alone, and with nothing.

    Counts are kernels or operators; for `idle` they are gaps.
    """
    window, work = _length(timeline.window), timeline.work
    busy = union(span for one in work for span in one.spans)
    compute = union(span for one in work if one.kind == "compute" for span in one.spans)
    gaps = gaps_between(busy, timeline.window)
    computing, working = _total(compute), _total(busy)
    counts = (sum(one.kind == "compute" for one in work), sum(one.kind != "compute" for one in work))
    return {
        "compute": figure(counts[0], computing, of=(len(work), window), window=window),
        "non_compute": figure(counts[1], working - computing, of=(len(work), window), window=window),
        "idle": figure(len(gaps), window - working, of=(len(gaps), window), window=window),
        "of": {"count": len(work), "microseconds": round(window, 3), "steps": len(timeline.steps)},
    }


def idle(timeline: Timeline) -> Answer:
    """Return why nothing ran on a device of CUDA.

    `host_wait`: the next kernel was launched only after the last one had ended. `kernel_wait`: a gap of less than 30 ns
    between kernels in the queue. `other`: the rest.
    """
    busy = union(span for activity in timeline.work for span in activity.spans)
    starts = {activity.start: activity for activity in reversed(timeline.work)}
    gaps: dict[str, list[float]] = {"host_wait": [], "kernel_wait": [], "other": []}
    for start, end in gaps_between(busy, timeline.window):
        gaps[_reason(starts.get(end), start, end)].append(end - start)
    of = (sum(map(len, gaps.values())), sum(map(sum, gaps.values())))
    window = _length(timeline.window)
    answer = {name: figure(len(parts), sum(parts), of=of, window=window) for name, parts in gaps.items()}
    return answer | {"of": {"count": of[0], "microseconds": round(of[1], 3)}}


def _reason(following: Activity | None, start: float, end: float) -> str:
    if following is not None and following.launch is not None and following.launch.start > start:
        return "host_wait"
    return "kernel_wait" if end - start < KERNEL_WAIT_US else "other"


def kernels(timeline: Timeline, *, top: int = 15) -> Answer:
    """Kernels (on a CPU, operators): by kind, memory kernels by name, by group, and the `top` names by time.

    Shares are of all kernels and of the sum of their durations.
    """
    work, window = timeline.work, _length(timeline.window)
    of = (len(work), sum(one.microseconds for one in work))

    def amount(chosen: Sequence[Activity]) -> Answer:
        return figure(len(chosen), sum(one.microseconds for one in chosen), of=of, window=window)

    memory = [one for one in work if one.kind == "memory"]
    by_name = _by(work, lambda one: (one.name, one.group))
    first = sorted(by_name.values(), key=lambda group: -sum(one.microseconds for one in group))[:top]
    return {
        **{kind: amount([one for one in work if one.kind == kind]) for kind in ("compute", "memory", "communication")},
        "by_memory_kind": {name: amount(chosen) for name, chosen in sorted(_by(memory, _memory_kind).items())},
        "by_group": {name: amount([one for one in work if one.group == name]) for name in GROUPS},
        "top": [
            {"name": group[0].name, "group": group[0].group, "kind": group[0].kind} | amount(group) for group in first
        ],
        "of": {"count": of[0], "microseconds": round(of[1], 3), "names": len(by_name)},
    }


def _memory_kind(work: Activity) -> str:
    """The start of the kernel's name as in HTA ("Memcpy DtoH"); on a CPU the operator's name."""
    return work.name[:11] if work.name.startswith("Memcpy") else work.name.split(" (")[0]


def launches(timeline: Timeline) -> Answer:
    """Return launches of a device of CUDA that may cost time: `short`, `slow` and `delayed`.

    `short`: kernels that run shorter than their launch takes; shares are of kernels and their time. `slow`: launching
    calls of more than 50 us; shares are of launching calls and their time. `delayed`: kernels that start more than
    100 us after their launch; shares are of first kernels and of the sum of delays. Delays overlap each other and work,
    and a full queue costs nothing, so their share of the window is None.

    The launch of a captured graph is divided evenly among its kernels; only the first of them has a delay.

    `delays` and `shorter` (durations of kernels that are `short`) are the distributions, as `histogram` gives them.
    """
    launched = [(activity, activity.launch) for activity in timeline.work if activity.launch is not None]
    window = _length(timeline.window)
    times = [activity.microseconds for activity, _ in launched]
    short = [time for time, (_, launch) in zip(times, launched) if time < launch.duration / launch.kernels]
    calls = {launch: launch.duration for _, launch in launched}
    slow = [duration for duration in calls.values() if duration > SLOW_LAUNCH_US]
    delays = _delays(launched)
    long = [delay for delay in delays if delay > LONG_DELAY_US]
    of = {
        name: (len(all_), sum(all_))
        for name, all_ in (("kernels", times), ("launches", calls.values()), ("delays", delays))
    }
    return {
        "short": figure(len(short), sum(short), of=of["kernels"], window=window),
        "slow": figure(len(slow), sum(slow), of=of["launches"], window=window),
        "delayed": figure(len(long), sum(long), of=of["delays"], window=window) | {"share_of_window": None},
        "of": {name: {"count": count, "microseconds": round(time, 3)} for name, (count, time) in of.items()},
        "delays": histogram(delays),
        "shorter": histogram(short),
    }


def _delays(launched: Iterable[tuple[Activity, Launch]]) -> list[float]:
    first: dict[Launch, float] = {}
    for one, launch in launched:
        first[launch] = min(first.get(launch, one.start), one.start)
    return [max(start - launch.end, 0.0) for launch, start in first.items()]


def histogram(durations: Iterable[float]) -> list[dict[str, float]]:
    """Counts and summed microseconds of durations below 1, 2, 5, 10, ... us, without empty bins at the end."""
    edges = [step * 10.0**power for power in range(7) for step in (1, 2, 5)]
    bins = [{"below": edge, "count": 0, "microseconds": 0.0} for edge in edges]
    for duration in durations:
        place = next((found for found in bins if duration < found["below"]), bins[-1])
        place["count"] += 1
        place["microseconds"] += duration
    while bins and not bins[-1]["count"]:
        bins.pop()
    return bins


def streams(timeline: Timeline) -> Answer | None:
    """Return a step in the middle of the profile by stream of the device; None if there is one stream.

    `lanes` hold the spans of work of each stream, merged by group, in us from the step's first kernel. `overlap` is the
    time in which two or more streams ran at once; its share is of the step's busy time.
    """
    start, end = step = _middle_step(timeline)
    inside = [activity for activity in timeline.work if start <= activity.start < end]
    by_stream = _by(inside, lambda activity: activity.stream)
    if len(by_stream) < 2:
        return None
    busy = {stream: union(span for activity in work for span in activity.spans) for stream, work in by_stream.items()}
    together = _overlaps(busy.values())
    return {
        "microseconds": round(_length(step), 3),
        "lanes": [{"stream": stream, "spans": _by_group(work, step)} for stream, work in sorted(by_stream.items())],
        "overlap": {
            "microseconds": round(together, 3),
            "share_of_busy": _share(together, _total(union(span for spans in busy.values() for span in spans))),
        },
    }


def _overlaps(busy: Iterable[Sequence[Span]]) -> float:
    """The time that two or more of the streams' spans cover."""
    together, before, running = 0.0, 0.0, 0
    for time, change in sorted(
        (time, change) for spans in busy for span in spans for time, change in zip(span, (1, -1))
    ):
        together += (time - before) * (running > 1)
        before, running = time, running + change
    return together


def _by_group(work: Iterable[Activity], step: Span) -> list[Answer]:
    """Return the spans of `work`, in order of time, in us from the step's start; merged if group and place allow."""
    merged: list[Answer] = []
    for activity in work:
        start, end = activity.start - step[0], activity.spans[-1][1] - step[0]
        last = merged[-1] if merged else None
        if last and last["group"] == activity.group and start - last["end"] < _length(step) / 500:
            last["end"] = max(last["end"], end)
        else:
            merged.append({"group": activity.group, "start": start, "end": end})
    return merged


def _middle_step(timeline: Timeline) -> Span:
    """Return the span from the first kernel of a step in the middle to that of the next."""
    first_kernels = [
        min((a.start for a in timeline.work if a.launch is not None and start <= a.launch.start <= end), default=start)
        for start, end in timeline.steps
    ]
    first_kernels.append(timeline.window[1])
    number = len(timeline.steps) // 2
    return first_kernels[number], first_kernels[number + 1]


def union(spans: Iterable[Span]) -> list[Span]:
    """The union of `spans`, as spans that do not touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def gaps_between(busy: Sequence[Span], window: Span) -> list[Span]:
    """The parts of `window` that `busy`, a result of `union`, does not cover."""
    gaps, at = [], window[0]
    for start, end in busy:
        if min(start, window[1]) > at:
            gaps.append((at, min(start, window[1])))
        at = max(at, end)
    return gaps + ([(at, window[1])] if window[1] > at else [])


def _by(work: Iterable[Activity], key: Any) -> dict[Any, list[Activity]]:
    found: dict[Any, list[Activity]] = {}
    for one in work:
        found.setdefault(key(one), []).append(one)
    return found


def _length(span: Span) -> float:
    return span[1] - span[0]


def _total(spans: Iterable[Span]) -> float:
    return sum(map(_length, spans))


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 5) if whole > 0 else None
