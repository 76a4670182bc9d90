"""The tables of a profile: temporal, idle, kernels and launches; and the overlap of streams.

The categories are those of Holistic Trace Analysis (HTA; hta/analyzers/breakdown_analysis.py and
cuda_kernel_analysis.py), so that figures can be compared, with two differences. HTA explains the idle time of each
stream; here the device is idle if all streams are. HTA counts cudaLaunchKernel, copies and memsets; here every call
that starts work counts, such as captured graphs and the driver's launches of compiled kernels. Times are in
microseconds. `of` has the totals that shares are relative to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from velogan.measure.traces.timeline import GROUPS, Activity, Launch, Span, Timeline

KERNEL_WAIT_US = 0.03
"""A shorter gap between kernels is overhead of the device: HTA's consecutive_kernel_delay of 30 ns."""

SLOW_LAUNCH_US, LONG_DELAY_US = 50.0, 100.0
"""HTA's runtime_cutoff and launch_delay_cutoff."""

Table = dict[str, Any]


def make_row(count: float, microseconds: float, *, totals: tuple[float, float], window: float) -> Table:
    """Return a table row: a count, a time, their shares of `totals`, and the time's share of the profiled `window`."""
    return {
        "count": count,
        "microseconds": round(microseconds, 3),
        "share_of_count": _share(count, totals[0]),
        "share_of_time": _share(microseconds, totals[1]),
        "share_of_window": _share(microseconds, window),
    }


def summarize_temporal(timeline: Timeline) -> Table:
    """Return the time in which the device computes, in which it only copies or communicates, and in which it is idle.

    Each `count` is a number of kernels (on a CPU: operators), or of gaps for `idle`.
    """
    window, work = _length(timeline.window), timeline.work
    computations = [activity for activity in work if activity.kind == "compute"]
    busy = union(span for activity in work for span in activity.spans)
    compute_spans = union(span for activity in computations for span in activity.spans)
    gaps = gaps_between(busy, timeline.window)
    compute_us, busy_us = _total(compute_spans), _total(busy)
    total = (len(work), window)
    return {
        "compute": make_row(len(computations), compute_us, totals=total, window=window),
        "non_compute": make_row(len(work) - len(computations), busy_us - compute_us, totals=total, window=window),
        "idle": make_row(len(gaps), window - busy_us, totals=(len(gaps), window), window=window),
        "of": {"count": len(work), "microseconds": round(window, 3), "steps": len(timeline.steps)},
    }


def summarize_idle(timeline: Timeline) -> Table:
    """Return the idle time of a CUDA device by reason.

    host_wait: the next kernel was launched only after the last one had ended
    kernel_wait: a gap of less than 30 ns between kernels in the queue
    other: the rest
    """
    busy = union(span for activity in timeline.work for span in activity.spans)
    starts = {activity.start: activity for activity in reversed(timeline.work)}
    gaps: dict[str, list[float]] = {"host_wait": [], "kernel_wait": [], "other": []}
    for start, end in gaps_between(busy, timeline.window):
        gaps[_idle_reason(starts.get(end), start, end)].append(end - start)
    totals = (sum(map(len, gaps.values())), sum(map(sum, gaps.values())))
    window = _length(timeline.window)
    rows = {reason: make_row(len(times), sum(times), totals=totals, window=window) for reason, times in gaps.items()}
    return rows | {"of": {"count": totals[0], "microseconds": round(totals[1], 3)}}


def _idle_reason(following: Activity | None, start: float, end: float) -> str:
    if following is not None and following.launch is not None and following.launch.start > start:
        return "host_wait"
    return "kernel_wait" if end - start < KERNEL_WAIT_US else "other"


def summarize_kernels(timeline: Timeline, *, top: int = 15) -> Table:
    """Return kernel (on a CPU: operator) time by kind, by group, and for the `top` names by time.

    Copies are also listed by kind, in `by_memory_kind`. Shares are relative to all kernels and their total duration.
    """
    work, window = timeline.work, _length(timeline.window)
    totals = (len(work), _duration(work))

    def summarize(activities: Sequence[Activity]) -> Table:
        return make_row(len(activities), _duration(activities), totals=totals, window=window)

    memory = [activity for activity in work if activity.kind == "memory"]
    # by the start of the name as in HTA ("Memcpy DtoH"); on a CPU by the operator's name
    by_memory = _group_by(memory, lambda a: a.name[:11] if a.name.startswith("Memcpy") else a.name.split(" (")[0])
    by_name = _group_by(work, lambda activity: (activity.name, activity.group))
    longest = sorted(by_name.values(), key=_duration, reverse=True)[:top]
    return {
        **{kind: summarize([a for a in work if a.kind == kind]) for kind in ("compute", "memory", "communication")},
        "by_memory_kind": {name: summarize(copies) for name, copies in sorted(by_memory.items())},
        "by_group": {group: summarize([a for a in work if a.group == group]) for group in GROUPS},
        "top": [{"name": a.name, "group": a.group, "kind": a.kind} | summarize([a, *others]) for a, *others in longest],
        "of": {"count": totals[0], "microseconds": round(totals[1], 3), "names": len(by_name)},
    }


def summarize_launches(timeline: Timeline) -> Table:
    """Return the kernel launches that may slow down a CUDA device.

    short: kernels that take less time than their launch; shares are relative to all kernels and their time
    slow: launching calls of more than 50 us; shares are relative to all such calls and their time
    delayed: kernels that start more than 100 us after their launch; shares are relative to all delays. Delays overlap
        with each other and with work, and do no harm if the queue is full, so their share of the window is None.
    delays, shorter: histograms of the delays, and of the durations of `short` kernels

    The launch of a captured graph is divided evenly among its kernels; only the first of them has a delay.
    """
    launched = [(activity, activity.launch) for activity in timeline.work if activity.launch is not None]
    window = _length(timeline.window)
    times = [activity.microseconds for activity, _ in launched]
    short = [time for time, (_, launch) in zip(times, launched) if time < launch.duration / launch.kernels]
    calls = {launch: launch.duration for _, launch in launched}
    slow = [duration for duration in calls.values() if duration > SLOW_LAUNCH_US]
    delays = _delays(launched)
    long = [delay for delay in delays if delay > LONG_DELAY_US]
    totals = {
        name: (len(durations), sum(durations))
        for name, durations in (("kernels", times), ("launches", calls.values()), ("delays", delays))
    }
    return {
        "short": make_row(len(short), sum(short), totals=totals["kernels"], window=window),
        "slow": make_row(len(slow), sum(slow), totals=totals["launches"], window=window),
        "delayed": make_row(len(long), sum(long), totals=totals["delays"], window=window) | {"share_of_window": None},
        "of": {name: {"count": count, "microseconds": round(time, 3)} for name, (count, time) in totals.items()},
        "delays": histogram(delays),
        "shorter": histogram(short),
    }


def _delays(launched: Iterable[tuple[Activity, Launch]]) -> list[float]:
    starts: dict[Launch, float] = {}
    for activity, launch in launched:
        starts[launch] = min(starts.get(launch, activity.start), activity.start)
    return [max(start - launch.end, 0.0) for launch, start in starts.items()]


def histogram(durations: Iterable[float]) -> list[dict[str, float]]:
    """Return counts and sums of durations by bin (edges 1, 2, 5, 10, ... us), without empty bins at the end."""
    edges = [step * 10.0**power for power in range(7) for step in (1, 2, 5)]
    bins = [{"below": edge, "count": 0, "microseconds": 0.0} for edge in edges]
    for duration in durations:
        bin_ = next((bin_ for bin_ in bins if duration < bin_["below"]), bins[-1])
        bin_["count"] += 1
        bin_["microseconds"] += duration
    while bins and not bins[-1]["count"]:
        bins.pop()
    return bins


def summarize_streams(timeline: Timeline) -> Table | None:
    """Return the work of each stream in a step from the middle of the profile; None if there is only one stream.

    lanes: the spans of each stream, merged by group, in us from the step's first kernel
    overlap: the time in which two or more streams ran; its share is of the step's busy time
    """
    start, end = step = _middle_step(timeline)
    inside = [activity for activity in timeline.work if start <= activity.start < end]
    by_stream = _group_by(inside, lambda activity: activity.stream)
    if len(by_stream) < 2:
        return None
    busy = {stream: union(span for activity in work for span in activity.spans) for stream, work in by_stream.items()}
    overlap = _overlap(busy.values())
    return {
        "microseconds": round(_length(step), 3),
        "lanes": [{"stream": stream, "spans": _merge_groups(work, step)} for stream, work in sorted(by_stream.items())],
        "overlap": {
            "microseconds": round(overlap, 3),
            "share_of_busy": _share(overlap, _total(union(span for spans in busy.values() for span in spans))),
        },
    }


def _overlap(busy: Iterable[Sequence[Span]]) -> float:
    """Return the time that the spans of two or more streams cover."""
    overlap, last_time = 0.0, 0.0
    running = 0
    for time, change in sorted(
        (time, change) for spans in busy for span in spans for time, change in zip(span, (1, -1))
    ):
        overlap += (time - last_time) * (running > 1)
        last_time, running = time, running + change
    return overlap


def _merge_groups(work: Iterable[Activity], step: Span) -> list[Table]:
    """Return the spans of `work` in us from the step's start; those of one group with small gaps are merged."""
    merged: list[Table] = []
    for activity in work:
        start, end = activity.start - step[0], activity.spans[-1][1] - step[0]
        last = merged[-1] if merged else None
        if last and last["group"] == activity.group and start - last["end"] < _length(step) / 500:
            last["end"] = max(last["end"], end)
        else:
            merged.append({"group": activity.group, "start": start, "end": end})
    return merged


def _middle_step(timeline: Timeline) -> Span:
    """Return the span from the first kernel of the middle step to the first kernel of the next step."""
    first_kernels = [
        min((a.start for a in timeline.work if a.launch is not None and start <= a.launch.start <= end), default=start)
        for start, end in timeline.steps
    ]
    first_kernels.append(timeline.window[1])
    number = len(timeline.steps) // 2
    return first_kernels[number], first_kernels[number + 1]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the union of `spans`, as sorted spans that do not touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def gaps_between(busy: Sequence[Span], window: Span) -> list[Span]:
    """Return the parts of `window` that `busy`, a result of `union`, does not cover."""
    gaps, covered_to = [], window[0]
    for start, end in busy:
        if min(start, window[1]) > covered_to:
            gaps.append((covered_to, min(start, window[1])))
        covered_to = max(covered_to, end)
    return gaps + ([(covered_to, window[1])] if window[1] > covered_to else [])


def _group_by(work: Iterable[Activity], key: Callable[[Activity], Any]) -> dict[Any, list[Activity]]:
    groups: dict[Any, list[Activity]] = {}
    for activity in work:
        groups.setdefault(key(activity), []).append(activity)
    return groups


def _duration(work: Iterable[Activity]) -> float:
    return sum(activity.microseconds for activity in work)


def _length(span: Span) -> float:
    return span[1] - span[0]


def _total(spans: Iterable[Span]) -> float:
    return sum(map(_length, spans))


def _share(part: float, total: float) -> float | None:
    return round(part / total, 5) if total > 0 else None
