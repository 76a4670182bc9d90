from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.networks.layers import InitName, InstanceNorm2d, initialise, norm_layer
from velogan.types import forward_kind_of

FAN_IN, FAN_OUT = 64 * 9, 128 * 9


@pytest.mark.parametrize(
    ("init", "deviation"),
    [
        ("normal", 0.02),
        ("xavier", 0.02 * math.sqrt(2 / (FAN_IN + FAN_OUT))),  # Glorot and Bengio 2010, eq. 16
        ("kaiming", math.sqrt(2 / FAN_IN)),  # He et al. 2015, eq. 10
    ],
)
def test_initial_weights_are_normal_with_the_published_deviation(init: InitName, deviation: float):
    torch.manual_seed(0)
    layer = initialise(nn.Conv2d(64, 128, 3), init=init)
    weight, bias = layer.get_parameter("weight").detach(), layer.get_parameter("bias").detach()
    assert float(weight.std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(weight.mean())) < 0.02 * deviation
    tail = float((weight.abs() > 2 * deviation).float().mean())
    assert tail == pytest.approx(0.0455, abs=0.005)  # of a normal distribution
    assert torch.equal(bias, torch.zeros(128))


def test_initialises_every_kind_of_layer():
    torch.manual_seed(0)
    net = nn.Sequential(nn.ConvTranspose2d(64, 64, 3), nn.Linear(64, 640), nn.BatchNorm2d(4000), nn.SyncBatchNorm(4000))
    for parameter in net.parameters():
        nn.init.constant_(parameter, 7.0)
    initialise(net, gain=0.05)
    for index in (0, 1):
        weight = net[index].get_parameter("weight").detach()
        assert float(weight.std()) == pytest.approx(0.05, rel=0.05)
    for index in (2, 3):
        weight = net[index].get_parameter("weight").detach()
        assert float(weight.mean()) == pytest.approx(1.0, abs=0.005)
        assert float(weight.std()) == pytest.approx(0.05, rel=0.05)
    assert all(not layer.get_parameter("bias").any() for layer in net)
    affine = initialise(norm_layer("instance_affine")(10_000))  # as in the Keras example
    assert isinstance(affine, nn.InstanceNorm2d)
    assert affine.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert abs(affine.weight.mean().item()) < 0.001
    assert affine.eps == 1e-3
    assert not affine.bias.any()
    orthogonal = initialise(nn.Conv2d(16, 8, 3), init="orthogonal", gain=0.5).get_parameter("weight").flatten(1)
    torch.testing.assert_close(orthogonal @ orthogonal.T, 0.25 * torch.eye(8), rtol=1e-4, atol=1e-5)


def test_instance_norm_is_per_sample_in_either_mode():
    layer, images = norm_layer("instance")(3), 5 + 2 * torch.randn(4, 3, 8, 8)
    together = layer(images)
    assert torch.equal(together, torch.cat([layer(image[None]) for image in images]))
    assert torch.equal(layer.eval()(images), together)
    torch.testing.assert_close(together.mean((2, 3)), torch.zeros(4, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(together.var((2, 3), correction=0), torch.ones(4, 3), atol=1e-4, rtol=0)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("gradient_layout", [torch.contiguous_format, torch.channels_last])
def test_gradient_of_instance_norm_in_any_memory_layout(
    count: int, layout: torch.memory_format, gradient_layout: torch.memory_format
):
    images, gradient = torch.randn(count, 8, 16, 16), torch.randn(count, 8, 16, 16)
    exact = images.double().requires_grad_()
    deviation = (exact.var((2, 3), keepdim=True, correction=0) + 1e-5).sqrt()
    ((exact - exact.mean((2, 3), keepdim=True)) / deviation).backward(gradient.double())
    inputs = images.contiguous(memory_format=layout).requires_grad_()
    InstanceNorm2d(8)(inputs).backward(gradient.contiguous(memory_format=gradient_layout))
    assert inputs.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(inputs.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
def test_all_modules_declare_their_forward_kind(norm: str):
    sections: list[dict[str, Any]] = [{}, {"network": "unet_128"}]
    sections += [{"decoder": "simple", "output": "change"}, {"output": "mask"}, {"output": "keep"}]
    shared = {"channels": 2, "norm": norm}
    generators = [GeneratorConfig.model_validate({"blocks": 1, **shared, **fields}) for fields in sections]
    discriminators = [DiscriminatorConfig.model_validate({"network": name, **shared}) for name in ("basic", "pixel")]
    for net in (*map(build_generator, generators), *map(build_discriminator, discriminators)):
        assert not [name for name, module in net.named_modules() if forward_kind_of(module) is None]
