from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from velogan.networks.build import NetworkFactory
from velogan.networks.generators import GeneratorConfig, build_generator, compose, split_stages
from velogan.networks.layers import initialise
from velogan.search.supernet import SupernetFactory


def _build(**fields: Any) -> nn.Module:
    return build_generator(GeneratorConfig.model_validate(fields))


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 11_378_179),
        ({"blocks": 6}, 7_837_699),
        ({"norm": "instance_affine"}, 11_383_427),  # each norm has two weights, and no bias before it
    ],
)
def test_parameter_counts(fields: dict[str, Any], count: int):
    with torch.device("meta"):
        assert _count(_build(**fields)) == count


@pytest.mark.parametrize(("network", "count"), [("resnet", 2), ("unet_256", 3), ("unet_128", 2)])
def test_dropout_as_in_the_reference(network: str, count: int):
    """One per block of a ResNet; in a U-Net in the levels of equal widths, except the innermost."""
    net = _build(network=network, channels=1, blocks=2, dropout=True)
    dropouts = [module for module in net.modules() if isinstance(module, nn.Dropout)]
    assert [module.p for module in dropouts] == count * [0.5]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"decoder": "simple"},
        {"decoder": "resize"},
        {"norm": "batch"},
        {"antialias": "both"},
        {"padding": "reflect"},
        {"padding": "reflect", "antialias": "down", "decoder": "resize"},
    ],
)
def test_stages_compose_the_generator(fields: dict[str, Any]):
    net = initialise(build_generator(GeneratorConfig.model_validate({"channels": 2, "blocks": 2} | fields)), gain=0.5)
    net.eval()
    stages = split_stages(net)
    names = [set(stage.state_dict()) for stage in stages]
    assert set.union(*names) == set(net.state_dict())
    assert sum(map(len, names)) == len(net.state_dict())
    composed = compose(*stages)
    assert list(composed.state_dict()) == list(net.state_dict())
    images = torch.randn(1, 3, 16, 16)
    encoded = stages.encoder(images)
    assert encoded.shape == stages.translator(encoded).shape == (1, 8, 4, 4)
    assert torch.equal(composed(images), net(images))
    assert torch.equal(stages.decoder(stages.translator(encoded)), net(images))
    assert not torch.equal(compose(stages.encoder, stages.decoder)(images), net(images))


def test_the_resize_decoder_has_no_checkerboard_on_constant_features():
    spread = {}
    for name in ("reference", "resize"):
        torch.manual_seed(0)
        net = build_generator(GeneratorConfig(channels=4, decoder=name, norm="none", init="kaiming"))
        with torch.no_grad():
            images = split_stages(net).decoder(torch.ones(1, 16, 8, 8))
        assert images.shape == (1, 3, 32, 32)
        spread[name] = float((images[..., 8:-8, 8:-8] - images[..., 8:9, 8:9]).abs().max())
    assert spread["resize"] < 1e-5
    assert spread["reference"] > 1e-2


def test_identity_initialisation_of_blocks():
    fields = {"channels": 2, "blocks": 3, "norm": "none", "dropout": True}
    stages = split_stages(_build(**fields, init="identity"))
    encodings = torch.randn(1, 8, 4, 4)
    assert torch.equal(stages.translator(encodings), encodings)
    assert not torch.equal(split_stages(_build(**fields)).translator(encodings), encodings)
    assert all(value.any() for stage in stages[::2] for name, value in stage.named_parameters() if "weight" in name)
    cells = {"network": "cells", "channels": 8, "blocks": 2, "norm": "none", "init": "identity"}
    larger = torch.randn(1, 8, 5, 5)  # a dilated 5x5 convolution reflects four pixels
    for networks in (NetworkFactory(), SupernetFactory()):
        net = networks.generator(GeneratorConfig.model_validate(cells))
        assert torch.equal(split_stages(net).translator(larger), larger)
    for wrong in ({"norm": "instance"}, {"network": "unet_128"}):
        with pytest.raises(ValueError, match=r"init=identity is for residual blocks without norms.*: set init=kaiming"):
            _build(**fields | wrong, init="identity")


def test_the_receptive_field_of_an_encoding_is_13_pixels():
    net = build_generator(GeneratorConfig(channels=2, blocks=1, norm="none"))
    encoder = split_stages(initialise(net, gain=0.5)).encoder
    image = torch.randn(1, 3, 64, 64, requires_grad=True)
    encoder(image)[0, :, 8, 8].sum().backward()
    assert image.grad is not None
    pixels = image.grad.abs().sum((0, 1)).nonzero()
    assert (pixels.max(0).values - pixels.min(0).values + 1).tolist() == [13, 13]


def test_a_residual_block_adds_its_input():
    block = build_generator(GeneratorConfig(channels=1, blocks=1)).get_submodule("model.10")
    images = torch.randn(1, 4, 8, 8)
    assert torch.equal(block(images), images + block.get_submodule("conv_block")(images))
