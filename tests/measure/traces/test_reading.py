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
"""One step of a generator on CUDA, written by hand: a network, its loss, both ways, and an update."""


def test_the_window_goes_from_the_first_kernel_to_the_last():
    timeline = read_timeline(load_events(FILE))
    assert timeline.device == "cuda"
    assert timeline.window == (50, 470)
    assert [one.start for one in timeline.work] == sorted(one.start for one in timeline.work)


def test_kernels_have_kinds_and_groups():
    found = {one.name: (one.kind, one.group) for one in read_timeline(load_events(FILE)).work}
    assert found["cudnn::wgrad_kernel"] == ("compute", "convolution")
    assert found["Memset (Device)"] == ("memory", "copies and fills")
    assert found["multi_tensor_apply_kernel"] == ("compute", "optimizer")
    assert found["reduce_kernel"] == ("compute", "other")
    nccl = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 500, "dur": 1, "args": {}}
    assert read_timeline([*load_events(FILE), nccl]).work[-1].kind == "communication"


def test_a_trace_may_be_zipped(tmp_path: Path):
    zipped = tmp_path / "trace.json.gz"
    zipped.write_bytes(gzip.compress(FILE.read_bytes()))
    assert load_events(zipped) == load_events(FILE)
    zipped.write_bytes(gzip.compress(b'{"something": "else"}'))
    with pytest.raises(ValueError, match="is not a trace"):
        load_events(zipped)


def test_a_trace_without_steps_is_refused():
    events = [event for event in load_events(FILE) if event["name"] != "step"]
    with pytest.raises(ValueError, match="no range called 'step'"):
        read_timeline(events)


def _profiled(step: Callable[[], None], tmp_path: Path) -> Timeline:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen, record_function("step"):
        step()
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    return read_timeline(load_events(tmp_path / "trace.json"))


def test_operators_of_a_real_step_have_groups(tmp_path: Path):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2), nn.ReLU())
    optimizer = torch.optim.Adam(network.parameters())

    def step() -> None:
        network(torch.ones(1, 1, 8, 8)).square().sum().backward()
        optimizer.step()

    timeline = _profiled(step, tmp_path)
    found = {one.name: one.group for one in timeline.work}
    assert timeline.device == "cpu"
    assert found["aten::convolution_backward"] == found["aten::convolution"] == "convolution"
    assert found["aten::instance_norm"] == found["aten::relu"] == "norm, activation, padding"
    assert found["aten::addcdiv_"] == "optimizer"
    assert found["PowBackward0"] == "other"


def test_operators_are_counted_without_what_they_call(tmp_path: Path):
    def step() -> None:
        torch.ones(4, 4).matmul(torch.ones(4, 4))

    timeline = _profiled(step, tmp_path)
    spans = sorted(span for one in timeline.work for span in one.spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    (range_,) = timeline.steps
    assert all(range_[0] <= start <= end <= range_[1] for start, end in spans)
    assert {"aten::ones", "aten::matmul", "aten::mm"} <= {one.name for one in timeline.work}


def test_kernels_of_a_graph_share_its_launch():
    plain = load_events(FILE)
    kernels = [event for event in plain if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")]
    graph = [
        {"ph": "X", "cat": "user_annotation", "name": "step", "tid": 1, "ts": 0, "dur": 40, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "tid": 1, "ts": 5, "dur": 30}
        | {"args": {"correlation": 1}},
        *(event | {"args": event["args"] | {"correlation": 1}} for event in kernels),
    ]
    captured = read_timeline(graph)
    assert {one.launch.kernels for one in captured.work if one.launch} == {len(kernels)}
    groups = {one.name: one.group for one in captured.work}
    assert groups["cudnn::wgrad_kernel"] == "convolution", "by its own name, as no operator launched it"
