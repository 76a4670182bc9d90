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
def test_shapes_of_logits(fields: dict[str, Any], side: int):
    net = _build(channels=1, **fields)
    assert net(torch.randn(2, 3, 256, 256)).shape == (2, 1, side, side)


def test_the_receptive_field_is_70_pixels():
    net, images = _build(channels=2, norm="none"), torch.randn(1, 3, 128, 128).requires_grad_()
    net(images)[0, 0, 7, 7].backward()
    assert images.grad is not None
    rows = images.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 70


@pytest.mark.parametrize(
    ("fields", "side"), [({}, 30), ({"network": "n_layers", "layers": 2}, 62), ({"network": "pixel"}, 64)]
)
def test_a_discriminator_of_encodings_has_the_later_layers(fields: dict[str, Any], side: int):
    config = DiscriminatorConfig.model_validate({"channels": 1} | fields)
    net = build_encoding_discriminator(config, in_channels=5)
    assert net(torch.randn(2, 5, 64, 64)).shape == (2, 1, side, side)
    if config.network != "pixel":
        later, layers = _convolutions(build_discriminator(config))[2:], _convolutions(net)
        assert [layer.in_channels for layer in layers] == [5, *(layer.in_channels for layer in later[1:])]
        for layer, expected in zip(layers, later, strict=True):
            assert (layer.out_channels, layer.kernel_size) == (expected.out_channels, expected.kernel_size)
            assert (layer.stride, layer.padding) == (expected.stride, expected.padding)


def test_the_receptive_field_on_encodings_is_73_pixels():
    plain = initialise(build_generator(GeneratorConfig(channels=2, blocks=1, norm="none")), gain=0.5)
    config = DiscriminatorConfig(channels=2, norm="none")
    image = torch.randn(1, 3, 160, 160, requires_grad=True)
    net = initialise(build_encoding_discriminator(config, in_channels=8), gain=0.5)
    net(split(plain).encoder(image))[0, 0, 9, 9].backward()
    assert image.grad is not None
    rows = image.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 73


def test_rejects_too_few_layers_for_encodings():
    with pytest.raises(ValueError, match=r"discriminator.layers=1 leaves no layer .*: set 2 or more"):
        build_encoding_discriminator(DiscriminatorConfig(network="n_layers", layers=1), in_channels=8)


@pytest.mark.parametrize("network", ["basic", "pixel"])
def test_spectral_norm_bounds_each_convolution_and_replaces_other_norms(network: str):
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

    rebuilt = build_network({"network": "discriminator", "config": config, "in_channels": 3})
    rebuilt.load_state_dict(net.state_dict())
    assert torch.equal(rebuilt.eval()(images), net.eval()(images))


def _convolutions(net: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
