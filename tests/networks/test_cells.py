from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from velogan.networks.build import build_network
from velogan.networks.cells import (
    Kind,
    Slot,
    Space,
    build_operation,
    discriminator_kinds,
    generator_kinds,
    operation_names,
)
from velogan.networks.discriminators import (
    DiscriminatorConfig,
    build_discriminator,
)
from velogan.networks.generators import GeneratorConfig, build_generator, compose, split_stages
from velogan.networks.layers import initialise

SIDES: dict[Kind, int] = {"e": 6, "r": 12, "d": 24}


def _generator(**fields: Any) -> GeneratorConfig:
    return GeneratorConfig.model_validate({"network": "cells", "blocks": 1, "channels": 6} | fields)


def test_counts_the_networks_of_the_search_space():
    """Section 3.2: N = 11; 8.1e37 in all."""

    def count(kinds: tuple[Kind, ...], space: Space) -> int:
        return math.prod(len(operation_names(kind, space)) for kind in kinds)

    generators, discriminators = count(generator_kinds(9), "paper"), count(discriminator_kinds(), "paper")
    assert (generators, discriminators) == (8**2 * 5**18 * 3**2, 8**4)
    assert (generators * discriminators) ** 2 == 81 * 10**36
    assert count(generator_kinds(9, "code"), "code") == 5 * 7**2 * 5**18 * 3**2 * 5
    assert count(discriminator_kinds("code"), "code") == 7**3 * 5**2


@pytest.mark.parametrize("kind", ["e", "r", "d"])
def test_operations_halve_preserve_or_double_sides(kind: Kind):
    for name in operation_names(kind):
        net = build_operation(name, Slot(kind, 2, 3, True, "paper"))
        assert net(torch.randn(2, 2, 12, 16)).shape == (2, 3, SIDES[kind], SIDES[kind] * 16 // 12), name


@pytest.mark.parametrize("name", ["dilated3", "dilated5"])
def test_gradients_of_dilated_convolutions_of_any_width(name: str):
    """Torch's are NaN on a CPU with AVX-512 bfloat16 for images that are channels last."""
    net = build_operation(name, Slot("r", 21, 21, False, "paper")).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    for number in range(6):
        x = torch.randn(2, 21, 36, 36, generator=torch.Generator().manual_seed(number))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = net(x.contiguous(memory_format=torch.channels_last))
        (gradient,) = torch.autograd.grad(outputs.float().square().mean(), list(net.parameters()))
        (expected,) = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
        assert (gradient - expected).norm() < 0.02 * expected.norm()


def test_shapes_of_the_paper():
    """256x256x3 to 64x64xH and back; the last activation is a tanh."""
    net = initialise(build_generator(_generator(channels=5)), gain=1.0)
    stages, images = split_stages(net), torch.randn(1, 3, 256, 256)
    assert stages.encoder(images).shape == (1, 5, 64, 64)
    assert stages.translator(stages.encoder(images)).shape == (1, 5, 64, 64)
    out = net(images)
    assert out.shape == images.shape
    assert 0.5 < out.abs().max() <= 1
    logits = build_discriminator(DiscriminatorConfig(network="cells", channels=2))(images)
    assert logits.shape == (1, 1, 16, 16)
    assert logits.min() < 0 or logits.max() > 1


@pytest.mark.parametrize("space", ["paper", "code"])
def test_rebuilds_random_networks_from_headers(space: Space):
    torch.manual_seed(0)
    draw = random.Random(0)
    images = torch.randn(1, 3, 64, 64)
    kinds = {"generator": generator_kinds(2, space), "discriminator": discriminator_kinds(space)}
    configs = {
        name: {
            "network": "cells",
            "space": space,
            "channels": 5,
            "operations": [draw.choice(operation_names(kind, space)) for kind in kinds_of_network],
        }
        for name, kinds_of_network in kinds.items()
    }
    configs["generator"]["blocks"] = 2
    for name, config in configs.items():
        channels = {"in_channels": 3} | ({"out_channels": 3} if name == "generator" else {})
        net, rebuilt = (build_network({"network": name, "config": config, **channels}).eval() for _ in range(2))
        rebuilt.load_state_dict(net.state_dict())
        assert torch.equal(rebuilt(images), net(images))


def test_stages_compose_the_generator_and_its_autoencoder():
    config = _generator(blocks=2, operations=("conv4", "avg_pool", *["conv3"] * 4, "nearest", "transposed3"))
    net, images = build_generator(config), torch.randn(1, 3, 32, 32)
    stages = split_stages(net)
    composed = compose(*stages)
    assert composed.state_dict().keys() == net.state_dict().keys()
    assert torch.equal(composed(images), net(images))
    autoencoder = build_generator(GeneratorConfig.model_validate(config.model_dump() | config.autoencoder_fields()))
    autoencoder.load_state_dict(compose(stages.encoder, stages.decoder).state_dict())
    assert torch.equal(autoencoder(images), stages.decoder(stages.encoder(images)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"operations": ("conv3",)}, "1 operations, but a generator with blocks=1 has 6: name 6"),
        ({"operations": ("conv3", "nearest", *["conv3"] * 4)}, "'nearest', number 2 of the operations"),
        ({"dropout": True}, "dropout=True is for resnets, not cells"),
        (
            {"network": "resnet", "operations": ("conv3",)},
            "operations=conv3 is for cells, not resnet: set network=cells",
        ),
        ({"output": "change"}, "set decoder=simple, or norm=none"),
    ],
)
def test_rejects_invalid_fields(fields: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        _generator(**fields)


def test_a_dilated_convolution_reads_every_second_pixel():
    net = build_operation("dilated5", Slot("r", 1, 1, True, "paper"))
    images = torch.randn(1, 1, 16, 16).requires_grad_()
    net(images)[0, 0, 8, 8].backward()
    assert images.grad is not None
    assert images.grad[0, 0].nonzero()[:, 0].unique().tolist() == [4, 6, 8, 10, 12]
