from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from velogan.networks.generators import GeneratorConfig, build_generator


def _build(**fields: Any) -> nn.Module:
    return build_generator(GeneratorConfig.model_validate(fields))


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def _unet_parameters(downs: int, width: int = 64) -> int:
    """By hand: 4x4 convolutions down and up with biases; every up but the innermost sees the skip beside it."""
    widths = [3, *(width * min(2**level, 8) for level in range(downs))]
    total = 0
    for level in range(downs):
        outer, inner = widths[level], widths[level + 1]
        total += 16 * outer * inner + inner
        total += 16 * inner * (1 if level == downs - 1 else 2) * outer + outer
    return total


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 11_378_179),
        ({"blocks": 6}, 7_837_699),
        ({"network": "unet_256"}, _unet_parameters(8)),
        ({"network": "unet_128"}, _unet_parameters(7)),
    ],
)
def test_parameter_counts(fields: dict[str, Any], count: int):
    with torch.device("meta"):
        assert _count(_build(**fields)) == count


@pytest.mark.parametrize("fields", [{}, {"blocks": 0}, {"network": "unet_128"}, {"in_channels": 1, "out_channels": 2}])
def test_images_keep_their_size_and_range(fields: dict[str, Any]):
    net = _build(channels=2, init_gain=1.0, **({"blocks": 1} | fields))
    images = torch.randn(2, fields.get("in_channels", 3), 128, 256)
    out = net(images)
    assert out.shape == (2, fields.get("out_channels", 3), 128, 256)
    assert 0.5 < out.abs().max() <= 1


@pytest.mark.parametrize(("network", "multiple"), [("resnet", 4), ("unet_128", 128), ("unet_256", 256)])
def test_the_smallest_side(network: str, multiple: int):
    net = _build(network=network, channels=1, blocks=1)
    assert net.multiple == multiple
    side = max(multiple, 8)
    if network != "resnet":  # the innermost level is one pixel, as in the reference
        assert net(torch.zeros(1, 3, side, side)).shape == (1, 3, side, side)
    assert net(torch.zeros(1, 3, side, 2 * side)).shape == (1, 3, side, 2 * side)


def test_names_are_the_references():
    resnet = _build(channels=2, blocks=9)
    convolutions = [1, 4, 7, 19, 22, 26]
    blocks = [f"model.{10 + i}.conv_block.{j}" for i in range(9) for j in (1, 5)]
    names = [*(f"model.{i}" for i in convolutions), *blocks]
    assert set(resnet.state_dict()) == {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    with_dropout = _build(channels=2, blocks=1, dropout=True).state_dict()
    assert "model.10.conv_block.6.weight" in with_dropout
    with_batch_norm = _build(channels=2, blocks=1, norm="batch").state_dict()
    assert {"model.2.running_mean", "model.10.conv_block.2.weight"} <= set(with_batch_norm)
    assert "model.1.bias" not in with_batch_norm  # the norm has its own
    assert "model.18.bias" in with_batch_norm


def test_unet_names_are_the_references():
    names = set(_build(network="unet_128", channels=1).state_dict())
    inner = "model.model"
    assert {f"{inner}.0.weight", f"{inner}.3.weight"} <= names
    for _ in range(5):
        inner += ".1.model" if inner == "model.model" else ".3.model"
        assert {f"{inner}.1.weight", f"{inner}.5.weight"} <= names
    assert {f"{inner}.3.model.1.weight", f"{inner}.3.model.3.weight"} <= names
    assert len(names) == 2 * 7 * 2


def _kinds(net: nn.Module) -> list[str]:
    return [type(module).__name__ for module in net.modules() if not list(module.children())]


def test_layers_are_the_papers():
    block = ["ReflectionPad2d", "Conv2d", "InstanceNorm2d", "ReLU", "ReflectionPad2d", "Conv2d", "InstanceNorm2d"]
    assert _kinds(_build(channels=2, blocks=2)) == [
        *("ReflectionPad2d", "Conv2d", "InstanceNorm2d", "ReLU"),
        *(2 * ["Conv2d", "InstanceNorm2d", "ReLU"]),
        *(2 * block),
        *(2 * ["ConvTranspose2d", "InstanceNorm2d", "ReLU"]),
        *("ReflectionPad2d", "Conv2d", "Tanh"),
    ]


@pytest.mark.parametrize(("network", "count"), [("resnet", 2), ("unet_256", 3), ("unet_128", 2)])
def test_dropout_is_where_the_reference_has_it(network: str, count: int):
    """A block each in a ResNet; in a U-Net the levels between equal widths, innermost aside."""
    net = _build(network=network, channels=1, blocks=2, dropout=True)
    dropouts = [module for module in net.modules() if isinstance(module, nn.Dropout)]
    assert [module.p for module in dropouts] == count * [0.5]


def test_a_residual_block_adds_its_input():
    net = _build(channels=1, blocks=1)
    block = net.get_submodule("model.10")
    images = torch.randn(1, 4, 8, 8)
    assert torch.equal(block(images), images + block.get_submodule("conv_block")(images))
