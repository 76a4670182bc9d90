"""`python -m benchmarks.bench`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.bench.__main__ import main
from benchmarks.bench.candidate import BenchCandidate
from benchmarks.bench.cases import Case, make_plan
from benchmarks.bench.measure import bench
from benchmarks.bench.pictures import Feed
from benchmarks.bench.table import render
from velogan.config import Config
from velogan.data.sets.loader import PairLoader

from ..domains import domain_in_memory

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


def test_the_default_plan_has_the_modes_of_the_device():
    plan = make_plan(None, everything=False, device=CPU)
    assert {case.label: list(modes) for case, modes in plan.items()} == {
        "cyclegan, resnet_9, basic, 256x256, batch 1": ["reference", "eager", "default"],
        "onepair, resnet_9, basic, 256x256, batch 1": ["default"],
        "onepair-plus, resnet_9, basic, 256x256, batch 1": ["default"],
        "cyclegan, unet_256, basic, 256x256, batch 1": ["reference", "eager", "default"],
    }
    assert all(modes["default"] == {"mode": "auto"} for modes in plan.values())
    on_cuda = make_plan(None, everything=False, device=CUDA)
    assert list(on_cuda) == list(plan)
    assert all(list(modes) == ["reference", "eager", "compiled", "graph", "streams"] for modes in on_cuda.values())


def test_everything_is_the_product_of_all_settings_which_only_filters():
    everything = make_plan(None, everything=True, device=CUDA)
    assert len(everything) == (4 + 2 * 2) * 3 * 2, "one-pair methods have no U-Net"
    for case in everything:
        assert case.config.data.crop_size == 256
        assert case.config.discriminator.network == case.discriminator
        assert case.network.startswith(case.config.generator.network)
        assert case.method.startswith(case.config.method.kind)
    settings = [setting for setting, _ in itertools.groupby(everything, key=lambda case: case.setting)]
    assert len(settings) == len(set(settings)), "methods with the same setting follow each other"
    part = make_plan("pixel, batch=16", everything=True, device=CUDA)
    assert set(part) == {case for case in everything if (case.discriminator, case.batch_size) == ("pixel", 16)}


def test_only_takes_words_in_any_order():
    plan = make_plan("graph,size=64,unet_128,batch=2,resnet_6,batch=3", everything=False, device=CPU)
    assert {(case.network, case.batch_size, case.image_size) for case in plan} == set(
        itertools.product(("unet_128", "resnet_6"), (2, 3), (64,))
    )
    assert all(list(modes) == ["reference", "graph"] for modes in plan.values()), "ratios need the reference"
    (modes,) = make_plan("onepair-plus,resnet_9", everything=False, device=CPU).values()
    assert list(modes) == ["reference", "eager", "default"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("onepair,unet_128", "--only onepair,unet_128: onepair takes only resnets"),
        ("batch=0", r"--only batch=0: batch takes a whole number from 1 on"),
        ("size=big", r"--only size=big: size takes a whole number from 1 on"),
        ("resnet9", "--only resnet9: .*did you mean resnet_9"),
        ("channels=3", r"--only channels=3: .*onepair-plus.*resnet_9, resnet_6.*pixel.*graph.*batch=N"),
    ],
)
def test_rejects_wrong_words(words: str, message: str):
    with pytest.raises(ValueError, match=message):
        make_plan(words, everything=False, device=CPU)


@pytest.mark.parametrize("flags", [["--only", "resnet9"], ["--rounds", "0"], ["--minutes", "0"]])
def test_reports_wrong_flags(flags: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    assert " ".join(flags) in capsys.readouterr().err.splitlines()[-1]


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
    text = rendered(result)
    assert "left out: graph" in text
    assert f"(0.1 TFLOP/s): {roofline['arithmetic_ms']:.1f} ms" in text
    assert "CycleGAN" not in text, "there is no other method to compare with it"


def rendered(result: dict[str, Any]) -> str:
    """Return the tables at 80 columns, in which nothing may be cut."""
    console = Console(width=80, record=True)
    for part in render(result):
        console.print(part)
    text = console.export_text()
    assert "…" not in text
    return text


def test_methods_alternate_and_each_has_its_own_roofline(tiny: Case, monkeypatch: pytest.MonkeyPatch):
    turns: list[str] = []

    def record(candidate: BenchCandidate, *, data_first: bool) -> None:
        method = "onepair" if "autoencoder" in candidate.step.optimizers else "cyclegan"
        turns.append(f"{method} {candidate.name}")
        candidate.seconds.append(1.0 if method == "onepair" else 2.0 + 2 * len(candidate.seconds))
        candidate.data_seconds.append(1.0)

    monkeypatch.setattr(BenchCandidate, "time_once", record)
    onepair = replace(tiny, method="onepair")
    result = bench({tiny: REFERENCE | EAGER, onepair: REFERENCE}, rounds=2, print_line=quiet)
    assert turns == 2 * ["cyclegan reference", "onepair reference", "cyclegan eager"]
    rows = {(row["method"], row["mode"]): row for row in result["rows"]}
    assert list(rows) == [("cyclegan", "reference"), ("cyclegan", "eager"), ("onepair", "reference")]
    assert rows["cyclegan", "eager"]["ratio_to_cyclegan"] == 1
    assert rows["onepair", "reference"]["ratio_to_reference"] == 1
    assert rows["onepair", "reference"]["ratio_to_cyclegan"] == 3, "the median of twice and four times"
    operations = {roofline["method"]: roofline["ms"] * roofline["tflops"] for roofline in result["rooflines"]}
    assert list(operations) == ["cyclegan", "onepair"]
    assert operations["onepair"] < operations["cyclegan"] / 2
    for (method, _), row in rows.items():
        assert row["tflops"] * row["step_ms"] == pytest.approx(operations[method])
    wide = {**rows["onepair", "reference"], "host_idle_share": 0.5, "peak_memory_mb": 12345.0, "step_ms": 1234.5}
    assert "onepair, resnet_9, basic, 32x32, batch 2; roofline" in rendered({**result, "rows": [*rows.values(), wide]})
    alone = bench({onepair: REFERENCE}, rounds=1, print_line=quiet)
    assert [row["ratio_to_cyclegan"] for row in alone["rows"]] == [None]


def test_reports_why_nothing_can_be_measured(tiny: Case):
    with pytest.raises(ValueError, match=r"nothing can be measured here: .*8x8"):
        bench({Case("resnet_9", "basic", 8, 1): REFERENCE}, rounds=1, print_line=quiet)


def profiled_bytes(config: Config) -> tuple[float, int]:
    """Return the peak memory in bytes, and the bytes of the weights."""
    candidate = BenchCandidate("reference", config, engine={"mode": "reference"}, print_line=quiet)
    candidate.warm_up()
    candidate.profile_step()
    groups = [group for optimizer in candidate.step.optimizers.values() for group in optimizer.param_groups]
    return candidate.peak_memory_mb * 2**20, sum(weight.nbytes for group in groups for weight in group["params"])


def test_memory_counts_weights_moments_gradients_and_activations_once(tiny_config: Callable[..., Config]):
    def peak(batch: int) -> tuple[float, int]:
        data = {"batch_size": batch, "crop_size": 16}
        return profiled_bytes(tiny_config(data=data, discriminator={"network": "pixel"}, method={"pool_size": 0}))

    (four, weights), (eight, _), (twelve, _) = (peak(batch) for batch in (4, 8, 12))
    assert four > 3 * weights, "weights and two moments persist"
    assert twelve - eight == pytest.approx(eight - four, rel=0.02), "activations grow with the batch"
    assert peak(4)[0] == pytest.approx(four, abs=256), "memory is counted, not sampled, up to a scalar or two"
    wide = tiny_config(
        generator={"channels": 16}, data={"crop_size": 8}, discriminator={"layers": 1, "network": "pixel"}
    )
    peak_bytes, weights = profiled_bytes(wide.change(method={"pool_size": 0}))
    assert 4 * weights < peak_bytes < 5 * weights, "with small images little else than weights, moments, gradients"


def test_prepared_and_loaded_images_go_through_the_same_step(tiny: Case):
    batches: list[dict[str, Any]] = []
    black, white = [domain_in_memory(list(np.full((2, 40, 40, 3), value, np.uint8))) for value in (0, 255)]
    loader = PairLoader(black, white, tiny.config.data, seed=0, device="cpu")
    batch = {"A": torch.zeros(2, 32, 32, 3), "B": torch.ones(2, 32, 32, 3)}
    feed = Feed(loader, iter([batch]))
    candidate = BenchCandidate("reference", tiny.config, engine={"mode": "reference"}, feed=feed, print_line=quiet)
    assert candidate.step.prepare == {"train": loader.preprocess_on_device}  # pyright: ignore
    candidate.step = lambda inputs, *, number: batches.append({**inputs["train"], "number": number})  # pyright: ignore
    candidate.time_once(data_first=True)
    assert torch.equal(batches[0]["B"], batch["B"])
    assert torch.equal(batches[1]["B"], torch.full((2, 32, 32, 3), 255, dtype=torch.uint8))
    assert batches[1]["number"] == batches[0]["number"] + 1
    assert len(candidate.seconds) == len(candidate.data_seconds) == 1


def test_a_short_time_leaves_out_rounds_first_and_then_cases(tiny: Case, monkeypatch: pytest.MonkeyPatch):
    now = 0.0

    def warm_up(candidate: BenchCandidate) -> None:
        nonlocal now
        now += 10

    def time_once(candidate: BenchCandidate, *, data_first: bool) -> None:
        warm_up(candidate)
        candidate.seconds.append(1.0)
        candidate.data_seconds.append(1.0)

    def row(case: Case, mode: str, *_: object) -> dict[str, Any]:
        return {"mode": mode, **vars(case)}

    monkeypatch.setattr("benchmarks.bench.measure.time.monotonic", lambda: now)
    monkeypatch.setattr("benchmarks.bench.measure._row", row)
    monkeypatch.setattr(BenchCandidate, "profile_step", lambda candidate: None)
    monkeypatch.setattr(BenchCandidate, "warm_up", warm_up)
    monkeypatch.setattr(BenchCandidate, "time_once", time_once)
    plan = {tiny: REFERENCE | EAGER, replace(tiny, method="onepair"): REFERENCE | EAGER}

    def measured(seconds: float) -> tuple[list[str], int, list[str]]:
        nonlocal now
        now = 0.0
        result = bench(plan, rounds=3, seconds=seconds, print_line=quiet)
        assert all("give more --minutes" in entry["reason"] for entry in result["left_out"])
        rows, left_out = ([f"{row['method']} {row['mode']}" for row in result[key]] for key in ("rows", "left_out"))
        return rows, result["rooflines"][0]["rounds"], left_out

    every = ["cyclegan reference", "cyclegan eager", "onepair reference", "onepair eager"]
    assert measured(1000) == (every, 3, [])
    assert measured(130) == (every, 2, [])
    assert measured(80) == (every, 1, [])
    assert measured(30) == (every[:2], 1, every[2:])
    assert measured(0.1) == (every[:1], 1, every[1:])


@pytest.mark.gpu
def test_on_cuda_the_device_s_idle_time_is_a_share(tiny: Case):
    result = bench(make_plan("eager", everything=False, device=CUDA), rounds=1, print_line=quiet)
    for row in result["rows"]:
        assert 0 <= row["host_idle_share"] < 1
        assert row["peak_memory_mb"] > 0
