from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.methods.base import Spec
from velogan.methods.onepair import OnePair, OnePairObjective
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig

from ..models import Affine


def _objective(*, batched: bool = False, side: int = 1, channels: int = 1, **fields: Any) -> OnePairObjective:
    encoding = (1, 1, 1) if side == 1 else (4 * channels, side // 4, side // 4)
    return OnePairObjective(OnePair.model_validate(fields), encoding=encoding, batched=batched)


def _by_hand() -> tuple[dict[str, nn.Module], dict[str, Tensor]]:
    nets: dict[str, nn.Module] = {
        "E": Affine(2.0, 0.0),
        "R": Affine(0.5, 0.25),
        "T_A": Affine(1.0, 0.5),
        "T_B": Affine(3.0, 0.0),
        "D_A": Affine(1.0, 0.0),
        "D_B": Affine(1.0, -1.0),
    }
    a, b = torch.full((1, 1, 1, 1), 0.1), torch.full((1, 1, 1, 1), -0.3)
    return nets, {"A": a, "B": b, "uniform": torch.full((8, 1), 0.25)}


def _floats(values: Any) -> dict[str, float]:
    return {name: float(value.detach()) for name, value in values.items()}


@pytest.mark.parametrize("batched", [False, True])
def test_loss_terms_by_hand(batched: bool):
    nets, batch = _by_hand()
    objective = _objective(batched=batched, reconstruction=3.0, scale=5.0, deviation_target=7.0, deviation_source=2.0)
    first = objective.autoencoder_loss(nets, batch, {})
    # E(a) = 0.2, E(b) = -0.6; R(E(a)) = 0.35, R(E(b)) = -0.05
    expected = {"reconstruction_a": 3 * 0.25, "reconstruction_b": 3 * 0.25, "scale": 5 * math.log(0.2) ** 2}
    assert _floats(first.terms) == pytest.approx(expected)
    assert len(first.cache) == (1 if batched else 2)
    assert torch.cat([*first.cache.values()]).flatten().tolist() == pytest.approx([0.2, -0.6])

    second = objective.translator_loss(nets, batch, {name: value.detach() for name, value in first.cache.items()})
    # T(E(a)) = 0.7, T(E(b)) = -0.1
    expected = {"deviation_target_a": 7 * 0.5, "deviation_source_a": 2 * 0.5, "adversarial_a": (0.7 - 1) ** 2}
    assert _floats(second.terms) == pytest.approx(expected)
    assert float(second.loss.detach()) == pytest.approx(sum(expected.values()))

    cache = {name: value.detach() for name, value in {**first.cache, **second.cache}.items()}
    third = objective.discriminator_loss(nets, batch, cache)
    assert _floats(third.terms) == pytest.approx({"d_a": 0.5 * ((-0.6 - 1) ** 2 + 0.7**2)})


def test_both_directions_by_hand():
    nets, batch = _by_hand()
    objective = _objective(direction="both", deviation_target=1.0, deviation_source=1.0)
    out = objective.translator_loss(nets, batch, {})  # without an autoencoder phase
    # T_B(E(b)) = -1.8, T_B(E(a)) = 0.6
    expected = {
        "deviation_target_a": 0.5,
        "deviation_source_a": 0.5,
        "adversarial_a": (0.7 - 1) ** 2,
        "deviation_target_b": 0.4,
        "deviation_source_b": 1.2,
        "adversarial_b": (-1.8 - 1 - 1) ** 2,
    }
    assert _floats(out.terms) == pytest.approx(expected)
    out = objective.discriminator_loss(nets, batch, {name: value.detach() for name, value in out.cache.items()})
    assert _floats(out.terms) == pytest.approx(
        {
            "d_a": 0.5 * ((-0.6 - 1) ** 2 + 0.7**2),
            "d_b": 0.5 * ((0.2 - 1 - 1) ** 2 + (-1.8 - 1) ** 2),
        }
    )


def test_rejects_a_loss_without_terms():
    nets, batch = _by_hand()
    objective = _objective(adversarial=0.0, deviation_target=0.0, deviation_source=0.0)
    with pytest.raises(ValueError, match="method: all weights of a network's loss are 0; set one of them above 0"):
        objective.translator_loss(nets, batch, {})


def test_discriminators_get_fakes_from_the_pool():
    nets, batch = _by_hand()
    objective = _objective(pool_size=1)
    encoded = torch.tensor([0.2, -0.6]).view(2, 1, 1, 1).split(1)
    for fake in (0.9, 0.0):
        batch["uniform"] = torch.tensor([[0.9], [0.0]])  # swaps once it is full
        cache = {"fake_D_A": torch.full((1, 1, 1, 1), fake), "encoded_0": encoded[0], "encoded_1": encoded[1]}
        terms = objective.discriminator_loss(nets, batch, cache).terms
    assert float(terms["d_a"].detach()) == pytest.approx(0.5 * ((-0.6 - 1) ** 2 + 0.9**2))


def _spec(**generator: Any) -> Spec:
    config, discriminator = GeneratorConfig.model_validate(generator), DiscriminatorConfig()
    return Spec({"a2b": config, "b2a": config}, dict.fromkeys(("a2b", "b2a"), discriminator), {"A": 3, "B": 3})


def test_rejects_networks_that_need_images():
    spec = _spec()
    discriminators = dict.fromkeys(spec.discriminators, DiscriminatorConfig(network="projected+basic"))
    with pytest.raises(ValueError, match=r"network=projected\+basic needs images.*network=basic"):
        OnePair().check(replace(spec, discriminators=discriminators))
    with pytest.raises(ValueError, match=r"output=mask is for method=cyclegan"):
        OnePair().check(_spec(output="mask"))


def test_the_encoder_does_not_learn_from_the_translator():
    nets, batch = _by_hand()
    objective = _objective(reconstruction=1e-12, scale=0.0)
    phases = objective.phases()
    assert [phase.name for phase in phases] == ["autoencoder", "translator", "discriminator"]
    cache: dict[str, Tensor] = {}
    for phase in phases[:-1]:
        for role, net in nets.items():
            net.requires_grad_(role in phase.trains)
        out = phase.loss(nets, batch, cache)
        out.loss.backward()
        cache |= {name: value.detach() for name, value in out.cache.items()}
    gradient = next(nets["E"].parameters()).grad
    assert gradient is not None
    assert abs(float(gradient)) < 1e-3
