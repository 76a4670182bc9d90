from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.methods.cyclegan import CycleGAN, CycleGANObjective
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.objectives.base import Branch, use_branch_runner
from velogan.objectives.losses import edge_loss

from ..models import Affine

SHAPE = (3, 32, 32)


def _objective(*, batched: bool = False, shape: tuple[int, int, int] = SHAPE, **fields: Any) -> CycleGANObjective:
    return CycleGANObjective(CycleGAN.model_validate(fields), {"A": shape, "B": shape}, batched=batched)


def _small_nets() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        **{role: build_generator(GeneratorConfig(channels=2, blocks=1)) for role in ("G_A", "G_B")},
        **{role: build_discriminator(DiscriminatorConfig(network="pixel", channels=2)) for role in ("D_A", "D_B")},
    }


def _by_hand() -> tuple[dict[str, nn.Module], dict[str, Tensor]]:
    nets: dict[str, nn.Module] = {
        "G_A": Affine(2.0, 0.0),
        "G_B": Affine(1.0, 0.5),
        "D_A": Affine(3.0, 0.0),
        "D_B": Affine(1.0, -1.0),
    }
    a, b = torch.full((1, 1, 1, 1), 0.1), torch.full((1, 1, 1, 1), -0.2)
    return nets, {"A": a, "B": b, "uniform": torch.full((6, 1), 0.25)}


@pytest.mark.parametrize("identity", [0.5, 0.0])
@pytest.mark.parametrize("batched", [False, True])
def test_loss_terms_by_hand(batched: bool, identity: float):
    nets, batch = _by_hand()
    weights = {"adversarial_a": 3.0, "adversarial_b": 0.5, "cycle_a": 10.0, "cycle_b": 20.0, "identity": identity}
    objective = _objective(batched=batched, shape=(1, 1, 1), **weights)
    out = objective.generator_loss(nets, batch, {})
    # fake_b = 0.2, rec_a = 0.7; fake_a = 0.3, rec_b = 0.6; idt_b = -0.4, idt_a = 0.6
    expected = {
        "adversarial_a": 3 * (3 * 0.2 - 1) ** 2,
        "adversarial_b": 0.5 * (0.3 - 1 - 1) ** 2,
        "cycle_a": 10 * 0.6,
        "cycle_b": 20 * 0.8,
    }
    if identity:
        expected |= {"identity_a": 20 * 0.5 * 0.2, "identity_b": 10 * 0.5 * 0.5}
    assert {name: float(value.detach()) for name, value in out.terms.items()} == pytest.approx(expected)
    assert float(out.loss.detach()) == pytest.approx(sum(expected.values()))
    assert {name: float(value.detach()) for name, value in out.cache.items()} == pytest.approx(
        {"fake_a": 0.3, "fake_b": 0.2}
    )

    cache = {name: value.detach() for name, value in out.cache.items()}
    out = objective.discriminator_loss(nets, batch, cache)
    expected = {
        "a": 0.5 * ((3 * -0.2 - 1) ** 2 + (3 * 0.2) ** 2),
        "b": 0.5 * ((0.1 - 1 - 1) ** 2 + (0.3 - 1) ** 2),
    }
    assert {name: float(value.detach()) for name, value in out.terms.items()} == pytest.approx(expected)
    assert float(out.loss.detach()) == pytest.approx(sum(expected.values()))


def test_discriminators_get_fakes_from_the_pool():
    nets, batch = _by_hand()
    objective = _objective(shape=(1, 1, 1), pool_size=1)
    old, new = torch.full((1, 1, 1, 1), 0.9), torch.zeros(1, 1, 1, 1)
    objective.discriminator_loss(nets, batch, {"fake_a": old, "fake_b": old})
    batch["uniform"] = torch.tensor([0.9, 0.0, 0.1, 0.0, 0.0, 0.0]).view(6, 1)  # B's pool swaps, A's does not
    terms = objective.discriminator_loss(nets, batch, {"fake_a": new, "fake_b": new}).terms
    assert float(terms["a"].detach()) == pytest.approx(0.5 * ((3 * -0.2 - 1) ** 2 + (3 * 0.9) ** 2))
    assert float(terms["b"].detach()) == pytest.approx(0.5 * ((0.1 - 2) ** 2 + (0 - 1) ** 2))


def test_discriminators_get_source_images_as_fakes():
    nets, _ = _by_hand()
    a, b = torch.tensor([0.1, 0.3]).view(2, 1, 1, 1), torch.tensor([-0.2, -0.4]).view(2, 1, 1, 1)
    uniform = torch.full((8, 2), 0.25)
    uniform[6], uniform[7] = torch.tensor([0.3, 0.6]), torch.tensor([0.7, 0.1])  # A's first image, B's second
    cache = {"fake_a": torch.full((2, 1, 1, 1), 0.8), "fake_b": torch.full((2, 1, 1, 1), -0.7)}
    objective = _objective(shape=(1, 1, 1), source_as_fake_fraction=0.5, pool_size=0)
    assert objective.num_uniforms == {"train": 8}
    terms = objective.discriminator_loss(nets, {"A": a, "B": b, "uniform": uniform}, cache).terms
    fakes_a = [3 * 0.1, 3 * -0.7]
    fakes_b = [0.8 - 1, -0.4 - 1]
    real_a = [(3 * -0.2 - 1) ** 2, (3 * -0.4 - 1) ** 2]
    real_b = [(0.1 - 1 - 1) ** 2, (0.3 - 1 - 1) ** 2]
    for letter, real, fakes in (("a", real_a, fakes_a), ("b", real_b, fakes_b)):
        expected = 0.5 * (sum(real) / 2 + sum(score**2 for score in fakes) / 2)
        assert float(terms[letter].detach()) == pytest.approx(expected)


def test_heads_on_pretrained_features_ignore_source_images():
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return 2 * x, x - 1, 3 * x  # two on features, then the PatchGAN

    nets: dict[str, nn.Module] = _by_hand()[0] | {"D_A": Heads(), "D_B": Heads()}
    batch = {"A": torch.tensor([0.1, 0.3]).view(2, 1, 1, 1), "B": torch.tensor([-0.2, -0.4]).view(2, 1, 1, 1)}
    uniform = torch.full((8, 2), 0.9)
    uniform[6] = torch.tensor([0.1, 0.6])  # the first of A
    cache = {name: torch.tensor([-0.7, -0.6]).view(2, 1, 1, 1) for name in ("fake_a", "fake_b")}
    objective = _objective(shape=(1, 1, 1), source_as_fake_fraction=0.2, pool_size=0)
    terms = objective.discriminator_loss(nets, batch | {"uniform": uniform}, cache).terms

    def loss(real: list[float], fakes: list[tuple[float, float, float]]) -> float:
        """`fakes`: inputs and weights of the heads on features, and inputs of the PatchGAN."""
        of_real = sum(sum((score - 1) ** 2 for score in (2 * x, x - 1, 3 * x)) for x in real)
        of_features = sum(weight * ((2 * x) ** 2 + (x - 1) ** 2) for x, weight, _ in fakes)
        return 0.5 * (of_real + of_features + sum((3 * x) ** 2 for _, _, x in fakes)) / 2

    a = loss([-0.2, -0.4], [(-0.7, 0.0, 0.1), (-0.6, 1.25, -0.6)])
    b = loss([0.1, 0.3], [(-0.7, 1.25, -0.7), (-0.6, 1.25, -0.6)])
    assert [float(terms[letter]) for letter in "ab"] == pytest.approx([a, b])


def test_edge_loss_compares_each_fake_with_its_source():
    nets = _small_nets()
    batch = {domain: torch.rand(2, *SHAPE) * 2 - 1 for domain in "AB"} | {"uniform": torch.rand(6, 2)}
    out = _objective(edges=3.0).generator_loss(nets, batch, {})
    plain = _objective().generator_loss(nets, batch, {})
    for letter, fake, source in (("a", "fake_b", "A"), ("b", "fake_a", "B")):
        expected = 3.0 * edge_loss(out.cache[fake], batch[source])
        assert out.terms[f"edges_{letter}"].item() == pytest.approx(expected.item())
        assert expected.item() > 0.1
    assert out.terms.keys() - plain.terms.keys() == {"edges_a", "edges_b"}


def test_cycles_are_independent_branches():
    nets = _small_nets()
    batch = {domain: torch.rand(1, 3, 16, 16) * 2 - 1 for domain in "AB"}
    counts: list[int] = []

    def run_reversed(branches: Sequence[Branch]) -> list[tuple[Tensor, ...]]:
        counts.append(len(branches))
        return [branch() for branch in reversed(branches)][::-1]

    results = []
    for runner in (None, run_reversed):
        with use_branch_runner(runner):
            out = _objective(shape=(3, 16, 16)).generator_loss(nets, batch, {})
        results.append({**out.terms, **out.cache})
    assert counts == [2]
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())
