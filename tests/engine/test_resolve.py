from __future__ import annotations

from typing import Any

import pytest
import torch

from velogan.engine import resolve as room
from velogan.engine.config import EngineConfig
from velogan.engine.resolve import REFERENCE, bf16_gain, default_threads, resolve, resolve_device

KERNELS: Any = object()


def _resolve(config: EngineConfig | None = None, *, norm: str = "instance", kernels: Any = KERNELS, **settings: Any):
    asked = {"second_derivatives": False, "run_seconds": None} | settings
    config = config or EngineConfig(device="cpu", precision="fp32")
    chosen, picks = resolve(config, load_kernels=lambda: kernels, norms={norm}, **asked)
    return chosen, {pick.what: pick for pick in picks}


def test_auto_on_a_cpu_takes_everything_fast_and_says_why():
    chosen, picks = _resolve(EngineConfig(device="cpu"))
    assert (chosen.batched, chosen.fused_optimizer, chosen.kernels, chosen.compile) == ("on", "on", "native", "off")
    assert chosen.threads == default_threads()
    assert set(picks) == {"device", "precision", "layout", "batched", "fused_optimizer", "kernels", "compile"}
    assert all(pick.why for pick in picks.values())
    assert all(getattr(chosen, what) == pick.choice for what, pick in picks.items())
    assert "auto" not in chosen.model_dump(exclude={"mode"}).values()


def test_what_was_decided_is_kept_when_decided_again(monkeypatch: pytest.MonkeyPatch):
    chosen, _ = _resolve(EngineConfig(device="cpu"))
    monkeypatch.setattr(room, "bf16_gain", lambda: pytest.fail("measured again"))
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
    monkeypatch.setattr(room, "bf16_gain", lambda: gain)
    chosen, picks = _resolve(EngineConfig(device="cpu"))
    assert chosen.precision == choice
    assert f"{gain:.1f}x" in picks["precision"].why


def test_the_gain_is_a_ratio_and_leaves_the_threads_alone():
    torch.set_num_threads(2)
    assert 0.05 < bf16_gain() < 50
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("norm", ["batch", "sync_batch"])
def test_batch_norm_keeps_passes_apart_and_refuses_otherwise(norm: str):
    assert _resolve(norm=norm)[0].batched == "off"
    with pytest.raises(ValueError, match=r"engine.batched=on changes .* batch norm: set engine.batched=off"):
        _resolve(EngineConfig(device="cpu", precision="fp32", batched="on"), norm=norm)


def test_the_gradient_penalty_refuses_compilation():
    assert _resolve(kernels=None, second_derivatives=True)[0].compile == "off"
    with pytest.raises(ValueError, match=r"engine.compile=on cannot compute wgangp"):
        _resolve(EngineConfig(device="cpu", precision="fp32", compile="on"), second_derivatives=True)


def test_missing_kernels_leave_the_plain_layers():
    chosen, picks = _resolve(kernels=None)
    assert chosen.kernels == "plain"
    assert "install g++" in picks["kernels"].why
    assert _resolve(norm="batch")[0].kernels == "plain"


def test_a_missing_device_is_a_readable_error():
    assert resolve_device("cpu") == torch.device("cpu")
    for device in ("cuda:99", "toaster"):
        with pytest.raises(ValueError, match=rf"engine.device={device} cannot be used here .*choose auto"):
            resolve_device(device)


@pytest.mark.parametrize(("seconds", "choice"), [(60.0, "off"), (7200.0, "on"), (None, "on")])
def test_compilation_pays_on_a_gpu_in_a_long_run(seconds: float | None, choice: str):
    assert room._compile(torch.device("cuda"), native=False, second=False, seconds=seconds)[0] == choice
