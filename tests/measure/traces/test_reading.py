from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from velogan.measure.traces.reading import borrow_places, load_events, read_timeline
from velogan.measure.traces.timeline import Owner, Timeline

FILE = Path(__file__).with_name("cuda_trace.json")
"""One step of a generator on CUDA, written by hand: a network, its loss, both ways, and an update."""


def _read(events: list[dict[str, Any]]) -> Timeline:
    return read_timeline(events, phases=["generator"], networks=["G_A"])


def test_a_kernel_belongs_to_whoever_launched_it():
    places = {one.name.split(" ")[0].split("<")[0]: one.place for one in _read(load_events(FILE)).work}
    assert places == {
        "implicit_convolve_sgemm": Owner("generator", "G_A", "forward"),
        "reduce_kernel": Owner("generator", "losses", "forward"),
        "mean_backward_kernel": Owner("generator", "losses", "backward"),
        "cudnn::wgrad_kernel": Owner("generator", "G_A", "backward"),
        "Memset": Owner("generator", "G_A", "backward"),  # adding up the gradient of what came before it
        "multi_tensor_apply_kernel": Owner("generator", "optimizer", "update"),
        "Memcpy": Owner("generator", "optimizer", "update"),
    }


def test_the_window_goes_from_the_first_kernel_to_the_last():
    timeline = _read(load_events(FILE))
    assert timeline.device == "cuda"
    assert timeline.window == (50, 470)
    assert [one.start for one in timeline.work] == sorted(one.start for one in timeline.work)


def test_kernels_have_kinds_and_groups():
    found = {one.name: (one.kind, one.group) for one in _read(load_events(FILE)).work}
    assert found["cudnn::wgrad_kernel"] == ("compute", "convolution")
    assert found["Memset (Device)"] == ("memory", "copies and fills")
    assert found["multi_tensor_apply_kernel"] == ("compute", "optimizer")
    assert found["reduce_kernel"] == ("compute", "other")
    nccl = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 500, "dur": 1, "args": {}}
    assert _read([*load_events(FILE), nccl]).work[-1].kind == "communication"


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
        _read(events)


def _profiled(step: Callable[[], None], tmp_path: Path) -> Timeline:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen, record_function("step"):
        step()
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    return read_timeline(load_events(tmp_path / "trace.json"), phases=["one", "two"], networks=["G", "D"])


def test_a_real_backward_pass_goes_to_the_networks_that_recorded_it(tmp_path: Path):
    generator, discriminator = nn.Conv2d(1, 2, 3), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*generator.parameters(), *discriminator.parameters()], lr=0.1)

    def step() -> None:
        for phase in ("one", "two"):
            with record_function(phase):
                with record_function("G"):
                    fake = generator(torch.ones(1, 1, 8, 8)).tanh()
                with record_function("D"):
                    score = discriminator(fake.mean((2, 3)))
                score.square().sum().backward()
                optimizer.step()

    timeline = _profiled(step, tmp_path)
    found = {(one.name, one.place.phase): one.place for one in timeline.work}
    for phase in ("one", "two"):
        assert found["aten::convolution", phase] == Owner(phase, "G", "forward")
        assert found["aten::addmm", phase] == Owner(phase, "D", "forward")
        assert found["PowBackward0", phase] == Owner(phase, "losses", "backward")
        assert found["AddmmBackward0", phase] == Owner(phase, "D", "backward")
        assert found["MeanBackward1", phase] == Owner(phase, "D", "backward")
        assert found["TanhBackward0", phase] == Owner(phase, "G", "backward")
        assert found["aten::convolution_backward", phase] == Owner(phase, "G", "backward")
        assert {one.place.network for one in timeline.work if one.place.way == "update"} == {"optimizer"}


def test_operators_are_counted_without_what_they_call(tmp_path: Path):
    def step() -> None:
        with record_function("one"):
            torch.ones(4, 4).matmul(torch.ones(4, 4))

    timeline = _profiled(step, tmp_path)
    spans = sorted(span for one in timeline.work for span in one.spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    called = [one for one in timeline.work if one.launch is not None]
    assert {one.name for one in called} == {"aten::ones", "aten::matmul"}
    assert sum(one.whole for one in called) == pytest.approx(sum(one.microseconds for one in timeline.work))


def test_kernels_of_a_graph_borrow_their_places():
    plain = load_events(FILE)
    kernels = [event for event in plain if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")]
    unknown = kernels[0] | {"name": "made_by_the_capture", "ts": 470, "dur": 1}
    graph = [
        {"ph": "X", "cat": "user_annotation", "name": "step", "tid": 1, "ts": 0, "dur": 40, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "tid": 1, "ts": 5, "dur": 30}
        | {"args": {"correlation": 1}},
        *(event | {"args": event["args"] | {"correlation": 1}} for event in [*kernels, unknown]),
    ]
    captured = _read(graph)
    assert {one.place.network for one in captured.work} == {"rest"}
    assert {one.launch.kernels for one in captured.work if one.launch} == {len(kernels) + 1}
    known = {one.name: one.place for one in _read(plain).work}
    for one in borrow_places(captured, _read(plain)).work:
        assert one.place == known.get(one.name, Owner("", "rest", ""))
