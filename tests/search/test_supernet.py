from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.networks.cells import Space, discriminator_kinds, generator_kinds, operation_names
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator, split
from velogan.search.supernet import Supernets, derive, detach_arch_parameters, mixtures

CONFIGS: dict[str, dict[str, Any]] = {
    "generator": {"network": "cells", "blocks": 1, "channels": 6, "init": "kaiming"},
    "discriminator": {"network": "cells", "channels": 4, "init": "kaiming"},
}


@torch.no_grad()
def choose(net: nn.Module, operations: Sequence[str]) -> None:
    """Makes the share of each of `operations` exactly 1, and of the others 0."""
    for mixed, name in zip(mixtures(net).values(), operations, strict=True):
        mixed.alpha.fill_(-torch.inf)
        mixed.alpha[list(mixed.candidates).index(name)] = 0


def inherit(net: nn.Module, supernet: nn.Module, operations: Sequence[str]) -> None:
    """Gives `net`, a network of these operations, the weights that they have in `supernet`."""
    mixed = mixtures(supernet)
    weights = {
        name: value
        for name, value in supernet.state_dict().items()
        if not any(name.startswith(f"{place}.") for place in mixed)
    }
    for (place, one), operation_name in zip(mixed.items(), operations, strict=True):
        chosen = one.candidates[operation_name].state_dict()
        weights |= {f"{place}.{name}": value for name, value in chosen.items()}
    net.load_state_dict(weights)


def _supernet(name: str, *, merged: bool, **fields: Any) -> nn.Module:
    make, config = Supernets(merged=merged), CONFIGS[name] | fields
    if name == "generator":
        return make.generator(GeneratorConfig.model_validate(config))
    return make.discriminator(DiscriminatorConfig.model_validate(config))


def _plain(name: str, operations: tuple[str, ...], **fields: Any) -> nn.Module:
    config = CONFIGS[name] | {"operations": operations} | fields
    if name == "generator":
        return build_generator(GeneratorConfig.model_validate(config))
    return build_discriminator(DiscriminatorConfig.model_validate(config))


@pytest.mark.parametrize("space", ["paper", "code"])
@pytest.mark.parametrize("name", CONFIGS)
def test_one_hot_weights_make_the_derived_network_bit_for_bit(name: str, space: Space):
    torch.manual_seed(0)
    draw, images = random.Random(0), torch.randn(2, 3, 64, 64)
    kinds = generator_kinds(1, space) if name == "generator" else discriminator_kinds(space)
    supernet = _supernet(name, merged=False, space=space).eval()
    for _ in range(4):
        operations = tuple(draw.choice(operation_names(kind, space)) for kind in kinds)
        choose(supernet, operations)
        assert derive(supernet) == operations
        assert all(sorted(set(one.weights.tolist())) == [0, 1] for one in mixtures(supernet).values())
        plain = _plain(name, operations, space=space).eval()
        inherit(plain, supernet, operations)
        assert torch.equal(supernet(images), plain(images)), operations


def _results(net: nn.Module, images: Tensor, *, merged: bool) -> dict[str, Tensor]:
    for one in mixtures(net).values():
        one.merged = merged
    net.zero_grad()
    images = images.clone().requires_grad_()
    out = net(images)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    assert images.grad is not None
    grads = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "images": images.grad, **grads}


@pytest.mark.parametrize("fields", [{}, {"norm": "none"}, {"space": "code"}], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_merged_mixture_is_the_plain_sum_and_has_its_gradients(name: str, fields: dict[str, Any]):
    torch.manual_seed(0)
    net = _supernet(name, merged=True, **fields).double().eval()  # so that no ReLU is on here and off there
    for one in mixtures(net).values():
        nn.init.normal_(one.alpha)
    images = torch.randn(1, 3, 64, 64, dtype=torch.double)
    expected, seen = (_results(net, images, merged=merged) for merged in (False, True))
    assert seen.keys() == expected.keys()
    assert sum("alpha" in key for key in seen) == len(mixtures(net))
    for key, value in expected.items():
        torch.testing.assert_close(seen[key], value, rtol=1e-6, atol=1e-8, msg=key)


def test_the_largest_weight_is_derived():
    net = _supernet("generator", merged=True)
    with torch.no_grad():
        for number, one in enumerate(mixtures(net).values()):
            one.alpha[number % len(one.alpha)] = 1
    assert derive(net) == ("max_pool", "avg_pool", "conv7", "dilated3", "bilinear", "transposed3")


def test_architecture_weights_can_be_a_network_of_their_own():
    net = _supernet("generator", merged=True)
    before = {id(weight) for weight in net.parameters()}
    architecture, images = detach_arch_parameters(net), torch.randn(1, 3, 32, 32)
    theirs = {id(weight) for weight in architecture.parameters()}
    assert len(theirs) == 6
    assert {id(weight) for weight in net.parameters()} == before - theirs
    net(images).square().sum().backward()
    assert all(weight.grad is not None for weight in architecture.parameters())
    start = net(images)
    with torch.no_grad():
        for weight in architecture.parameters():
            weight[0] += 2
    assert not torch.allclose(net(images), start)


def test_a_supernet_has_stages_for_methods_that_want_parts():
    net, images = _supernet("generator", merged=True), torch.randn(1, 3, 32, 32)
    encoder, translator, decoder = split(net)
    assert torch.equal(decoder(translator(encoder(images))), net(images))
    assert [len(mixtures(stage)) for stage in (encoder, translator, decoder)] == [2, 2, 2]


def test_odd_sides_are_refused():
    with pytest.raises(ValueError, match="sides of 10x5 cannot be halved by every operation"):
        _supernet("discriminator", merged=True)(torch.randn(1, 3, 20, 40))
