from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.networks.cells import Space, discriminator_kinds, generator_kinds, operation_names
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.search.supernet import MixedOp, SupernetFactory, derive, find_mixed_ops

NAMES = ("generator", "discriminator")


def _build(name: str, **fields: Any) -> nn.Module:
    """A supernet; with `operations`, the network of these."""
    fields = {"network": "cells", "channels": 4, "init": "kaiming", **fields}
    factory = SupernetFactory()
    if name == "generator":
        config = GeneratorConfig.model_validate({"blocks": 1, **fields})
        return factory.generator(config, in_channels=3, out_channels=3)
    return factory.discriminator(DiscriminatorConfig.model_validate(fields), in_channels=3)


def _sum_of_operations(mixed: MixedOp, x: Tensor) -> Tensor:
    """The mixture as the paper defines it, operation by operation."""
    total, *rest = (share * net(x) for share, net in zip(mixed.shares, mixed.candidates.values()))
    for output in rest:
        total = total + output
    return total


@pytest.mark.parametrize("space", ["paper", "code"])
@pytest.mark.parametrize("name", NAMES)
def test_one_hot_shares_equal_the_derived_network(name: str, space: Space, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MixedOp, "forward", _sum_of_operations)
    torch.manual_seed(0)
    draw, images = random.Random(0), torch.randn(2, 3, 64, 64)
    kinds = generator_kinds(1, space) if name == "generator" else discriminator_kinds(space)
    supernet = _build(name, space=space).eval()
    for _ in range(4):
        operations = tuple(draw.choice(operation_names(kind, space)) for kind in kinds)
        weights = supernet.state_dict()
        for (place, mixed), operation in zip(find_mixed_ops(supernet).items(), operations, strict=True):
            with torch.no_grad():
                mixed.alpha.fill_(-torch.inf)
                mixed.alpha[list(mixed.candidates).index(operation)] = 0
            weights = {name: value for name, value in weights.items() if not name.startswith(f"{place}.")}
            weights |= {f"{place}.{name}": value for name, value in mixed.candidates[operation].state_dict().items()}
        assert derive(supernet) == operations
        derived = _build(name, operations=operations, space=space).eval()
        derived.load_state_dict(weights)
        assert torch.equal(supernet(images), derived(images)), operations


def _outputs_and_gradients(net: nn.Module, images: Tensor) -> dict[str, Tensor]:
    net.zero_grad()
    images = images.clone().requires_grad_()
    out = net(images)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    assert images.grad is not None
    grads = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "images": images.grad, **grads}


@pytest.mark.parametrize("fields", [{}, {"norm": "none"}, {"space": "code"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_merged_kernels_equal_the_sum_of_operations(name: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    net = _build(name, **fields).double().eval()  # in float64 both have the same ReLUs on
    for mixed in find_mixed_ops(net).values():
        nn.init.normal_(mixed.alpha)
    images = torch.randn(1, 3, 64, 64, dtype=torch.double)
    merged = _outputs_and_gradients(net, images)
    monkeypatch.setattr(MixedOp, "forward", _sum_of_operations)
    expected = _outputs_and_gradients(net, images)
    assert merged.keys() == expected.keys()
    assert sum("alpha" in key for key in merged) == len(find_mixed_ops(net))
    for key, value in expected.items():
        torch.testing.assert_close(merged[key], value, rtol=1e-6, atol=1e-8, msg=key)
