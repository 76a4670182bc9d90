from __future__ import annotations

from typing import Any

import pytest
import torch

from velogan.engine import device as devices
from velogan.engine.config import EngineConfig
from velogan.engine.device import resolve_device
from velogan.engine.processes import available_cores
from velogan.kernels import precision
from velogan.training import engine_rules
from velogan.training.engine_rules import MODES, RunProperties, resolve_auto
from velogan.training.engine_settings import unsupported_reason

KERNELS: Any = object()


def _resolve(config: EngineConfig | None = None, *, norm: str = "instance", kernels: Any = KERNELS, **settings: Any):
    measure_gemm_speedup = settings.pop("gemm_speedup", lambda precision: 0.0)
    requested: dict[str, Any] = {"seconds": None, "has_one_size": True}
    run = RunProperties(norms={norm}, **{**requested, "optimizers": {"adam"}, "has_dropout": False, **settings})
    config = config or EngineConfig(device="cpu", precision="fp32")
    chosen, decisions = resolve_auto(
        config, run, load_kernels=lambda device: kernels, measure_gemm_speedup=measure_gemm_speedup
    )
    return chosen, {decision.field: decision for decision in decisions}


def test_auto_on_a_cpu_takes_everything_fast_and_says_why():
    chosen, decisions = _resolve(EngineConfig(device="cpu"))
    assert (chosen.mode, chosen.kernels, chosen.compile) == ("eager", "native", "off")
    assert chosen.threads == len(available_cores())
    assert decisions.keys() == EngineConfig.model_fields.keys() - {"threads"}
    assert all(decision.reason for decision in decisions.values())
    assert all(getattr(chosen, name) == decision.value for name, decision in decisions.items())
    assert "auto" not in chosen.model_dump().values()


def test_reference_is_the_slow_path():
    chosen, decisions = _resolve(EngineConfig(mode="reference", device="cpu", threads=3))
    assert {name: getattr(chosen, name) for name in MODES["reference"]} == MODES["reference"]
    assert MODES["reference"]["precision"] == "fp32"
    assert chosen.threads == 3
    assert decisions["mode"].value == "reference"
    with pytest.raises(ValueError, match=r"engine\.mode=reference"):
        _resolve(EngineConfig(mode="reference", device="cpu", precision="bf16"))


@pytest.mark.parametrize(("gain", "choice"), [(0.9, "fp32"), (1.1, "fp32"), (1.3, "bf16"), (3.0, "bf16")])
def test_bf16_is_taken_where_it_measured_faster(gain: float, choice: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "measure_bf16_speedup", lambda: gain)
    chosen, decisions = _resolve(EngineConfig(device="cpu"))
    assert chosen.precision == choice
    assert f"{gain:.1f}x" in decisions["precision"].reason


def test_missing_kernels_leave_the_plain_layers():
    chosen, decisions = _resolve(kernels="install g++")
    assert chosen.kernels == "plain"
    assert decisions["kernels"].reason == "install g++"
    assert _resolve(norm="batch")[0].kernels == "plain"


def test_a_missing_device_is_a_readable_error():
    assert resolve_device("cpu") == torch.device("cpu")
    for device in ("cuda:99", "toaster"):
        with pytest.raises(ValueError, match=rf"engine.device={device}: not available .*choose auto"):
            resolve_device(device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """A configuration that takes this machine for one with CUDA and all that compiles for it."""
    monkeypatch.setattr(devices, "resolve_device", torch.device)
    monkeypatch.setattr(engine_rules, "find_missing_compiler", lambda device: "")
    return EngineConfig(device="cuda", precision="bf16")


def test_auto_on_a_gpu_captures_the_step(gpu: EngineConfig):
    chosen, decisions = _resolve(gpu)
    assert (chosen.mode, chosen.compile) == ("graph", "on")
    assert "host" in decisions["mode"].reason


@pytest.mark.parametrize("seconds", [60.0, None])
@pytest.mark.parametrize("mode", ["auto", "eager", "graph", "streams"])
@pytest.mark.parametrize("recomputes", ["off", "on"])
def test_auto_does_not_choose_the_triton_kernels(seconds: float | None, mode: Any, recomputes: Any, gpu: EngineConfig):
    requested = gpu.model_copy(update={"mode": mode, "checkpoint_activations": recomputes})
    assert _resolve(requested, seconds=seconds)[0].kernels == "plain"


@pytest.mark.parametrize(
    ("capability", "choice"),
    [((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "fp32")],
)
def test_a_gpu_without_bf16_computes_in_fp16(
    capability: tuple[int, int], choice: str, gpu: EngineConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    requested = gpu.model_copy(update={"precision": "auto"})
    chosen, decisions = _resolve(requested)
    assert (chosen.precision, chosen.mode) == (choice, "graph")
    assert "this GPU has no bf16" in decisions["precision"].reason


UNCAPTURED: list[dict[str, Any]] = [
    {"has_one_size": False},
    {"optimizers": {"adam", "rmsprop"}},
    {"processes": 2},
]


@pytest.mark.parametrize("settings", UNCAPTURED)
def test_what_cannot_be_captured_is_not_by_auto(settings: dict[str, Any], gpu: EngineConfig):
    chosen, decisions = _resolve(gpu, **settings)
    assert chosen.mode == "eager"
    assert decisions["mode"].reason != "requested"


CAPTURED = [
    ({"mode": mode}, settings, f"engine.mode={mode}") for mode in ("graph", "streams") for settings in UNCAPTURED
]


@pytest.mark.parametrize(
    ("requested", "settings", "field"),
    [
        *CAPTURED,
        ({"mode": "graph", "checkpoint_activations": "on"}, {"has_dropout": True}, "engine.mode=graph"),
        ({"mode": "streams"}, {"norm": "batch"}, "engine.mode=streams"),
        ({"checkpoint_activations": "on"}, {"norm": "batch"}, "engine.checkpoint_activations=on"),
        ({"checkpoint_activations": "on", "compile": "on"}, {}, "engine.compile=on"),
        ({"kernels": "winograd"}, {}, "engine.kernels=winograd"),
        ({"kernels": "native", "compile": "on"}, {}, "engine.kernels=native"),
        ({"kernels": "native", "precision": "fp16"}, {}, "engine.kernels=native"),
        ({"device": "mps"}, {"processes": 2}, "engine.device=mps"),
        ({"device": "cpu"}, {"processes": 2, "norm": "sync_batch"}, "norm=sync_batch"),
    ],
)
def test_conflicts_are_refused_with_the_field_and_a_fix(
    requested: dict[str, str], settings: dict[str, Any], field: str, gpu: EngineConfig
):
    with pytest.raises(ValueError, match=rf"^{field} .*: set "):
        _resolve(gpu.model_copy(update=requested), **settings)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(("gain", "choice"), [(0.0, "native"), (1.05, "native"), (1.9, "winograd")])
def test_winograd_is_taken_where_it_measured_faster_in_that_precision(gain: float, choice: str, precision: Any):
    config = EngineConfig(device="cpu", precision=precision)
    chosen, decisions = _resolve(config, gemm_speedup=lambda kind: gain if kind == precision else 9.0)
    assert chosen.kernels == choice
    assert (f"{precision} convolutions measured {gain:.1f}x" in decisions["kernels"].reason) == (choice == "winograd")


def test_resolved_settings_stay_when_resolved_again(monkeypatch: pytest.MonkeyPatch):
    chosen, _ = _resolve(EngineConfig(device="cpu"))
    monkeypatch.setattr(precision, "measure_bf16_speedup", lambda: pytest.fail("measured again"))
    again, decisions = _resolve(chosen, kernels=None)
    assert again == chosen
    assert {decision.reason for decision in decisions.values()} == {"requested"}


def test_float16_on_a_cpu_uses_the_plain_layers():
    assert _resolve(EngineConfig(device="cpu", precision="fp16"))[0].kernels == "plain"


def test_bf16_that_a_gpu_emulates_is_not_supported(gpu: EngineConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    chosen = gpu.model_copy(update={"mode": "graph", "kernels": "plain", "compile": "off"})
    assert unsupported_reason(chosen) == "this GPU has no bf16"
