"""Fused networks against the plain ones: with C++ kernels, and with Triton's, on a GPU or in its interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.kernels import gpu
from velogan.kernels.fused import Fused
from velogan.kernels.norms import NormKernels
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, ResidualBlock, build_generator
from velogan.networks.layers import initialise


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def _generator(*, gain: float = 0.3, **fields: Any) -> nn.Module:
    net = build_generator(GeneratorConfig.model_validate({"channels": 4, "blocks": 2} | fields))
    return initialise(net, gain=gain)


def _discriminator(**fields: Any) -> nn.Module:
    return initialise(build_discriminator(DiscriminatorConfig.model_validate({"channels": 4} | fields)), gain=0.3)


CODE = ("conv7", "conv4", "max_pool", "conv7", "dilated5", "conv5", "conv3", "bilinear", "transposed3", "conv5")

NETS: dict[str, Callable[[], Any]] = {
    "resnet": lambda: _generator(),
    "resnet, batch norm": lambda: _generator(norm="batch", gain=0.1),  # else the last tanh saturates in eval mode
    "resnet, no norm": lambda: _generator(norm="none", gain=0.1),
    "resnet, resize": lambda: _generator(decoder="resize"),
    "unet": lambda: _generator(network="unet_128", channels=2),
    "cells, code": lambda: _generator(network="cells", channels=6, operations=CODE, space="code"),
    "patch": lambda: _discriminator(),
    "patch, spectral norm": lambda: _discriminator(norm="spectral"),
}


TRITON_NETS = {"resnet": 12, "resnet, batch norm": 12, "resnet, no norm": 12, "unet": 128, "patch": 36}
TRITON_NETS["patch, spectral norm"] = 36
"""Sides of images."""


def _result(forward_net: nn.Module, net: nn.Module, images: Tensor, *, bf16: bool = False) -> dict[str, Tensor]:
    """Return the result, and the gradients of the images and of all weights except biases before a norm."""
    net.zero_grad()
    images = images.clone().requires_grad_()
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=bf16):
        out = forward_net(images)
    (out.float() * torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)).sum().backward()
    assert images.grad is not None
    assert all(weight.grad is not None or name.endswith("bias") for name, weight in net.named_parameters())
    grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None and not name.endswith("bias")}
    return {"out": out.detach().float(), "images": images.grad, **grads}


def _compare(net: nn.Module, kernels: NormKernels, images: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the results of the fused and of the plain network."""
    start = deepcopy(net.state_dict())
    expected = _result(net, net, images)
    net.load_state_dict(start)  # running statistics and power iterations
    actual = _result(Fused(net, kernels), net, images)
    assert actual.keys() == expected.keys()
    return actual, expected


def _check(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(actual["out"], expected["out"], rtol=1e-4, atol=1e-4)
    for key, value in expected.items():  # rounding may turn a ReLU's gradient on or off here and there
        assert (actual[key] - value).norm() < 0.01 * value.norm(), key


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_fused_network_equals_the_plain_one(name: str, training: bool, kernels: NormKernels):
    torch.manual_seed(0)
    side = 128 if name == "unet" else 52
    _check(*_compare(NETS[name]().train(training), kernels, torch.rand(2, 3, side, side) * 2 - 1))


@pytest.mark.parametrize(("name", "side"), TRITON_NETS.items())
def test_a_network_fused_by_triton_equals_the_plain_one(
    name: str, side: int, triton_norms: NormKernels, device: torch.device
):
    torch.manual_seed(0)
    net = NETS[name]().to(device).to(memory_format=torch.channels_last)
    _check(*_compare(net, triton_norms, (torch.rand(1, 3, side, side) * 2 - 1).to(device)))


@pytest.mark.parametrize(("name", "side"), TRITON_NETS.items())
def test_under_autocast_a_network_fused_as_on_a_gpu_is_as_exact_as_the_plain_one(
    name: str, side: int, kernels: NormKernels, monkeypatch: pytest.MonkeyPatch
):
    """With the CPU's kernels, which are much faster than Triton's interpreter, in the plan of a GPU."""
    monkeypatch.setattr(type(kernels), "on_gpu", True)
    torch.manual_seed(0)
    net = NETS[name]().to(memory_format=torch.channels_last)
    images = (torch.rand(1, 3, side, side) * 2 - 1).contiguous(memory_format=torch.channels_last)
    start, results = deepcopy(net.state_dict()), []
    for forward_net, bf16 in ((net, False), (net, True), (Fused(net, kernels), True)):
        net.load_state_dict(start)  # running statistics and power iterations
        results.append(_result(forward_net, net, images, bf16=bf16))
    exact, plain, fused = results
    assert fused.keys() == exact.keys()
    assert all((fused[key].dtype, fused[key].stride()) == (torch.float32, exact[key].stride()) for key in exact)
    ratios = {key: float((fused[key] - exact[key]).norm() / (plain[key] - exact[key]).norm()) for key in exact}
    assert fmean(ratios.values()) < 1.1, ratios
    assert max(ratios.values()) < 1.5, ratios  # a single ratio depends on how this processor rounds bf16


@pytest.mark.parametrize("network", ["resnet", "unet_128"])
def test_dropout_draws_as_in_the_plain_network(network: str, kernels: NormKernels):
    torch.manual_seed(0)
    net = _generator(dropout=True, network=network)
    fused, images = Fused(net, kernels), torch.rand(2, 3, 128, 128) * 2 - 1
    results = []
    for forward_net, seed in ((net, 1), (fused, 1), (fused, 2)):
        torch.manual_seed(seed)
        results.append(forward_net(images).detach())
    plain, same_seed, other_seed = results
    # masks are laid out by memory, which differs; their share does not
    torch.testing.assert_close(same_seed.mean(), plain.mean(), rtol=0.05, atol=0.05)
    assert not torch.equal(same_seed, other_seed)
    net.eval()
    torch.testing.assert_close(fused(images), net(images), rtol=1e-3, atol=1e-4)


def test_bf16_stays_within_rounding(kernels: NormKernels):
    torch.manual_seed(0)
    net, images = _generator(), torch.rand(1, 3, 32, 32) * 2 - 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = Fused(net, kernels)(images)
    assert out.dtype == torch.bfloat16
    assert (out.float() - net(images)).abs().mean() < 0.02


def test_recomputed_activations_give_the_same_gradients(kernels: NormKernels):
    torch.manual_seed(0)
    net, images = _generator(), torch.rand(1, 3, 12, 12)
    stored, recomputed = (
        _result(Fused(net, kernels, recompute=recompute), net, images, bf16=True) for recompute in (False, True)
    )
    assert all(torch.equal(stored[key], recomputed[key]) for key in stored)


def test_gpu_kernels_are_checked_before_use(device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    load = gpu.load_gpu_kernels.__wrapped__
    assert isinstance(load(device, tmp_path), NormKernels)
    triton_norms = import_module("velogan.kernels.triton_norms").TritonNorms

    def wrong(self: Any, g: Tensor, *_: Any, saved: tuple[Tensor, ...], **__: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(saved[0]), None

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no driver\nand more")

    monkeypatch.setattr(triton_norms, "backward", wrong)
    assert "the plain layers differ" in str(load(device, tmp_path))
    monkeypatch.setattr(triton_norms, "backward", failing)
    assert load(device, tmp_path) == "Triton's kernels do not run here: RuntimeError: no driver"
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert load(device, tmp_path) == "Triton is not installed"


class _HalfResidual(ResidualBlock):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + self.conv_block(x)


class _Widened(ResidualBlock):
    """Inherits a forward that does not use the layer it adds."""

    def __init__(self) -> None:
        super().__init__(4, norm="instance", dropout=False)
        self.extra = nn.Conv2d(4, 4, 3)


class _TwiceNorm(nn.InstanceNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


UNDECLARED = {
    "another forward": lambda: _HalfResidual(4, norm="instance", dropout=False),
    "an unused layer": _Widened,
    "another norm": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), _TwiceNorm(4)),
    "another padding": lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", bias=False),
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_calls_undeclared_modules_unchanged(name: str, kernels: NormKernels):
    torch.manual_seed(0)
    net, images = nn.Sequential(UNDECLARED[name](), nn.Tanh()), torch.rand(2, 4, 12, 12)
    torch.testing.assert_close(Fused(net, kernels)(images), net(images), rtol=1e-4, atol=1e-4)


def test_uses_weights_and_hooks_that_change_later(kernels: NormKernels):
    torch.manual_seed(0)
    net, images = _generator(), torch.rand(1, 3, 16, 16)
    fused = Fused(net, kernels)
    with torch.no_grad():  # the fused network reads the weights of the plain one
        net.get_parameter("model.1.weight").mul_(-0.5)
    before = fused(images)
    torch.testing.assert_close(before, net(images), rtol=1e-4, atol=1e-4)
    handle = net.get_submodule("model.1").register_forward_hook(lambda module, inputs, output: output.roll(3, 2) ** 2)
    torch.testing.assert_close(fused(images), net(images), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(fused(images), before, atol=1e-3)
    handle.remove()
    assert torch.equal(fused(images), before)
