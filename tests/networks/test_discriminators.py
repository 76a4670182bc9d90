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
from velogan.networks.generators import GeneratorConfig, build_generator, split_stages
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


def test_the_receptive_field_is_70_pixels():
    net, images = _build(channels=2, norm="none"), torch.randn(1, 3, 128, 128).requires_grad_()
    net(images)[0, 0, 7, 7].backward()
    assert images.grad is not None
    rows = images.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 70


def test_the_receptive_field_on_encodings_is_73_pixels():
    plain = initialise(build_generator(GeneratorConfig(channels=2, blocks=1, norm="none")), gain=0.5)
    config = DiscriminatorConfig(channels=2, norm="none")
    image = torch.randn(1, 3, 160, 160, requires_grad=True)
    net = initialise(build_encoding_discriminator(config, in_channels=8), gain=0.5)
    net(split_stages(plain).encoder(image))[0, 0, 9, 9].backward()
    assert image.grad is not None
    rows = image.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 73


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
