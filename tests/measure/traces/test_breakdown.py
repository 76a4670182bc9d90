"""The tables of a trace written by hand; the expected values are computed by hand, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from velogan.measure.traces.breakdown import (
    summarize_idle,
    summarize_kernels,
    summarize_launches,
    summarize_streams,
    summarize_temporal,
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


def _check_row(row: dict[str, Any], count: int, microseconds: float, *, counts: float, time: float, window: float = 0):
    assert row["count"] == count
    assert row["microseconds"] == pytest.approx(microseconds)
    assert row["share_of_count"] == pytest.approx(count / counts, abs=1e-5)
    assert row["share_of_time"] == pytest.approx(microseconds / time, abs=1e-5)
    assert row["share_of_window"] == pytest.approx(microseconds / (window or WINDOW), abs=1e-5)


def test_temporal(timeline: Timeline):
    table = summarize_temporal(timeline)
    compute = 100 + 10 + 4 + 100 + 10
    _check_row(table["compute"], 5, compute, counts=7, time=WINDOW)
    _check_row(table["non_compute"], 2, 4 + 6, counts=7, time=WINDOW)  # the copy overlaps the update for 8 us of its 14
    _check_row(table["idle"], 4, WINDOW - BUSY, counts=4, time=WINDOW)
    assert table["of"] == {"count": 7, "microseconds": WINDOW, "steps": 1}


def test_idle(timeline: Timeline):
    table = summarize_idle(timeline)
    late = (220 - 160.02) + (320 - 224)  # launched at 205 and 250, when nothing ran
    _check_row(table["host_wait"], 2, late, counts=4, time=WINDOW - BUSY)
    _check_row(table["kernel_wait"], 1, 0.02, counts=4, time=WINDOW - BUSY)
    _check_row(table["other"], 1, 450 - 420, counts=4, time=WINDOW - BUSY)  # launched long before
    assert table["of"] == {"count": 4, "microseconds": pytest.approx(WINDOW - BUSY)}


def test_kernels(timeline: Timeline):
    table = summarize_kernels(timeline, top=2)
    _check_row(table["compute"], 5, KERNELS - 18, counts=7, time=KERNELS)
    _check_row(table["memory"], 2, 4 + 14, counts=7, time=KERNELS)
    _check_row(table["communication"], 0, 0, counts=7, time=KERNELS)
    assert set(table["by_memory_kind"]) == {"Memset", "Memcpy DtoH"}
    _check_row(table["by_memory_kind"]["Memcpy DtoH"], 1, 14, counts=7, time=KERNELS)
    _check_row(table["by_group"]["convolution"], 2, 200, counts=7, time=KERNELS)
    assert {row["name"] for row in table["top"]} == {"implicit_convolve_sgemm<float, 3>", "cudnn::wgrad_kernel"}
    assert table["of"] == {"count": 7, "microseconds": pytest.approx(KERNELS), "names": 7}


def test_launches(timeline: Timeline):
    table = summarize_launches(timeline)
    spent = 10 + 5 + 10 + 60 + 2 + 5 + 3  # the synchronisation launches nothing
    delays = (50 - 40) + (150.02 - 120) + (220 - 215) + (320 - 310) + (450 - 334) + (454 - 425) + (456 - 433)
    _check_row(table["short"], 1, 4, counts=7, time=KERNELS)
    _check_row(table["slow"], 1, 60, counts=7, time=spent)
    assert table["delayed"].pop("share_of_window") is None
    _check_row(table["delayed"] | {"share_of_window": 0.27619}, 1, 450 - 334, counts=7, time=delays)
    assert table["of"]["launches"] == {"count": 7, "microseconds": spent}
    assert table["of"]["delays"] == {"count": 7, "microseconds": pytest.approx(delays)}
    # 5; 10 and 10; 23, 29 and 30.02; 116
    assert _counts(table["delays"]) == {10: 1, 20: 2, 50: 3, 200: 1}
    assert sum(bin_["microseconds"] for bin_ in table["delays"]) == pytest.approx(223.02)
    assert _counts(table["shorter"]) == {5: 1}, "4 us, launched in 10"


def _counts(bins: list[dict[str, float]]) -> dict[float, float]:
    return {bin_["below"]: bin_["count"] for bin_ in bins if bin_["count"]}


def test_streams_overlap_while_two_run(timeline: Timeline):
    table = summarize_streams(timeline)
    assert table
    assert [lane["stream"] for lane in table["lanes"]] == [7, 8]
    (copy,) = table["lanes"][1]["spans"]
    assert (copy["group"], copy["start"], copy["end"]) == ("copies and fills", 456 - 50, 470 - 50)
    assert table["overlap"]["microseconds"] == 464 - 456
    assert table["overlap"]["share_of_busy"] == pytest.approx(8 / BUSY, abs=1e-5)
    assert summarize_streams(replace(timeline, work=[work for work in timeline.work if work.stream == 7])) is None


def test_a_graph_s_launch_is_divided_among_its_kernels(timeline: Timeline):
    launch = Launch(0, 30, kernels=3)
    spans = [(50.0, 60.0), (61.0, 71.0), (71.01, 80.0)]
    kernel = timeline.work[0]
    work = [replace(kernel, spans=(span,), launch=launch) for span in spans]
    graph = replace(timeline, work=work, window=(50.0, 80.0))
    table = summarize_launches(graph)
    assert (table["short"]["count"], table["short"]["microseconds"]) == (1, pytest.approx(80 - 71.01))
    assert table["of"]["launches"] == {"count": 1, "microseconds": 30}
    assert table["of"]["delays"] == {"count": 1, "microseconds": 50 - 30}
    waits = summarize_idle(graph)
    assert waits["host_wait"]["count"] == 0
    assert (waits["kernel_wait"]["count"], waits["other"]["count"]) == (1, 1)


def test_operators_on_a_cpu_are_counted_once():
    """One operator calls another for 20 of its 40 us; 60 us later one computes for 40 us."""
    work = [
        Activity("aten::add", ((40, 50), (70, 80)), "compute", "other"),
        Activity("aten::copy_", ((50, 70),), "memory", "copies and fills"),
        Activity("aten::mul", ((140, 180),), "compute", "other"),
    ]
    table = summarize_temporal(Timeline(device="cpu", window=(20, 200), steps=[(20, 200)], work=work))
    assert table["compute"]["microseconds"] == 20 + 40
    assert table["non_compute"]["microseconds"] == 20
    assert table["idle"]["microseconds"] == 20 + 60 + 20
