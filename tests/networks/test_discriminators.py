from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from velogan.networks.build import build_network
from velogan.networks.discriminators import (
    DiscriminatorConfig,
    build_discriminator,
    build_encoding_discriminator,
)
from velogan.networks.generators import GeneratorConfig, build_generator, split
from velogan.networks.layers import initialise


def _build(**fields: Any) -> nn.Module:
    return build_discriminator(DiscriminatorConfig.model_validate(fields))


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 2_764_737),
        ({"network": "n_layers", "layers": 3}, 2_764_737),
        ({"network": "pixel"}, (3 * 64 + 64) + (64 * 128 + 128) + (128 * 1 + 1)),
        ({"network": "pixel", "norm": "batch"}, (3 * 64 + 64) + 64 * 128 + 2 * 128 + 128),
        # 3 -> 64 -> 128 -> 256 -> 512 -> 512 -> 1: the width stops growing at eight times
        (
            {"network": "n_layers", "layers": 4},
            16 * (3 * 64 + 64 * 128 + 128 * 256 + 256 * 512 + 512 * 512 + 512) + 64 + 128 + 256 + 512 + 512 + 1,
        ),
    ],
)
def test_parameter_counts(fields: dict[str, Any], count: int):
    with torch.device("meta"):
        assert _count(_build(**fields)) == count


@pytest.mark.parametrize(
    ("fields", "side"),
    [
        ({}, 30),
        ({"network": "n_layers", "layers": 1}, 126),
        ({"network": "n_layers", "layers": 5}, 6),
        ({"antialias": True}, 30),
        ({"network": "pixel"}, 256),
    ],
)
def test_one_logit_a_patch(fields: dict[str, Any], side: int):
    net = _build(channels=1, **fields)
    assert net(torch.randn(2, 3, 256, 256)).shape == (2, 1, side, side)


def test_a_logit_sees_70_pixels():
    net, images = _build(channels=2, norm="none"), torch.randn(1, 3, 128, 128).requires_grad_()
    net(images)[0, 0, 7, 7].backward()
    assert images.grad is not None
    rows = images.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 70


def test_names_and_layers_are_the_references():
    net = _build(channels=2)
    assert set(net.state_dict()) == {f"model.{i}.{kind}" for i in (0, 2, 5, 8, 11) for kind in ("weight", "bias")}
    layers = [module for module in net.modules() if not list(module.children())]
    norm = ["Conv2d", "InstanceNorm2d", "LeakyReLU"]
    assert [type(layer).__name__ for layer in layers] == ["Conv2d", "LeakyReLU", *norm, *norm, *norm, "Conv2d"]
    assert [layer.stride[0] for layer in layers if isinstance(layer, nn.Conv2d)] == [2, 2, 2, 1, 1]
    assert all(layer.negative_slope == 0.2 for layer in layers if isinstance(layer, nn.LeakyReLU))
    assert set(_build(network="pixel", channels=2).state_dict()) == {
        f"model.{i}.{kind}" for i in (0, 2, 5) for kind in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("fields", "side"), [({}, 30), ({"network": "n_layers", "layers": 2}, 62), ({"network": "pixel"}, 64)]
)
def test_encodings_get_the_later_layers(fields: dict[str, Any], side: int):
    config = DiscriminatorConfig.model_validate({"channels": 1} | fields)
    net = build_encoding_discriminator(config, in_channels=5)
    assert net(torch.randn(2, 5, 64, 64)).shape == (2, 1, side, side)
    if config.network != "pixel":
        whole, half = (_convolutions(one) for one in (build_discriminator(config), net))
        inputs = [5, *(layer.in_channels for layer in whole[3:])]
        assert [layer.in_channels for layer in half] == inputs
        shape = [(layer.out_channels, layer.kernel_size, layer.stride, layer.padding) for layer in whole[2:]]
        assert [(layer.out_channels, layer.kernel_size, layer.stride, layer.padding) for layer in half] == shape


def test_a_logit_on_encodings_sees_73_pixels():
    plain = initialise(build_generator(GeneratorConfig(channels=2, blocks=1, norm="none")), gain=0.5)
    config = DiscriminatorConfig(channels=2, norm="none")
    image = torch.randn(1, 3, 160, 160, requires_grad=True)
    net = initialise(build_encoding_discriminator(config, in_channels=8), gain=0.5)
    net(split(plain).encoder(image))[0, 0, 9, 9].backward()
    assert image.grad is not None
    rows = image.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 73


def test_a_discriminator_that_ends_before_encodings_begin_is_refused():
    with pytest.raises(ValueError, match=r"discriminator.layers=1 leaves no layer .*: set 2 or more"):
        build_encoding_discriminator(DiscriminatorConfig(network="n_layers", layers=1), in_channels=8)


@pytest.mark.parametrize("network", ["basic", "pixel"])
def test_spectral_norm_bounds_each_convolution_and_stands_for_the_other_norms(network: str):
    torch.manual_seed(0)
    config = {"network": network, "channels": 4, "norm": "spectral"}
    net, images = _build(**config), torch.rand(1, 3, 64, 64)
    for _ in range(100):
        net(images)
    kinds = [type(layer).__name__ for layer in net.get_submodule("model").children()]
    assert not any("Norm" in kind for kind in kinds)
    for layer in _convolutions(net):
        assert layer.bias is not None
        assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2).item() == pytest.approx(1, abs=0.01)

    again = build_network({"network": "discriminator", "config": config, "in_channels": 3})
    again.load_state_dict(net.state_dict())
    assert torch.equal(again.eval()(images), net.eval()(images))


def _convolutions(net: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
