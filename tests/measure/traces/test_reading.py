from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from velogan.measure.traces.reading import load_events, read_timeline
from velogan.measure.traces.timeline import Timeline

FILE = Path(__file__).with_name("cuda_trace.json")
"""One step of a generator on CUDA, written by hand: a network and its loss, forward and backward, and an update."""


def test_reads_a_window_of_sorted_kernels_with_kinds_and_groups():
    timeline = read_timeline(load_events(FILE))
    assert (timeline.device, timeline.window) == ("cuda", (50, 470))
    assert [activity.start for activity in timeline.work] == sorted(activity.start for activity in timeline.work)
    kinds = {activity.name: (activity.kind, activity.group) for activity in timeline.work}
    assert kinds["cudnn::wgrad_kernel"] == ("compute", "convolution")
    assert kinds["Memset (Device)"] == ("memory", "copies and fills")
    assert kinds["multi_tensor_apply_kernel"] == ("compute", "optimizer")
    assert kinds["reduce_kernel"] == ("compute", "other")
    nccl = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 500, "dur": 1, "args": {}}
    assert read_timeline([*load_events(FILE), nccl]).work[-1].kind == "communication"


def test_reads_gzipped_traces_and_rejects_other_files(tmp_path: Path):
    zipped = tmp_path / "trace.json.gz"
    zipped.write_bytes(gzip.compress(FILE.read_bytes()))
    assert load_events(zipped) == load_events(FILE)
    zipped.write_bytes(gzip.compress(b'{"something": "else"}'))
    with pytest.raises(ValueError, match="not a trace"):
        load_events(zipped)
    with pytest.raises(ValueError, match="no range 'step'"):
        read_timeline(event for event in load_events(FILE) if event["name"] != "step")


def _profiled(step: Callable[[], None], tmp_path: Path) -> Timeline:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler, record_function("step"):
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    return read_timeline(load_events(tmp_path / "trace.json"))


def test_operators_of_a_real_step_have_groups(tmp_path: Path):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2), nn.ReLU())
    optimizer = torch.optim.Adam(network.parameters())

    def step() -> None:
        network(torch.ones(1, 1, 8, 8)).square().sum().backward()
        optimizer.step()

    timeline = _profiled(step, tmp_path)
    groups = {activity.name: activity.group for activity in timeline.work}
    assert timeline.device == "cpu"
    assert groups["aten::convolution_backward"] == groups["aten::convolution"] == "convolution"
    assert groups["aten::instance_norm"] == groups["aten::relu"] == "norm, activation, padding"
    assert groups["aten::addcdiv_"] == "optimizer"
    assert groups["PowBackward0"] == "other"


def test_operators_exclude_the_operators_inside_them(tmp_path: Path):
    def step() -> None:
        torch.ones(4, 4).matmul(torch.ones(4, 4))

    timeline = _profiled(step, tmp_path)
    spans = sorted(span for activity in timeline.work for span in activity.spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    (step_span,) = timeline.steps
    assert all(step_span[0] <= start <= end <= step_span[1] for start, end in spans)
    assert {"aten::ones", "aten::matmul", "aten::mm"} <= {activity.name for activity in timeline.work}


def test_kernels_of_a_captured_graph_share_its_launch():
    plain = load_events(FILE)
    kernels = [event for event in plain if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")]
    graph = [
        {"ph": "X", "cat": "user_annotation", "name": "step", "tid": 1, "ts": 0, "dur": 40, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "tid": 1, "ts": 5, "dur": 30}
        | {"args": {"correlation": 1}},
        *(event | {"args": event["args"] | {"correlation": 1}} for event in kernels),
    ]
    captured = read_timeline(graph)
    assert {activity.launch.kernels for activity in captured.work if activity.launch} == {len(kernels)}
    groups = {activity.name: activity.group for activity in captured.work}
    assert groups["cudnn::wgrad_kernel"] == "convolution", "by its own name, as no operator launched it"
