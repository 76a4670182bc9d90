from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.kernels import inference
from velogan.kernels.inference import Accelerator
from velogan.kernels.isa import supported_levels
from velogan.kernels.winograd import WinogradInferenceConv
from velogan.networks.generators import GeneratorConfig, build_generator

CPU = torch.device("cpu")


def _network(in_channels: int = 3, **config: Any) -> nn.Module:
    torch.manual_seed(0)
    settings = {"channels": 4, "blocks": 1, "init": "kaiming"}
    return build_generator(GeneratorConfig.model_validate(settings | config), in_channels=in_channels).eval()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "inference-kernels"  # for all tests: compiled once


def _accelerator(folder: Path, monkeypatch: pytest.MonkeyPatch, *, precision: str, winograd: bool) -> Accelerator:
    monkeypatch.setattr(inference, "precision_for", lambda device: (precision, ""))
    monkeypatch.setattr(inference, "_winograd_speedup", lambda layer, other: 2.0 if winograd else 0.5)
    return Accelerator(CPU, folder)


@pytest.mark.parametrize(
    "config",
    [
        {"norm": "batch"},
        {"network": "unet_128"},
        {"channels": 16},
        {"pictures": 1, "antialias": "both", "padding": "reflect"},
    ],
)
def test_faster_networks_equal_the_plain_one_to_rounding(
    config: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = config.pop("pictures", 3)
    net = _network(in_channels=channels, **config)
    accelerate = _accelerator(folder, monkeypatch, precision="bf16", winograd=True)
    side = 128 if "network" in config else 33 * 4
    x = torch.rand(2, channels, side, side) * 2 - 1
    with torch.inference_mode():
        plain = net(x)
        exact, rough = accelerate(net, rounded=False)(x), accelerate(net, rounded=True)(x)
    assert exact.dtype == rough.dtype == torch.float32
    assert (exact - plain).abs().mean() < 1e-5
    assert 1e-5 < (rough - plain).abs().mean() < 0.03  # bfloat16 has 8 bits
    assert torch.equal(net(x), plain)  # the plain network is unchanged


def test_measurements_decide(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = _network(channels=16)
    native = "avx512-bf16" in supported_levels()
    for precision, winograd, count, dtype in (
        ("bf16", True, 2 if native else 0, torch.bfloat16),
        ("bf16", False, 0, torch.bfloat16),
        ("fp32", True, 0, torch.float32),
    ):
        networks: list[nn.Module] = []
        monkeypatch.setattr(inference, "Fused", lambda net, _, networks=networks: networks.append(net) or net)
        accelerate = _accelerator(folder, monkeypatch, precision=precision, winograd=winograd)
        accelerate(net, rounded=True)
        assert sum(isinstance(layer, WinogradInferenceConv) for layer in networks[0].modules()) == count
        assert accelerate.dtype(rounded=True) == dtype
        assert accelerate.dtype(rounded=False) == torch.float32


def test_the_last_convolution_stays_exact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 near 1 has steps of half a level of 255, which would show in bright pictures."""
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1)).eval()
    bf16 = _accelerator(folder, monkeypatch, precision="bf16", winograd=False)(net, rounded=True)
    with torch.inference_mode():
        result = bf16(torch.rand(1, 3, 8, 8))
    assert not torch.equal(result, result.bfloat16().float())


def test_without_a_compiler_the_plain_layers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/absent")
    net, x = _network(), torch.rand(1, 3, 16, 16)
    with torch.inference_mode():
        result = Accelerator(CPU, tmp_path)(net, rounded=False)(x)
        torch.testing.assert_close(result, net(x), rtol=0, atol=1e-4)


def test_precision_is_measured_even_without_gradients(tmp_path: Path) -> None:
    with torch.inference_mode():
        assert Accelerator(CPU, tmp_path).dtype(rounded=True) in (torch.float32, torch.bfloat16)


class _Backwards(nn.Module):
    """Runs its layers in another order than they are registered, and reads the weights of one, undeclared."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.conv2d(x, self.first.weight, self.first.bias))


def test_undeclared_networks_stay_exact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(_Backwards(), nn.ReLU()).eval(), torch.rand(1, 3, 20, 20)
    accelerate = _accelerator(folder, monkeypatch, precision="bf16", winograd=True)
    torch.testing.assert_close(accelerate(net, rounded=True)(x), net(x))
