"""Answers four questions about a profiled training, and says which phase and network the time belongs to.

Each share comes with its denominator. The categories are those of Holistic Trace Analysis (HTA;
hta/analyzers/breakdown_analysis.py and cuda_kernel_analysis.py), so that figures can be compared with others. Two
things differ. HTA explains the idle time of each stream; here the device is idle only if no stream runs anything. HTA
counts cudaLaunchKernel, copies and memsets; here every call that starts work counts, such as captured graphs and the
driver's launches of compiled kernels. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from velogan.measure.traces.timeline import GROUPS, LOADER, REST, Activity, Launch, Span, Timeline

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
    """Why nothing ran.

    `host_wait`: the next kernel was launched only after the last one had ended. `kernel_wait`: a gap of less than 30 ns
    between kernels in the queue. `other`: the rest.

    A CPU has no queue. There `host_wait` is the idle time within phases, which Python takes between two operators;
    `other` is the idle time outside phases: loader, averages, statistics. `kernel_wait` is None.
    """
    on_cpu = timeline.device == "cpu"
    busy = union(span for one in timeline.work for span in one.spans)
    gaps = gaps_between(busy, timeline.window)
    found: dict[str, list[float]] = {"host_wait": [], "kernel_wait": [], "other": []}
    if on_cpu:
        phases = union(span for _, span in timeline.phases)
        found["host_wait"] = _within(gaps, phases)
        found["other"] = _within(gaps, gaps_between(phases, timeline.window))
    else:
        starts = {one.start: one for one in reversed(timeline.work)}
        for start, end in gaps:
            found[_reason(starts.get(end), start, end)].append(end - start)
    of = (sum(map(len, found.values())), sum(map(sum, found.values())))
    window = _length(timeline.window)
    answer = {name: figure(len(parts), sum(parts), of=of, window=window) for name, parts in found.items()}
    if on_cpu:
        answer |= {"kernel_wait": None}
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
    """Launches that may cost time: `short`, `slow` and `delayed`.

    `short`: kernels that run shorter than their launch takes; shares are of kernels and their time. `slow`: launching
    calls of more than 50 us; shares are of launching calls and their time. `delayed`: kernels that start more than
    100 us after their launch; shares are of first kernels and of the sum of delays. Delays overlap each other and work,
    and a full queue costs nothing, so their share of the window is None.

    The launch of a captured graph is divided evenly among its kernels; only the first of them has a delay.

    On a CPU the kernels are the operators that Python or autograd calls. A launch is the host's time since the last
    operator. `delayed` and `delays` are None, as an operator runs when it is called.

    `durations` (of launches), `delays`, `kernels` and `shorter` (durations of all kernels, and of those that are
    `short`) are the distributions, as `histogram` gives them.
    """
    launched = [(one, one.launch) for one in timeline.work if one.launch is not None]
    if timeline.device == "cpu":
        launched = [(one, launch) for one, launch in launched if one.place.network not in (REST, LOADER)]
    window = _length(timeline.window)
    times = [one.whole for one, _ in launched]
    short = [one.whole for one, launch in launched if one.whole < launch.duration / launch.kernels]
    calls = {(launch.start, launch.duration): launch for _, launch in launched}
    slow = [launch.duration for launch in calls.values() if launch.duration > SLOW_LAUNCH_US]
    spent = sum(launch.duration for launch in calls.values())
    answer: Answer = {
        "short": figure(len(short), sum(short), of=(len(times), sum(times)), window=window),
        "slow": figure(len(slow), sum(slow), of=(len(calls), spent), window=window),
        "delayed": None,
        "of": {
            "kernels": {"count": len(times), "microseconds": round(sum(times), 3)},
            "launches": {"count": len(calls), "microseconds": round(spent, 3)},
            "delays": None,
        },
        "durations": histogram(launch.duration for launch in calls.values()),
        "kernels": histogram(times),
        "shorter": histogram(short),
        "delays": None,
    }
    if timeline.device == "cuda":
        delays = _delays(launched)
        long = [delay for delay in delays if delay > LONG_DELAY_US]
        answer["delayed"] = figure(len(long), sum(long), of=(len(delays), sum(delays)), window=window)
        answer["delayed"]["share_of_window"] = None
        answer["delays"] = histogram(delays)
        answer["of"]["delays"] = {"count": len(delays), "microseconds": round(sum(delays), 3)}
    return answer


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


def owners(timeline: Timeline) -> list[Answer]:
    """Busy time by phase, network and way, in order of first appearance; shares are of all busy time and the window."""
    window = _length(timeline.window)
    of = (len(timeline.work), sum(one.microseconds for one in timeline.work))
    rows = []
    for place, chosen in _by(timeline.work, lambda one: one.place).items():
        groups = {
            name: sum(one.microseconds for one in found) for name, found in _by(chosen, lambda o: o.group).items()
        }
        amount = figure(len(chosen), sum(groups.values()), of=of, window=window)
        rows.append({**vars(place), **amount, "by_group": {name: round(time, 3) for name, time in groups.items()}})
    return rows


def idle_by_phase(timeline: Timeline) -> list[Answer]:
    """Wall time and idle time on the host's clock within each phase, and outside all of them ("").

    Empty on CUDA, where kernels do not run when they are called.
    """
    if timeline.device != "cpu":
        return []
    busy = union(span for one in timeline.work for span in one.spans)
    gaps = gaps_between(busy, timeline.window)
    rows: dict[str, list[float]] = {}
    for name, span in timeline.phases:
        wall, empty = rows.setdefault(name, [0.0, 0.0])
        rows[name] = [wall + _length(span), empty + sum(_overlap(gap, span) for gap in gaps)]
    inside = [sum(row[i] for row in rows.values()) for i in (0, 1)]
    rows[""] = [_length(timeline.window) - inside[0], _total(gaps) - inside[1]]
    return [
        {"phase": name, "microseconds": round(wall, 3), "idle": round(empty, 3), "idle_share": _share(empty, wall)}
        for name, (wall, empty) in rows.items()
    ]


def strip(timeline: Timeline) -> Answer:
    """The spans of work of one step in the middle of the profile, merged by place, in us from the step's start.

    On a CPU the step begins when the last one ended, so that it includes loading; on CUDA with its first kernel.
    """
    start, end = _middle_step(timeline)
    return {"microseconds": round(end - start, 3), "spans": _by_place(timeline.work, (start, end))}


def streams(timeline: Timeline) -> Answer | None:
    """The step of `strip` by stream of the device, and the time in which two or more ran at once; None on one stream.

    `spans` by stream are as those of `strip`; the share of `overlap` is of the step's busy time.
    """
    step = _middle_step(timeline)
    inside = [one for one in timeline.work if step[0] <= one.start < step[1]]
    by_stream = dict(sorted(_by([one for one in inside if one.stream is not None], lambda one: one.stream).items()))
    if len(by_stream) < 2:
        return None
    busy = {stream: union(span for one in work for span in one.spans) for stream, work in by_stream.items()}
    together = _overlaps(busy.values())
    return {
        "microseconds": round(_length(step), 3),
        "lanes": [{"stream": stream, "spans": _by_place(work, step)} for stream, work in by_stream.items()],
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


def _by_place(work: Iterable[Activity], window: Span) -> list[Answer]:
    """The spans of work that begins within `window`, merged by place, in us from its start."""
    start, end = window
    merged: list[Answer] = []
    for one in sorted((one for one in work if start <= one.start < end), key=lambda one: one.start):
        place, last = vars(one.place), merged[-1] if merged else {}
        begin, finish = one.start - start, one.spans[-1][1] - start
        if last.items() >= place.items() and begin - last["end"] < (end - start) / 500:
            last["end"] = max(last["end"], finish)
        else:
            merged.append({**place, "start": begin, "end": finish})
    return merged


def _middle_step(timeline: Timeline) -> Span:
    number = len(timeline.steps) // 2
    if timeline.device == "cpu":
        return timeline.steps[number - 1][1] if number else timeline.window[0], timeline.steps[number][1]
    begins = []
    for start, end in timeline.steps:
        ours = [one.start for one in timeline.work if one.launch is not None and start <= one.launch.start <= end]
        begins.append(min(ours, default=start))
    begins.append(timeline.window[1])
    return begins[number], begins[number + 1]


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


def _overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _within(gaps: Iterable[Span], spans: Sequence[Span]) -> list[float]:
    parts = (_overlap(gap, span) for gap in gaps for span in spans)
    return [part for part in parts if part > 0]


def _length(span: Span) -> float:
    return span[1] - span[0]


def _total(spans: Iterable[Span]) -> float:
    return sum(map(_length, spans))


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 5) if whole > 0 else None
