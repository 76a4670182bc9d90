from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.kernels.fused import Fused
from velogan.kernels.native import NormKernels
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator


def _generator(**fields: Any) -> nn.Module:
    return build_generator(GeneratorConfig.model_validate({"channels": 4, "blocks": 2, "init_gain": 0.3} | fields))


def _judge(**fields: Any) -> nn.Module:
    return build_discriminator(DiscriminatorConfig.model_validate({"channels": 4, "init_gain": 0.3} | fields))


NETS = {
    "resnet": lambda: _generator(),
    "resnet without blocks": lambda: _generator(blocks=0),
    "resnet, batch norm": lambda: _generator(norm="batch"),
    "resnet, no norm": lambda: _generator(norm="none", init_gain=0.1),
    "unet": lambda: _generator(network="unet_128", channels=2),
    "patch": lambda: _judge(),
    "deep patch": lambda: _judge(network="n_layers", layers=4),
    "pixel": lambda: _judge(network="pixel"),
    "patch, batch norm": lambda: _judge(norm="batch"),
}


def _result(player: nn.Module, net: nn.Module, images: Tensor) -> dict[str, Tensor]:
    net.zero_grad()
    images = images.clone().requires_grad_()
    out = player(images)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    dead = {name for name, p in net.named_parameters() if p.grad is None}
    assert all(name.endswith("bias") for name in dead)
    grads = {name: p.grad for name, p in net.named_parameters() if name.endswith("weight") and p.grad is not None}
    assert images.grad is not None
    return {"out": out.detach(), "images": images.grad, **grads}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_fused_network_is_the_network(name: str, training: bool, kernels: NormKernels):
    torch.manual_seed(0)
    net = NETS[name]().train(training)
    side = 128 if name == "unet" else 52
    images = torch.rand(2, 3, side, side) * 2 - 1
    expected = _result(net, net, images)
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
    assert not torch.equal(fused(images), before)  # it plays the weights as they are now


@pytest.mark.parametrize("network", ["resnet", "unet_128"])
def test_dropout_draws_as_in_the_plain_network(network: str, kernels: NormKernels):
    torch.manual_seed(0)
    net = _generator(dropout=True, network=network)
    fused, images = Fused(net, kernels), torch.rand(2, 3, 128, 128) * 2 - 1
    results = []
    for player, seed in ((net, 1), (fused, 1), (fused, 2)):
        torch.manual_seed(seed)
        results.append(player(images).detach())
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
