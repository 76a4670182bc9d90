"""The tables of the trace written by hand; their figures are computed by hand too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from velogan.measure.traces.breakdown import (
    gaps_between,
    histogram,
    idle,
    kernels,
    launches,
    streams,
    temporal,
    union,
)
from velogan.measure.traces.reading import load_events, read_timeline
from velogan.measure.traces.timeline import Activity, Launch, Timeline

WINDOW = 470 - 50
BUSY = 100 + 10 + 4 + 100 + (470 - 450)  # convolution, mean, its gradient, the convolution's, and what overlaps
KERNELS = 100 + 10 + 4 + 100 + 4 + 10 + 14


@pytest.fixture
def timeline() -> Timeline:
    events = load_events(Path(__file__).with_name("cuda_trace.json"))
    return read_timeline(events)


def _close(figure: dict[str, Any], count: int, microseconds: float, *, counts: float, time: float, window: float = 0):
    assert figure["count"] == count
    assert figure["microseconds"] == pytest.approx(microseconds)
    assert figure["share_of_count"] == pytest.approx(count / counts, abs=1e-5)
    assert figure["share_of_time"] == pytest.approx(microseconds / time, abs=1e-5)
    assert figure["share_of_window"] == pytest.approx(microseconds / (window or WINDOW), abs=1e-5)


def test_temporal(timeline: Timeline):
    found = temporal(timeline)
    compute = 100 + 10 + 4 + 100 + 10
    _close(found["compute"], 5, compute, counts=7, time=WINDOW)
    _close(found["non_compute"], 2, 4 + 6, counts=7, time=WINDOW)  # the copy overlaps the update for 8 us of its 14
    _close(found["idle"], 4, WINDOW - BUSY, counts=4, time=WINDOW)
    assert found["of"] == {"count": 7, "microseconds": WINDOW, "steps": 1}


def test_idle(timeline: Timeline):
    found = idle(timeline)
    late = (220 - 160.02) + (320 - 224)  # launched at 205 and 250, when nothing ran
    _close(found["host_wait"], 2, late, counts=4, time=WINDOW - BUSY)
    _close(found["kernel_wait"], 1, 0.02, counts=4, time=WINDOW - BUSY)
    _close(found["other"], 1, 450 - 420, counts=4, time=WINDOW - BUSY)  # launched long before
    assert found["of"] == {"count": 4, "microseconds": pytest.approx(WINDOW - BUSY)}


def test_kernels(timeline: Timeline):
    found = kernels(timeline, top=2)
    _close(found["compute"], 5, KERNELS - 18, counts=7, time=KERNELS)
    _close(found["memory"], 2, 4 + 14, counts=7, time=KERNELS)
    _close(found["communication"], 0, 0, counts=7, time=KERNELS)
    assert set(found["by_memory_kind"]) == {"Memset", "Memcpy DtoH"}
    _close(found["by_memory_kind"]["Memcpy DtoH"], 1, 14, counts=7, time=KERNELS)
    _close(found["by_group"]["convolution"], 2, 200, counts=7, time=KERNELS)
    assert {one["name"] for one in found["top"]} == {"implicit_convolve_sgemm<float, 3>", "cudnn::wgrad_kernel"}
    assert found["of"] == {"count": 7, "microseconds": pytest.approx(KERNELS), "names": 7}


def test_launches(timeline: Timeline):
    found = launches(timeline)
    spent = 10 + 5 + 10 + 60 + 2 + 5 + 3  # the synchronisation launches nothing
    delays = (50 - 40) + (150.02 - 120) + (220 - 215) + (320 - 310) + (450 - 334) + (454 - 425) + (456 - 433)
    _close(found["short"], 1, 4, counts=7, time=KERNELS)
    _close(found["slow"], 1, 60, counts=7, time=spent)
    assert found["delayed"].pop("share_of_window") is None
    _close(found["delayed"] | {"share_of_window": 0.27619}, 1, 450 - 334, counts=7, time=delays)
    assert found["of"]["launches"] == {"count": 7, "microseconds": spent}
    assert found["of"]["delays"] == {"count": 7, "microseconds": pytest.approx(delays)}


def _counts(bins: list[dict[str, float]]) -> dict[float, float]:
    return {one["below"]: one["count"] for one in bins if one["count"]}


def test_distributions_of_delays_and_of_short_kernels(timeline: Timeline):
    found = launches(timeline)
    # 5; 10 and 10; 23, 29 and 30.02; 116
    assert _counts(found["delays"]) == {10: 1, 20: 2, 50: 3, 200: 1}
    assert sum(one["microseconds"] for one in found["delays"]) == pytest.approx(223.02)
    assert _counts(found["shorter"]) == {5: 1}, "4 us, launched in 10"


def test_streams_overlap_where_two_run_at_once(timeline: Timeline):
    found = streams(timeline)
    assert found
    assert [lane["stream"] for lane in found["lanes"]] == [7, 8]
    (copy,) = found["lanes"][1]["spans"]
    assert (copy["group"], copy["start"], copy["end"]) == ("copies and fills", 456 - 50, 470 - 50)
    assert found["overlap"]["microseconds"] == 464 - 456
    assert found["overlap"]["share_of_busy"] == pytest.approx(8 / BUSY, abs=1e-5)


def test_one_stream_has_no_overlap(timeline: Timeline):
    alone = replace(timeline, work=[one for one in timeline.work if one.stream == 7])
    assert streams(alone) is None


def test_a_graphs_launch_is_shared_out_among_its_kernels(timeline: Timeline):
    launch = Launch(0, 30, kernels=3)
    spans = [(50.0, 60.0), (61.0, 71.0), (71.01, 80.0)]
    one = timeline.work[0]
    work = [replace(one, spans=(span,), launch=launch) for span in spans]
    graph = replace(timeline, work=work, window=(50.0, 80.0))
    found = launches(graph)
    assert (found["short"]["count"], found["short"]["microseconds"]) == (1, pytest.approx(80 - 71.01))
    assert found["of"]["launches"] == {"count": 1, "microseconds": 30}
    assert found["of"]["delays"] == {"count": 1, "microseconds": 50 - 30}
    waits = idle(graph)
    assert waits["host_wait"]["count"] == 0
    assert (waits["kernel_wait"]["count"], waits["other"]["count"]) == (1, 1)


def test_operators_on_a_cpu_are_counted_once():
    """One operator calls another for 20 of its 40 us; 60 us later one computes for 40 us."""
    work = [
        Activity("aten::add", ((40, 50), (70, 80)), "compute", "other"),
        Activity("aten::copy_", ((50, 70),), "memory", "copies and fills"),
        Activity("aten::mul", ((140, 180),), "compute", "other"),
    ]
    found = temporal(Timeline(device="cpu", window=(20, 200), steps=[(20, 200)], work=work))
    assert found["compute"]["microseconds"] == 20 + 40
    assert found["non_compute"]["microseconds"] == 20
    assert found["idle"]["microseconds"] == 20 + 60 + 20


def test_unions_and_gaps():
    assert union([(5, 6), (0, 2), (1, 3), (3, 4), (9, 9)]) == [(0, 4), (5, 6)]
    assert gaps_between([(0, 4), (5, 6)], (1, 8)) == [(4, 5), (6, 8)]
    assert gaps_between([], (1, 8)) == [(1, 8)]


def test_the_histogram_ends_with_its_longest():
    bins = histogram([0.5, 1.5, 1.9, 12])
    assert [(one["below"], one["count"]) for one in bins if one["count"]] == [(1, 1), (2, 2), (20, 1)]
    assert bins[-1] == {"below": 20, "count": 1, "microseconds": 12}
    assert histogram([]) == []
