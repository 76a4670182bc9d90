from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from velogan.networks.build import build_network
from velogan.networks.cells import (
    Kind,
    Slot,
    Space,
    build_operation,
    count_networks,
    discriminator_kinds,
    ends_with_interpolation,
    generator_kinds,
    operation_names,
)
from velogan.networks.discriminators import (
    DiscriminatorConfig,
    build_discriminator,
    build_encoding_discriminator,
)
from velogan.networks.generators import GeneratorConfig, build_generator, compose, split
from velogan.networks.layers import initialise

SIDES: dict[Kind, int] = {"e": 6, "r": 12, "d": 24}


def _generator(**fields: Any) -> GeneratorConfig:
    return GeneratorConfig.model_validate({"network": "cells", "blocks": 1, "channels": 6} | fields)


def test_the_search_space_has_the_paper_s_sizes():
    """Section 3.2: N = 11; 8.1e37 in all."""
    assert count_networks() == (8**2 * 5**18 * 3**2, 8**4, (8**2 * 5**18 * 3**2) ** 2 * (8**4) ** 2)
    assert count_networks().total == 81 * 10**36
    assert count_networks(space="code") == (
        5 * 7**2 * 5**18 * 3**2 * 5,
        7**3 * 5**2,
        count_networks(space="code").total,
    )


@pytest.mark.parametrize("kind", ["e", "r", "d"])
def test_operations_halve_keep_and_double(kind: Kind):
    for name in operation_names(kind):
        net = build_operation(name, Slot(kind, 2, 3, True, "paper"))
        assert net(torch.randn(2, 2, 12, 16)).shape == (2, 3, SIDES[kind], SIDES[kind] * 16 // 12), name


def test_a_dilated_convolution_sees_every_second_pixel():
    net = build_operation("dilated5", Slot("r", 1, 1, True, "paper"))
    images = torch.randn(1, 1, 16, 16).requires_grad_()
    net(images)[0, 0, 8, 8].backward()
    assert images.grad is not None
    assert images.grad[0, 0].nonzero()[:, 0].unique().tolist() == [4, 6, 8, 10, 12]


def test_pictures_that_are_made_small_and_enlarged():
    for last, expected in (("nearest bilinear", True), ("nearest transposed3", False), ("transposed3 nearest", False)):
        operations = ["conv3", "conv3", *last.split()]
        assert ends_with_interpolation(operations) == expected
        assert not ends_with_interpolation([*operations, "conv3"], "code")
    nearest = build_generator(_generator(blocks=0, operations=["conv3", "conv3", "nearest", "nearest"]))
    blocks = nearest(torch.randn(1, 3, 16, 16)).unfold(2, 4, 4).unfold(3, 4, 4)
    assert torch.equal(blocks, blocks[..., :1, :1].expand_as(blocks))


@pytest.mark.parametrize("name", ["dilated3", "dilated5"])
def test_gradients_of_a_dilated_convolution_of_any_width(name: str):
    """Torch's are NaN on a CPU with AVX-512 bfloat16 for images that are channels last."""
    net = build_operation(name, Slot("r", 21, 21, False, "paper")).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    for number in range(6):
        x = torch.randn(2, 21, 36, 36, generator=torch.Generator().manual_seed(number))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            given = net(x.contiguous(memory_format=torch.channels_last))
        (found,) = torch.autograd.grad(given.float().square().mean(), list(net.parameters()))
        (expected,) = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
        assert (found - expected).norm() < 0.02 * expected.norm()


def test_the_shapes_that_the_paper_gives():
    """256x256x3 to 64x64xH and back; the last activation is a tanh."""
    net = initialise(build_generator(_generator(channels=5)), gain=1.0)
    stages, images = split(net), torch.randn(1, 3, 256, 256)
    assert stages.encoder(images).shape == (1, 5, 64, 64)
    assert stages.translator(stages.encoder(images)).shape == (1, 5, 64, 64)
    out = net(images)
    assert out.shape == images.shape
    assert 0.5 < out.abs().max() <= 1
    logits = build_discriminator(DiscriminatorConfig(network="cells", channels=2))(images)
    assert logits.shape == (1, 1, 16, 16)
    assert logits.min() < 0 or logits.max() > 1


def test_cells_are_counted_by_the_paper_s_n():
    """By hand: 3x3 convolutions in 9 residual cells, with biases as CycleGAN has them, and no stem or head."""
    hidden = 8
    parts = [(3, 4), (4, 8), *[(8, 8)] * 18, (8, 4), (4, 3)]
    net = build_generator(_generator(blocks=9, channels=hidden))
    assert sum(weight.numel() for weight in net.parameters()) == sum(9 * a * b + b for a, b in parts)


@pytest.mark.parametrize("space", ["paper", "code"])
def test_random_networks_are_built_again_from_their_headers(space: Space):
    torch.manual_seed(0)
    draw = random.Random(0)
    images = torch.randn(1, 3, 64, 64)
    kinds = {"generator": generator_kinds(2, space), "discriminator": discriminator_kinds(space)}
    configs = {
        name: {
            "network": "cells",
            "space": space,
            "channels": 5,
            "operations": [draw.choice(operation_names(k, space)) for k in of],
        }
        for name, of in kinds.items()
    }
    configs["generator"]["blocks"] = 2
    for name, config in configs.items():
        channels = {"in_channels": 3} | ({"out_channels": 3} if name == "generator" else {})
        net, again = (build_network({"network": name, "config": config, **channels}).eval() for _ in range(2))
        again.load_state_dict(net.state_dict())
        assert torch.equal(again(images), net(images))


def test_the_code_s_discriminators_alone_are_under_spectral_norm():
    def normalised(space: Space) -> set[bool]:
        net = build_discriminator(DiscriminatorConfig(network="cells", channels=2, space=space))
        return {hasattr(layer, "parametrizations") for layer in net.modules() if isinstance(layer, nn.Conv2d)}

    assert normalised("code") == {True}
    assert normalised("paper") == {False}


def test_stages_make_the_generator_again_and_an_autoencoder_of_its_own_configuration():
    config = _generator(blocks=2, operations=("conv4", "avg_pool", *["conv3"] * 4, "nearest", "transposed3"))
    net, images = build_generator(config), torch.randn(1, 3, 32, 32)
    stages = split(net)
    whole = compose(*stages)
    assert whole.state_dict().keys() == net.state_dict().keys()
    assert torch.equal(whole(images), net(images))
    alone = build_generator(GeneratorConfig.model_validate(config.model_dump() | config.autoencoder()))
    alone.load_state_dict(compose(stages.encoder, stages.decoder).state_dict())
    assert torch.equal(alone(images), stages.decoder(stages.encoder(images)))


def test_a_discriminator_of_encodings_is_the_rest_of_one_of_images():
    config = DiscriminatorConfig(network="cells", channels=2, operations=("conv3", "conv4", "max_pool", "conv5"))
    whole, rest = build_discriminator(config), build_encoding_discriminator(config, in_channels=7)
    assert rest(torch.randn(1, 7, 16, 16)).shape == whole(torch.randn(1, 3, 64, 64)).shape
    shapes = [[tuple(weight.shape[2:]) for weight in net.parameters() if weight.ndim == 4] for net in (rest, whole)]
    assert shapes[0] == shapes[1][2:]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"operations": ("conv3",)}, "1 operations, but a generator with blocks=1 has 6: name 6"),
        ({"operations": ("conv3", "nearest", *["conv3"] * 4)}, "'nearest', number 2 of the operations"),
        (
            {"operations": ("conv3", "conv3", "conv4", "conv3", "nearest", "nearest")},
            "choose one of conv3, conv5, conv7",
        ),
        ({"decoder": "simple"}, "decoder=simple is for resnets, not cells"),
        ({"dropout": True}, "dropout=True is for resnets, not cells"),
        (
            {"network": "resnet", "operations": ("conv3",)},
            "operations=conv3 is for cells, not resnet: set network=cells",
        ),
        ({"output": "change"}, "set decoder=simple, or norm=none"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        _generator(**fields)
