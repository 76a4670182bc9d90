"""What `python -m benchmarks.bench` measures, and what its figures are of."""

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
from benchmarks.bench.cases import Case, make_plan
from benchmarks.bench.contestant import Contestant
from benchmarks.bench.measure import bench
from benchmarks.bench.pictures import Feed
from benchmarks.bench.table import render
from velogan.config import Config
from velogan.data.sets.loader import PairLoader

from ..domains import domain_in_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tiny_config: Callable[..., Config]) -> Case:
    """A case whose networks have a few channels, whatever it is called."""

    def config(case: Case) -> Config:
        data = {"crop_size": case.image_size, "batch_size": case.batch_size}
        return tiny_config(data=data, method="cyclegan" if case.method == "cyclegan" else "onepair")

    monkeypatch.setattr(Case, "config", property(config))
    monkeypatch.setattr("benchmarks.bench.contestant._LEAST_S", 0.0)
    monkeypatch.setattr("benchmarks.bench.measure.matmul_tflops", lambda device: 0.1)  # seconds in slow bf16
    return Case("resnet_9", "basic", 32, 2)


def quiet(line: str) -> None:
    """Says nothing."""


def test_by_default_it_measures_what_the_machine_can_do():
    plan = make_plan(None, everything=False, device=CPU)
    assert {case.label: list(ways) for case, ways in plan.items()} == {
        "cyclegan, resnet_9, basic, 256x256, batch 1": ["reference", "eager", "default"],
        "onepair, resnet_9, basic, 256x256, batch 1": ["default"],
        "onepair-plus, resnet_9, basic, 256x256, batch 1": ["default"],
        "cyclegan, unet_256, basic, 256x256, batch 1": ["reference", "eager", "default"],
    }
    assert all(ways["default"] == {"mode": "auto"} for ways in plan.values())
    on_cuda = make_plan(None, everything=False, device=CUDA)
    assert list(on_cuda) == list(plan)
    assert all(list(ways) == ["reference", "eager", "compiled", "graph", "streams"] for ways in on_cuda.values())


def test_all_is_the_whole_product_and_only_a_part_of_it():
    whole = make_plan(None, everything=True, device=CUDA)
    assert len(whole) == (4 + 2 * 2) * 3 * 2, "one-pair methods have no U-Net"
    assert all("default" in ways for ways in whole.values())
    part = make_plan("pixel, batch=16", everything=True, device=CUDA)
    assert set(part) == {case for case in whole if (case.discriminator, case.batch_size) == ("pixel", 16)}
    method = make_plan("onepair", everything=True, device=CUDA)
    assert set(method) == {case for case in whole if case.method == "onepair"}


def test_cases_that_differ_in_their_method_stand_together():
    plan = make_plan(None, everything=True, device=CPU)
    settings = [setting for setting, _ in itertools.groupby(plan, key=lambda case: case.setting)]
    assert len(settings) == len(set(settings))


def test_a_method_that_is_named_is_measured_in_all_usual_modes():
    (ways,) = make_plan("onepair-plus,resnet_9", everything=False, device=CPU).values()
    assert list(ways) == ["reference", "eager", "default"]


def test_a_method_that_has_none_of_the_networks_is_named():
    with pytest.raises(ValueError, match="--only onepair,unet_128: onepair takes only resnets"):
        make_plan("onepair,unet_128", everything=False, device=CPU)


def test_only_takes_words_in_any_order_and_several_of_a_kind():
    plan = make_plan("graph,size=64,unet_128,batch=2,resnet_6,batch=3", everything=False, device=CPU)
    assert {(case.network, case.batch_size, case.image_size) for case in plan} == {
        ("unet_128", 2, 64),
        ("unet_128", 3, 64),
        ("resnet_6", 2, 64),
        ("resnet_6", 3, 64),
    }
    assert all(list(ways) == ["reference", "graph"] for ways in plan.values()), "ratios need the reference"


@pytest.mark.parametrize("word", ["batch=", "batch=0", "size=big", "size=-4"])
def test_a_number_that_is_none_is_named(word: str):
    with pytest.raises(ValueError, match=rf"--only {word}: (batch|size) takes a whole number from 1 on"):
        make_plan(word, everything=False, device=CPU)


@pytest.mark.parametrize("word", ["resnet9", "graphs", "channels=3"])
def test_an_unknown_word_is_named_and_what_there_is_is_listed(word: str):
    with pytest.raises(
        ValueError, match=rf"--only {word}: .*onepair-plus.*resnet_9, resnet_6.*pixel.*graph.*batch=N"
    ) as error:
        make_plan(f"resnet_9,{word}", everything=False, device=CPU)
    assert ("did you mean resnet_9?" in str(error.value)) == (word == "resnet9")


def test_every_case_builds():
    for case in make_plan(None, everything=True, device=CPU):
        assert case.config.data.crop_size == 256
        assert case.config.discriminator.network == case.discriminator
        assert case.network.startswith(case.config.generator.network)
        assert case.method.startswith(case.config.method.kind)


def test_rows_hold_what_they_say(tiny: Case):
    ways = {mode: {"mode": mode} for mode in ("reference", "eager", "graph")}
    lines: list[str] = []
    result = bench({tiny: ways}, rounds=2, print_line=lines.append)
    assert [row["mode"] for row in result["rows"]] == ["reference", "eager"]
    for row in result["rows"]:
        assert {name: row[name] for name in vars(tiny)} == vars(tiny)
        assert row["data_ratio"] > 0
        assert row["first_step_s"] > row["step_ms"] / 1e4
        assert row["host_idle_share"] is None
        assert row["tflops"] * row["step_ms"] == pytest.approx(
            result["rooflines"][0]["tflops"] * result["rooflines"][0]["ms"]
        )
        assert sum(row["where"].values()) == pytest.approx(1)
    roofline = result["rooflines"][0]
    assert roofline["arithmetic_ms"] * 0.1 == pytest.approx(roofline["ms"] * roofline["tflops"])
    for row in result["rows"]:
        assert row["where"]["convolution"] > 0.01
    assert result["rows"][0]["ratio_to_reference"] == result["rows"][0]["ratio_to_cyclegan"] == 1
    (left,) = result["left_out"]
    assert (left["mode"], left["network"]) == ("graph", "resnet_9")
    assert "engine.mode=graph" in left["reason"]
    json.dumps(result)
    text = shown(result)
    assert "left out: graph" in text
    assert "ratio" in text
    assert f"(0.1 TFLOP/s): {roofline['arithmetic_ms']:.1f} ms" in text
    assert "CycleGAN" not in text, "there is no other method to compare with it"


def shown(result: dict[str, Any]) -> str:
    """The tables, in which nothing is cut at 80 columns."""
    console = Console(width=80, record=True)
    for part in render(result):
        console.print(part)
    text = console.export_text()
    assert "…" not in text
    return text


def test_methods_take_turns_and_each_has_its_own_roofline(tiny: Case, monkeypatch: pytest.MonkeyPatch):
    turns: list[str] = []

    def noted(one: Contestant, *, data_first: bool) -> None:
        method = "onepair" if "autoencoder" in one.step.optimizers else "cyclegan"
        turns.append(f"{method} {one.name}")
        one.seconds.append(1.0 if method == "onepair" else 2.0 + 2 * len(one.seconds))
        one.data_seconds.append(1.0)

    monkeypatch.setattr(Contestant, "take_turn", noted)
    reference, eager = ({mode: {"mode": mode}} for mode in ("reference", "eager"))
    other = replace(tiny, method="onepair")
    result = bench({tiny: reference | eager, other: reference}, rounds=2, print_line=quiet)
    assert turns == 2 * ["cyclegan reference", "onepair reference", "cyclegan eager"]
    rows = {(row["method"], row["mode"]): row for row in result["rows"]}
    assert list(rows) == [("cyclegan", "reference"), ("cyclegan", "eager"), ("onepair", "reference")]
    assert rows["cyclegan", "eager"]["ratio_to_cyclegan"] == 1
    assert rows["onepair", "reference"]["ratio_to_reference"] == 1
    assert rows["onepair", "reference"]["ratio_to_cyclegan"] == 3, "the median of twice and four times"
    rooflines = {roofline["method"]: roofline for roofline in result["rooflines"]}
    assert list(rooflines) == ["cyclegan", "onepair"]
    operations = {method: roofline["ms"] * roofline["tflops"] for method, roofline in rooflines.items()}
    assert operations["onepair"] < operations["cyclegan"] / 2
    for (method, _), row in rows.items():
        assert row["tflops"] * row["step_ms"] == pytest.approx(operations[method])
    wide = {**rows["onepair", "reference"], "host_idle_share": 0.5, "peak_memory_mb": 12345.0, "step_ms": 1234.5}
    for text in (shown(result), shown({**result, "rows": [*result["rows"], wide]})):
        assert "onepair, resnet_9, basic, 32x32, batch 2; roofline" in text


def test_without_cyclegan_there_is_no_ratio_to_it(tiny: Case):
    result = bench({replace(tiny, method="onepair"): {"reference": {"mode": "reference"}}}, rounds=1, print_line=quiet)
    assert [row["ratio_to_cyclegan"] for row in result["rows"]] == [None]


def test_what_cannot_be_measured_at_all_is_an_error_with_the_reason(tiny: Case):
    small = Case("resnet_9", "basic", 8, 1)
    with pytest.raises(ValueError, match=r"nothing can be measured here: .*8x8"):
        bench({small: {"reference": {"mode": "reference"}}}, rounds=1, print_line=quiet)


def contestant(config: Config, mode: str) -> Contestant:
    one = Contestant(mode, config, engine={"mode": mode}, print_line=quiet)
    one.warm_up()
    one.look()
    return one


def weights_of(one: Contestant) -> int:
    """Bytes."""
    groups = [group for optimizer in one.step.optimizers.values() for group in optimizer.param_groups]
    return sum(parameter.nbytes for group in groups for parameter in group["params"])


def test_memory_is_of_weights_moments_and_what_a_step_adds(tiny_config: Callable[..., Config]):
    def make(batch: int) -> Contestant:
        return contestant(
            tiny_config(
                data={"batch_size": batch, "crop_size": 16},
                discriminator={"network": "pixel"},
                method={"pool_size": 0},
            ),
            "reference",
        )

    one, two, three = make(4), make(8), make(12)
    weights = weights_of(one)
    assert one.peak_memory_mb * 2**20 > 3 * weights, "weights and two moments lie there all the time"
    grown, again = two.peak_memory_mb - one.peak_memory_mb, three.peak_memory_mb - two.peak_memory_mb
    assert grown > 0
    assert again == pytest.approx(grown, rel=0.02), "what a step adds is in proportion to its images"
    # to a scalar or two, which torch makes anew or still has
    assert make(4).peak_memory_mb == pytest.approx(one.peak_memory_mb, abs=2**-12), "it is counted, not sampled"


def test_gradients_of_the_step_before_are_counted_once(tiny_config: Callable[..., Config]):
    wide = tiny_config(
        generator={"channels": 16}, data={"crop_size": 8}, discriminator={"layers": 1, "network": "pixel"}
    )
    one = contestant(wide.change(method={"pool_size": 0}), "reference")
    weights = weights_of(one)
    # small pictures: the peak is weights, moments and gradients, and little else
    assert 4 * weights < one.peak_memory_mb * 2**20 < 5 * weights


def test_both_feeds_go_through_the_same_step(tiny: Case):
    seen: list[dict[str, Any]] = []
    black, white = [domain_in_memory(list(np.full((2, 40, 40, 3), value, np.uint8))) for value in (0, 255)]
    loader = PairLoader(black, white, tiny.config.data, seed=0, device="cpu")
    batch = {"A": torch.zeros(2, 32, 32, 3), "B": torch.ones(2, 32, 32, 3)}
    feed = Feed(loader, iter([batch]))
    one = Contestant("reference", tiny.config, engine={"mode": "reference"}, feed=feed, print_line=quiet)
    assert one.step.prepare == {"train": loader.finish}  # pyright: ignore
    one.step = lambda batches, *, number: seen.append({**batches["train"], "number": number})  # pyright: ignore
    one.take_turn(data_first=True)
    assert torch.equal(seen[0]["B"], batch["B"])
    assert torch.equal(seen[1]["B"], torch.full((2, 32, 32, 3), 255, dtype=torch.uint8))
    assert seen[1]["number"] == seen[0]["number"] + 1
    assert len(one.seconds) == len(one.data_seconds) == 1


def test_the_time_leaves_out_rounds_first_and_then_cases(tiny: Case, monkeypatch: pytest.MonkeyPatch):
    now, turns = 0.0, 0

    def warm(one: Contestant) -> None:
        nonlocal now
        now += 10

    def turn(one: Contestant, *, data_first: bool) -> None:
        nonlocal now, turns
        now, turns = now + 10, turns + 1
        one.seconds.append(1.0)
        one.data_seconds.append(1.0)

    def row(case: Case, way: str, *_: object) -> dict[str, Any]:
        return {"mode": way, **vars(case)}

    monkeypatch.setattr("benchmarks.bench.measure.time.monotonic", lambda: now)
    monkeypatch.setattr("benchmarks.bench.measure._row", row)
    monkeypatch.setattr(Contestant, "look", lambda one: None)
    monkeypatch.setattr(Contestant, "warm_up", warm)
    monkeypatch.setattr(Contestant, "take_turn", turn)
    both = {mode: {"mode": mode} for mode in ("reference", "eager")}
    plan = {tiny: both, replace(tiny, method="onepair"): both}

    def measured(seconds: float) -> tuple[list[str], int, list[str]]:
        nonlocal now, turns
        now, turns = 0.0, 0
        found = bench(plan, rounds=3, seconds=seconds, print_line=quiet)
        rows = [f"{row['method']} {row['mode']}" for row in found["rows"]]
        assert found["rooflines"][0]["rounds"] == turns / len(rows)
        assert all("give more --minutes" in left["reason"] for left in found["left_out"])
        return rows, found["rooflines"][0]["rounds"], [f"{one['method']} {one['mode']}" for one in found["left_out"]]

    every = ["cyclegan reference", "cyclegan eager", "onepair reference", "onepair eager"]
    assert measured(1000) == (every, 3, [])
    assert measured(130) == (every, 2, [])
    assert measured(80) == (every, 1, [])
    assert measured(30) == (every[:2], 1, every[2:])
    assert measured(0.1) == (every[:1], 1, every[1:])


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--only", "resnet9"], "--only resnet9"),
        (["--only", "onepair,unet_256"], "--only onepair,unet_256"),
        (["--rounds", "0"], "--rounds 0"),
        (["--minutes", "0"], "--minutes 0"),
    ],
)
def test_wrong_words_are_named(words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert wrong in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.gpu
def test_on_cuda_the_device_s_idle_time_is_a_share(tiny: Case):
    result = bench(make_plan("eager", everything=False, device=CUDA), rounds=1, print_line=quiet)
    for row in result["rows"]:
        assert 0 <= row["host_idle_share"] < 1
        assert row["peak_memory_mb"] > 0
