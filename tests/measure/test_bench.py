"""`python -m benchmarks.bench`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from benchmarks.bench.cases import Case, make_plan
from benchmarks.bench.measure import bench
from benchmarks.bench.table import render
from velogan.config import Config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
REFERENCE, EAGER = ({mode: {"mode": mode}} for mode in ("reference", "eager"))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tiny_config: Callable[..., Config]) -> Case:
    """A case; the networks of all cases have a few channels."""

    def config(case: Case) -> Config:
        data = {"crop_size": case.image_size, "batch_size": case.batch_size}
        return tiny_config(data=data, method="cyclegan" if case.method == "cyclegan" else "onepair")

    monkeypatch.setattr(Case, "config", property(config))
    monkeypatch.setattr("benchmarks.bench.candidate._MIN_S", 0.0)
    monkeypatch.setattr("benchmarks.bench.measure.matmul_tflops", lambda device: 0.1)  # takes seconds in slow bf16
    return Case("resnet_9", "basic", 32, 2)


def quiet(line: str) -> None:
    """Print nothing."""


def test_rows_and_rooflines_agree(tiny: Case):
    result = bench({tiny: REFERENCE | EAGER | {"graph": {"mode": "graph"}}}, rounds=2, print_line=quiet)
    assert [row["mode"] for row in result["rows"]] == ["reference", "eager"]
    (roofline,) = result["rooflines"]
    for row in result["rows"]:
        assert {name: row[name] for name in vars(tiny)} == vars(tiny)
        assert row["data_ratio"] > 0
        assert row["first_step_s"] > row["step_ms"] / 1e4
        assert row["host_idle_share"] is None
        assert row["tflops"] * row["step_ms"] == pytest.approx(roofline["tflops"] * roofline["ms"])
        assert sum(row["where"].values()) == pytest.approx(1)
        assert row["where"]["convolution"] > 0.01
    assert roofline["arithmetic_ms"] * 0.1 == pytest.approx(roofline["ms"] * roofline["tflops"])
    assert result["rows"][0]["ratio_to_reference"] == result["rows"][0]["ratio_to_cyclegan"] == 1
    (left_out,) = result["left_out"]
    assert (left_out["mode"], left_out["network"]) == ("graph", "resnet_9")
    assert "engine.mode=graph" in left_out["reason"]
    json.dumps(result)
    console = Console(width=80, record=True)
    for part in render(result):
        console.print(part)
    assert "left out: graph" in console.export_text()


@pytest.mark.gpu
def test_on_cuda_the_device_s_idle_time_is_a_share(tiny: Case):
    result = bench(make_plan("eager", everything=False, device=CUDA), rounds=1, print_line=quiet)
    for row in result["rows"]:
        assert 0 <= row["host_idle_share"] < 1
        assert row["peak_memory_mb"] > 0
