from __future__ import annotations

from typing import Any

import pytest
import torch

from velogan.engine import device as devices
from velogan.engine.config import EngineConfig
from velogan.engine.device import device_for, resolve_device
from velogan.engine.processes import default_threads
from velogan.kernels import precision
from velogan.training import resolve as room
from velogan.training.choices import unable
from velogan.training.resolve import REFERENCE, Needs, resolve

KERNELS: Any = object()


def _resolve(config: EngineConfig | None = None, *, norm: str = "instance", kernels: Any = KERNELS, **settings: Any):
    gemm_gain = settings.pop("gemm_gain", lambda precision: 0.0)
    asked: dict[str, Any] = {"seconds": None, "skips": False, "one_size": True}
    needs = Needs(norms={norm}, **{**asked, "optimizers": {"adam"}, "dropout": False, **settings})
    config = config or EngineConfig(device="cpu", precision="fp32")
    chosen, picks = resolve(config, needs, load_kernels=lambda device: kernels, gemm_gain=gemm_gain)
    return chosen, {pick.what: pick for pick in picks}


def test_auto_on_a_cpu_takes_everything_fast_and_says_why():
    chosen, picks = _resolve(EngineConfig(device="cpu"))
    assert (chosen.batched, chosen.kernels, chosen.compile) == ("on", "native", "off")
    assert chosen.threads == default_threads()
    assert chosen.capture == "off"
    assert set(picks) == {"device", *REFERENCE}
    assert all(pick.why for pick in picks.values())
    assert all(getattr(chosen, what) == pick.choice for what, pick in picks.items())
    assert "auto" not in chosen.model_dump(exclude={"mode"}).values()


def test_what_was_decided_is_kept_when_decided_again(monkeypatch: pytest.MonkeyPatch):
    chosen, _ = _resolve(EngineConfig(device="cpu"))
    monkeypatch.setattr(precision, "bf16_gain", lambda: pytest.fail("measured again"))
    again, picks = _resolve(chosen, kernels=None, norm="batch" if chosen.batched == "off" else "instance")
    assert again == chosen
    assert {pick.why for pick in picks.values()} == {"asked for"}


def test_reference_is_the_slow_path_whatever_else_is_said():
    chosen, picks = _resolve(EngineConfig(mode="reference", device="cpu", precision="bf16", compile="on", threads=3))
    assert {name: getattr(chosen, name) for name in REFERENCE} == REFERENCE
    assert REFERENCE["precision"] == "fp32"
    assert chosen.threads == 3
    assert picks["mode"].choice == "reference"


@pytest.mark.parametrize(("gain", "choice"), [(0.9, "fp32"), (1.1, "fp32"), (1.3, "bf16"), (3.0, "bf16")])
def test_bf16_is_taken_where_it_measured_faster(gain: float, choice: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "bf16_gain", lambda: gain)
    chosen, picks = _resolve(EngineConfig(device="cpu"))
    assert chosen.precision == choice
    assert f"{gain:.1f}x" in picks["precision"].why


def test_the_gain_is_a_ratio_and_leaves_the_threads_alone():
    torch.set_num_threads(2)
    precision.bf16_gain.cache_clear()
    assert 0.05 < precision.bf16_gain() < 50
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("norm", ["batch", "sync_batch"])
def test_batch_norm_keeps_passes_apart_and_refuses_otherwise(norm: str):
    assert _resolve(norm=norm)[0].batched == "off"
    with pytest.raises(ValueError, match=r"engine.batched=on changes .* batch norm: set engine.batched=off"):
        _resolve(EngineConfig(device="cpu", precision="fp32", batched="on"), norm=norm)


def test_missing_kernels_leave_the_plain_layers():
    chosen, picks = _resolve(kernels="install g++")
    assert chosen.kernels == "plain"
    assert picks["kernels"].why == "install g++"
    assert _resolve(norm="batch")[0].kernels == "plain"


def test_a_missing_device_is_a_readable_error():
    assert resolve_device("cpu") == torch.device("cpu")
    for device in ("cuda:99", "toaster"):
        with pytest.raises(ValueError, match=rf"engine.device={device} cannot be used here .*choose auto"):
            resolve_device(device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """A configuration that takes this machine for one with CUDA and all that compiles for it."""
    monkeypatch.setattr(devices, "resolve_device", torch.device)
    monkeypatch.setattr(room, "compiler_missing", lambda device: "")
    return EngineConfig(device="cuda", precision="bf16")


@pytest.mark.parametrize(("seconds", "choice"), [(60.0, "off"), (7200.0, "on"), (None, "on")])
def test_compilation_pays_on_a_gpu_in_a_long_run(
    seconds: float | None, choice: str, gpu: EngineConfig, monkeypatch: pytest.MonkeyPatch
):
    assert _resolve(gpu, kernels="none", seconds=seconds)[0].compile == choice
    monkeypatch.setattr(room, "compiler_missing", lambda device: "Triton")
    assert _resolve(gpu, kernels="none", seconds=seconds)[0].compile == "off"


def test_auto_on_a_gpu_captures_the_step(gpu: EngineConfig):
    chosen, picks = _resolve(gpu)
    assert (chosen.capture, chosen.batched, chosen.compile) == ("on", "on", "on")
    assert "host" in picks["capture"].why


@pytest.mark.parametrize("seconds", [60.0, None])
@pytest.mark.parametrize("mode", ["auto", "eager", "compiled", "graph", "streams"])
@pytest.mark.parametrize("recomputes", ["off", "on"])
def test_auto_does_not_choose_the_triton_kernels(seconds: float | None, mode: Any, recomputes: Any, gpu: EngineConfig):
    if (mode, recomputes) == ("compiled", "on"):
        recomputes = "auto"  # the two exclude each other
    asked = gpu.model_copy(update={"mode": mode, "checkpoint_activations": recomputes})
    assert _resolve(asked, seconds=seconds)[0].kernels == "plain"


@pytest.mark.parametrize("seconds", [60.0, None])
def test_the_triton_kernels_are_chosen_on_request_and_nothing_is_compiled_then(
    seconds: float | None, gpu: EngineConfig
):
    chosen, _ = _resolve(gpu.model_copy(update={"kernels": "native"}), seconds=seconds)
    assert (chosen.kernels, chosen.compile) == ("native", "off")


def test_kernels_of_another_device_are_refused(gpu: EngineConfig):
    with pytest.raises(ValueError, match=r"engine.kernels=winograd is for CPUs, not cuda"):
        _resolve(gpu.model_copy(update={"kernels": "winograd"}))
    with pytest.raises(ValueError, match=r"engine.kernels=native and engine.compile=on are two ways"):
        _resolve(gpu.model_copy(update={"kernels": "native", "compile": "on"}))


@pytest.mark.parametrize(
    ("capability", "choice"),
    [((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "fp32")],
)
def test_a_gpu_without_bf16_computes_in_fp16(
    capability: tuple[int, int], choice: str, gpu: EngineConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    asked = gpu.model_copy(update={"precision": "auto"})
    chosen, picks = _resolve(asked)
    assert (chosen.precision, chosen.capture) == (choice, "on")
    assert "this GPU has no bf16" in picks["precision"].why


@pytest.mark.parametrize(("asked", "current"), [("cuda", []), ("cuda:1", [1])])
def test_a_gpu_with_a_number_is_the_current_one(asked: str, current: list[int], monkeypatch: pytest.MonkeyPatch):
    became: list[int | None] = []
    monkeypatch.setattr(devices, "resolve_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: became.append(device.index))
    assert device_for(EngineConfig(device=asked)) == torch.device(asked)
    assert became == current


def test_bf16_that_a_gpu_emulates_is_decided_again(gpu: EngineConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    chosen = gpu.model_copy(update={"precision": "bf16"})
    assert unable(chosen) == "this GPU has no bf16"


def test_fp16_on_a_cpu_is_plain():
    half = EngineConfig(device="cpu", precision="fp16")
    assert _resolve(half)[0].kernels == "plain"
    with pytest.raises(ValueError, match=r"engine.kernels=native does not compute in float16"):
        _resolve(half.model_copy(update={"kernels": "native"}))


PLAIN = {"kernels": "plain"}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("eager", PLAIN | {"compile": "off", "capture": "off", "batched": "on"}),
        ("compiled", PLAIN | {"compile": "on", "capture": "off", "batched": "on"}),
        ("graph", PLAIN | {"compile": "on", "capture": "on", "batched": "on"}),
        ("streams", PLAIN | {"capture": "on", "batched": "off"}),
    ],
)
def test_a_mode_decides_what_is_auto_and_nothing_else(mode: str, expected: dict[str, str], gpu: EngineConfig):
    chosen, picks = _resolve(gpu.model_copy(update={"mode": mode}))
    assert {name: getattr(chosen, name) for name in expected} == expected
    assert any(pick.why == f"engine.mode={mode}" for pick in picks.values())
    again, _ = _resolve(chosen)
    assert again == chosen
    for what in ("capture", "compile"):
        asked = gpu.model_copy(update={"mode": mode, what: "off"})
        assert getattr(_resolve(asked)[0], what) == "off"


def test_activations_are_recomputed_where_asked_for_alone(gpu: EngineConfig):
    assert _resolve(gpu)[0].checkpoint_activations == "off"
    chosen, picks = _resolve(gpu.model_copy(update={"checkpoint_activations": "on"}))
    assert (chosen.checkpoint_activations, chosen.compile, chosen.capture) == ("on", "off", "on")
    chosen, picks = _resolve(gpu.model_copy(update={"checkpoint_activations": "on"}), dropout=True)
    assert (chosen.capture, picks["capture"].why.partition(" ")[0]) == ("off", "dropout")


@pytest.mark.parametrize(
    ("also", "settings", "message"),
    [
        ({}, {"norm": "batch"}, "count each batch twice: set .*checkpoint_activations=off, or norm=instance"),
        ({"compile": "on"}, {}, "engine.compile=on, which chooses"),
        ({"capture": "on"}, {"dropout": True}, "engine.capture=on cannot: set engine.capture=off, or"),
    ],
)
def test_activations_that_cannot_be_recomputed_are_refused(
    also: dict[str, str], settings: dict[str, Any], message: str, gpu: EngineConfig
):
    asked = gpu.model_copy(update={"checkpoint_activations": "on", **also})
    with pytest.raises(ValueError, match=message):
        _resolve(asked, **settings)


@pytest.mark.parametrize(("mode", "compile"), [("eager", "off"), ("compiled", "on")])
def test_the_modes_of_a_cpu_leave_the_native_kernels_out(mode: str, compile: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "compiler_missing", lambda device: "")
    chosen, _ = _resolve(EngineConfig.model_validate({"mode": mode, "device": "cpu", "precision": "fp32"}))
    assert (chosen.kernels, chosen.compile, chosen.capture) == ("plain", compile, "off")
    assert (chosen.batched, chosen.channels_last) == ("on", True)


@pytest.mark.parametrize("mode", ["graph", "streams"])
def test_modes_for_cuda_are_refused_elsewhere(mode: str):
    with pytest.raises(ValueError, match=rf"engine.mode={mode} needs a CUDA device, and this is cpu: set engine.mode"):
        _resolve(EngineConfig.model_validate({"mode": mode, "device": "cpu"}))


def test_capture_is_refused_elsewhere():
    with pytest.raises(ValueError, match=r"engine.capture=on needs a CUDA device, .* set engine.capture=off"):
        _resolve(EngineConfig(device="cpu", precision="fp32", capture="on"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"skips": True}, "on_nonfinite=skip"),
        ({"one_size": False}, "differ in size"),
        ({"optimizers": {"adam", "rmsprop"}}, "no fused rmsprop"),
    ],
)
def test_what_cannot_be_captured_is_not(settings: dict[str, Any], why: str, gpu: EngineConfig):
    chosen, picks = _resolve(gpu, **settings)
    assert chosen.capture == "off"
    assert why in picks["capture"].why


@pytest.mark.parametrize(
    ("asked", "settings", "message"),
    [
        ({"capture": "on"}, {"skips": True}, r"engine.capture=on cannot leave out .* set engine.capture=off, or train"),
        ({"mode": "graph"}, {"skips": True}, r"engine.capture=on cannot leave out broken steps"),
        ({"capture": "on"}, {"optimizers": {"radam"}}, r"set an optimizer kind of adam, adamw, sgd, or engine.capture"),
        ({"mode": "streams", "batched": "on"}, {}, r"engine.mode=streams runs cycles apart: set engine.batched=off"),
        ({"mode": "streams"}, {"norm": "batch"}, r"changes the mathematics of batch norm.* set engine.mode=auto"),
    ],
)
def test_combinations_that_cannot_be_are_refused_with_the_mend(
    asked: dict[str, str], settings: dict[str, Any], message: str, gpu: EngineConfig
):
    with pytest.raises(ValueError, match=message):
        _resolve(gpu.model_copy(update=asked), **settings)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "compiler_missing", lambda device: "Triton")
    with pytest.raises(ValueError, match=r"engine.compile=on needs Triton: install it, or set engine.compile=off"):
        _resolve(EngineConfig(mode="compiled", device="cpu", precision="fp32"))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(("gain", "choice"), [(0.0, "native"), (1.05, "native"), (1.9, "winograd")])
def test_winograd_is_taken_where_it_measured_faster_in_that_precision(gain: float, choice: str, precision: Any):
    config = EngineConfig(device="cpu", precision=precision)
    chosen, picks = _resolve(config, gemm_gain=lambda kind: gain if kind == precision else 9.0)
    assert chosen.kernels == choice
    assert (f"{precision} convolutions measured {gain:.1f}x" in picks["kernels"].why) == (choice == "winograd")


def test_passes_stay_apart_where_the_images_differ_in_size():
    assert _resolve(one_size=False)[0].batched == "off"
