from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.kernels.fused import Fused
from velogan.kernels.norms import NormKernels
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, ResidualBlock, build_generator
from velogan.networks.layers import initialise


def _generator(*, gain: float = 0.3, **fields: Any) -> nn.Module:
    net = build_generator(GeneratorConfig.model_validate({"channels": 4, "blocks": 2} | fields))
    return initialise(net, gain=gain)


def _discriminator(**fields: Any) -> nn.Module:
    return initialise(build_discriminator(DiscriminatorConfig.model_validate({"channels": 4} | fields)), gain=0.3)


CELLS = ("conv7", "max_pool", "conv7", "dilated5", "conv5", "conv3", "bilinear", "transposed3")
CODE = ("conv7", "conv4", *CELLS[1:], "conv5")

NETS = {
    "resnet": lambda: _generator(),
    "resnet without blocks": lambda: _generator(blocks=0),
    "resnet, batch norm": lambda: _generator(norm="batch", gain=0.1),  # or the last tanh is at its ends in eval mode
    "resnet, norm with weights": lambda: _generator(norm="instance_affine"),
    "resnet, no norm": lambda: _generator(norm="none", gain=0.1),
    "resnet, resize": lambda: _generator(decoder="resize"),
    "unet": lambda: _generator(network="unet_128", channels=2),
    "cells": lambda: _generator(network="cells", channels=6, operations=CELLS),
    "cells, code": lambda: _generator(network="cells", channels=6, operations=CODE, space="code"),
    "patch of cells": lambda: _discriminator(network="cells", operations=("conv5", "max_pool", "dilated3", "conv4")),
    "patch": lambda: _discriminator(),
    "deep patch": lambda: _discriminator(network="n_layers", layers=4),
    "pixel": lambda: _discriminator(network="pixel"),
    "patch, batch norm": lambda: _discriminator(norm="batch"),
    "patch, spectral norm": lambda: _discriminator(norm="spectral"),
}


def _result(forward_net: nn.Module, net: nn.Module, images: Tensor) -> dict[str, Tensor]:
    net.zero_grad()
    images = images.clone().requires_grad_()
    out = forward_net(images)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    dead = {name for name, p in net.named_parameters() if p.grad is None}
    assert all(name.endswith("bias") for name in dead)
    weights = {name: p for name, p in net.named_parameters() if name.endswith(("weight", "weight.original"))}
    grads = {name: p.grad for name, p in weights.items() if p.grad is not None}
    assert images.grad is not None
    return {"out": out.detach(), "images": images.grad, **grads}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_fused_network_is_the_network(name: str, training: bool, kernels: NormKernels):
    torch.manual_seed(0)
    net = NETS[name]().train(training)
    side = 128 if name == "unet" else 52
    images = torch.rand(2, 3, side, side) * 2 - 1
    start = deepcopy(net.state_dict())
    expected = _result(net, net, images)
    net.load_state_dict(start)  # running statistics and power iterations
    seen = _result(Fused(net, kernels), net, images)
    assert seen.keys() == expected.keys()
    torch.testing.assert_close(seen["out"], expected["out"], rtol=1e-4, atol=1e-4)
    for key, value in expected.items():  # rounding may turn a ReLU's gradient on or off here and there
        assert (seen[key] - value).norm() < 0.01 * value.norm(), key


def test_it_holds_no_weights_of_its_own(kernels: NormKernels):
    net = _generator()
    fused = Fused(net, kernels)
    assert not list(fused.parameters())
    images = torch.rand(1, 3, 16, 16)
    before = fused(images)
    with torch.no_grad():
        net.get_parameter("model.1.weight").mul_(-0.5)
    assert not torch.equal(fused(images), before)  # it uses the weights as they are now


@pytest.mark.parametrize("network", ["resnet", "unet_128"])
def test_dropout_draws_as_in_the_plain_network(network: str, kernels: NormKernels):
    torch.manual_seed(0)
    net = _generator(dropout=True, network=network)
    fused, images = Fused(net, kernels), torch.rand(2, 3, 128, 128) * 2 - 1
    results = []
    for forward_net, seed in ((net, 1), (fused, 1), (fused, 2)):
        torch.manual_seed(seed)
        results.append(forward_net(images).detach())
    plain, same, other = results
    # the masks are laid out by memory, which differs; their share does not
    torch.testing.assert_close(same.mean(), plain.mean(), rtol=0.05, atol=0.05)
    assert not torch.equal(same, other)
    net.eval()
    torch.testing.assert_close(fused(images), net(images), rtol=1e-3, atol=1e-4)


def test_bf16_stays_within_rounding(kernels: NormKernels):
    torch.manual_seed(0)
    net, images = _generator(), torch.rand(1, 3, 32, 32) * 2 - 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = Fused(net, kernels)(images)
    assert out.dtype == torch.bfloat16
    assert (out.float() - net(images)).abs().mean() < 0.02


def test_a_flat_image_gives_finite_gradients(kernels: NormKernels):
    net = _generator()
    out = Fused(net, kernels)(torch.zeros(1, 3, 16, 16))
    out.square().mean().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


class _Plus(nn.Module):
    """`x + model(x)`, and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.InstanceNorm2d(4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.model(x)


class _NotResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.InstanceNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_block(x)


class _HalfResidual(ResidualBlock):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + self.conv_block(x)


class _Widened(ResidualBlock):
    """Its forward is inherited, and does not see what it adds."""

    def __init__(self) -> None:
        super().__init__(4, norm="instance", dropout=False)
        self.extra = nn.Conv2d(4, 4, 3)


class _Reversed(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        for layer in reversed(self):
            input = layer(input)
        return input


class _TwiceNorm(nn.InstanceNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class _NegativeConvolution(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return -super().forward(input)


def _doubled(module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return inputs[0] * 2


def _hooked(net: nn.Module, name: str) -> nn.Module:
    net.get_submodule(name).register_forward_pre_hook(_doubled)
    return net


def _patched() -> nn.Module:
    block = ResidualBlock(4, norm="instance", dropout=False)
    block.forward = block.conv_block.forward  # pyright: ignore[reportAttributeAccessIssue]
    return block


UNDECLARED = {
    "x + model(x)": _Plus,
    "conv_block without a residual": _NotResidual,
    "another forward": lambda: _HalfResidual(4, norm="instance", dropout=False),
    "another forward of one object": _patched,
    "an unused layer": _Widened,
    "a sequence in another order": lambda: _Reversed(nn.ReLU(), nn.Conv2d(4, 4, 1)),
    "another norm": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), _TwiceNorm(4)),
    "another convolution": lambda: nn.Sequential(_NegativeConvolution(4, 4, 5), nn.InstanceNorm2d(4)),
    "another padding": lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", bias=False),
    "hook of a block": lambda: _hooked(nn.Sequential(ResidualBlock(4, norm="instance", dropout=False)), "0"),
    "hook of a layer": lambda: _hooked(nn.Sequential(nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4), nn.ReLU()), "0"),
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_what_declares_no_form_is_called_as_it_is(name: str, kernels: NormKernels):
    torch.manual_seed(0)
    net, images = nn.Sequential(UNDECLARED[name](), nn.Tanh()), torch.rand(2, 4, 12, 12)
    torch.testing.assert_close(Fused(net, kernels)(images), net(images), rtol=1e-4, atol=1e-4)


def test_a_class_that_inherits_forward_inherits_the_declaration(kernels: NormKernels):
    class Named(ResidualBlock):
        pass

    called: list[int] = []
    net = Named(4, norm="instance", dropout=False)
    fused, images = Fused(nn.Sequential(net), kernels), torch.rand(1, 4, 12, 12)
    forward = Named.forward
    Named.forward = lambda self, x: called.append(1) or forward(self, x)
    torch.testing.assert_close(fused(images), net(images), rtol=1e-4, atol=1e-4)
    assert len(called) == 1  # by the plain network alone


def test_a_hook_of_later_is_called(kernels: NormKernels):
    torch.manual_seed(0)
    net, images = _generator(), torch.rand(1, 3, 16, 16)
    fused = Fused(net, kernels)
    before = fused(images)
    handle = net.get_submodule("model.1").register_forward_hook(lambda module, inputs, output: output.roll(3, 2) ** 2)
    torch.testing.assert_close(fused(images), net(images), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(fused(images), before, atol=1e-3)
    handle.remove()
    assert torch.equal(fused(images), before)
